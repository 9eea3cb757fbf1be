//! The laws of `apply`, `remove` and the stance; what is refused and what is noted.

use std::net::{SocketAddr, TcpListener, TcpStream};

use proxy::data_path::{DataPath, Stance, userspace::UserspacePath};
use proxy_rules::{
    Action, DropReason, Match, PortRange, Protocol, Rule, RuleId, RuleTable, Settings, Side, Snat,
};

use crate::support::*;

fn refuses(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, DEADLINE).is_err()
}

#[test]
fn applying_twice_keeps_connections_counters_and_what_waits_to_be_accepted() {
    let (echo, front) = (Echo::tcp(local()), frontend());
    let rule = rule(Protocol::Tcp, front, &[echo.address]);
    let mut path = path([rule.clone()]);
    let mut client = connect(front);
    echoes(&mut client, b"one");
    for _ in 0..20 {
        let mut waiting = connect(front);
        path.apply(&table([rule.clone()])).unwrap();
        echoes(&mut waiting, b"two");
    }
    echoes(&mut client, b"three");
    assert_eq!((count(&path, &rule).flows, count(&path, &rule).dropped), (21, 0));
}

#[test]
fn a_failed_bind_changes_nothing() {
    let (echo, front) = (Echo::tcp(local()), frontend());
    let old = rule(Protocol::Tcp, front, &[echo.address]);
    let mut path = path([old.clone()]);
    let mut client = connect(front);
    echoes(&mut client, b"before");

    let (free, taken) = (frontend(), frontend());
    let _taken = TcpListener::bind(taken).unwrap();
    let new = table([free, taken].map(|front| rule(Protocol::Tcp, front, &[echo.address])));
    let error = path.apply(&new).unwrap_err();
    assert_eq!(error.to_string(), format!("listening on tcp {taken}"));
    assert!(path.supports(&new).unwrap_err().to_string().contains(&taken.to_string()));

    echoes(&mut client, b"after");
    echoes(&mut connect(front), b"new");
    assert!(refuses(free), "the other new frontend must not be left behind");
    assert_eq!(count(&path, &old).flows, 2);
}

#[test]
fn a_table_in_place_of_another_leaves_only_itself() {
    let echo = Echo::tcp(local());
    let [a, b, c] = [(); 3].map(|()| frontend());
    let rules = [a, b, c].map(|front| rule(Protocol::Tcp, front, &[echo.address]));
    let [rule_a, rule_b, rule_c] = rules;
    let mut path = path([rule_a.clone(), rule_b.clone()]);
    let [mut on_a, mut on_b] = [connect(a), connect(b)];
    echoes(&mut on_a, b"a");
    echoes(&mut on_b, b"b");

    path.apply(&table([rule_b.clone(), rule_c.clone()])).unwrap();
    assert!(refuses(a), "a is no longer listened on");
    assert_reset(&mut on_a);
    echoes(&mut on_b, b"b");
    echoes(&mut connect(c), b"c");
    let series: Vec<_> = path.counters().unwrap().series.into_keys().map(|s| s.rule).collect();
    assert_eq!(series.len(), 2);
    assert!(!series.contains(&rule_a.id));

    path.apply(&table([rule_a.clone()])).unwrap();
    echoes(&mut connect(a), b"again");
    assert_eq!(count(&path, &rule_a).flows, 2, "counters do not run backwards");
}

#[test]
fn remove_closes_everything_at_once_and_the_path_can_be_used_again() {
    let (tcp, udp, front) = (Echo::tcp(local()), Echo::udp(local(), b""), frontend());
    let rules =
        [rule(Protocol::Tcp, front, &[tcp.address]), rule(Protocol::Udp, front, &[udp.address])];
    let mut path = path(rules.clone());
    let mut client = connect(front);
    echoes(&mut client, b"x");
    assert_eq!(ask(&udp_client(front), b"y"), b"y");

    path.remove().unwrap();
    assert_reset(&mut client);
    assert!(refuses(front), "the listener is closed");
    drop(std::net::UdpSocket::bind(front).expect("the UDP socket is closed"));
    assert_eq!(path.counters().unwrap().live_flows, Some(0));
    path.remove().unwrap();

    path.apply(&table(rules)).unwrap();
    echoes(&mut connect(front), b"x");
    assert_eq!(ask(&udp_client(front), b"y"), b"y");
}

#[test]
fn known_flows_go_on_while_new_ones_are_left_to_others() {
    let (tcp, udp, front) = (Echo::tcp(local()), Echo::udp(local(), b""), frontend());
    let rules =
        [rule(Protocol::Tcp, front, &[tcp.address]), rule(Protocol::Udp, front, &[udp.address])];
    let mut path = path(rules.clone());
    let (mut client, session) = (connect(front), udp_client(front));
    echoes(&mut client, b"x");
    ask(&session, b"y");

    path.set_stance(Stance::KnownFlows).unwrap();
    path.apply(&table(rules)).unwrap();
    assert!(refuses(front), "no new connections");
    echoes(&mut client, b"x");
    assert_eq!(ask(&session, b"y"), b"y");
    udp_client(front).send(b"unknown").unwrap();
    eventually("the datagram is dropped", || drops(&path, DropReason::NoFlow) == 1);

    path.set_stance(Stance::All).unwrap();
    echoes(&mut connect(front), b"x");
    assert_eq!(ask(&udp_client(front), b"y"), b"y");
    echoes(&mut client, b"x");
}

#[test]
fn the_path_may_be_driven_from_inside_another_runtime() {
    let (echo, front) = (Echo::tcp(local()), frontend());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut path = path([rule(Protocol::Tcp, front, &[echo.address])]);
        let mut client = connect(front);
        echoes(&mut client, b"x");
        path.remove().unwrap();
        path.apply(&table([rule(Protocol::Tcp, front, &[echo.address])])).unwrap();
    });
    assert!(refuses(front), "dropping the path removes it");
}

#[test]
fn flows_are_neither_given_nor_taken() {
    let (echo, front) = (Echo::tcp(local()), frontend());
    let mut path = path([rule(Protocol::Tcp, front, &[echo.address])]);
    echoes(&mut connect(front), b"x");
    assert_eq!(path.flows().unwrap(), []);
    assert_eq!(path.adopt(&[]).unwrap(), 0);
}

#[test]
fn what_sockets_cannot_carry_is_refused_by_name() {
    let path = UserspacePath::new().unwrap();
    let front = frontend();
    let base = rule(Protocol::Tcp, front, &[SocketAddr::new(local(), 80)]);
    let with = |change: fn(&mut Rule)| {
        let mut rule = base.clone();
        rule.id = RuleId::new("web");
        change(&mut rule);
        rule
    };
    let cases: [(&str, Vec<Rule>); 8] = [
        (
            "forwarding to other hosts (subnet route, exit node)",
            vec![with(|rule| {
                rule.action = Action::Forward { to: Side::Tailnet, snat: Snat::Keep };
            })],
        ),
        (
            "a prefix as destination",
            vec![with(|rule| {
                rule.matches.dst = "127.0.0.0/8".parse().unwrap();
            })],
        ),
        ("every port of an address", vec![with(|rule| rule.matches.ports = PortRange::ANY)]),
        (
            "every protocol of an address",
            vec![with(|rule| {
                rule.matches =
                    Match { protocol: None, ports: PortRange::ANY, ..rule.matches.clone() };
            })],
        ),
        (
            "a range of more than 1024 ports",
            vec![with(|rule| {
                rule.matches.ports = PortRange::new(2000, 3024).unwrap();
            })],
        ),
        (
            "refusing ICMP echo",
            vec![with(|rule| {
                rule.matches.protocol = Some(Protocol::Icmp);
                rule.matches.ports = PortRange::ANY;
                rule.action = Action::Reject;
            })],
        ),
        (
            "a PROXY protocol header before datagrams",
            vec![with(|rule| {
                rule.matches.protocol = Some(Protocol::Udp);
                if let Action::Dnat { proxy_protocol, .. } = &mut rule.action {
                    *proxy_protocol = true;
                }
            })],
        ),
        ("one frontend on both sides", vec![with(|rule| rule.from = Side::Tailnet), with(|_| {})]),
    ];
    for (feature, rules) in cases {
        let error = path.supports(&table(rules)).unwrap_err();
        assert_eq!(error.to_string(), format!("rule web: {feature} needs another data path"));
    }
    let mut itself = rule(Protocol::Tcp, front, &[front]);
    itself.id = RuleId::new("web");
    let error = path.supports(&table([itself])).unwrap_err();
    assert!(error.to_string().contains("a backend that is the frontend itself"), "{error}");
}

#[test]
fn what_is_carried_differently_is_noted() {
    let front = frontend();
    let backend = SocketAddr::new(local(), 80);
    let mut keep = rule(Protocol::Tcp, front, &[backend]);
    if let Action::Dnat { snat, .. } = &mut keep.action {
        *snat = Snat::Keep;
    }
    let mut ping = rule(Protocol::Icmp, front, &[backend]);
    ping.matches.ports = PortRange::ANY;
    let mut rest = ping.clone();
    rest.id = RuleId::new("rest");
    rest.matches.protocol = None;
    rest.action = Action::Reject;
    let elsewhere = rule(Protocol::Tcp, "192.0.2.77:80".parse().unwrap(), &[backend]);
    let path = path([keep, ping, rest, elsewhere]);
    let notes = path.notes();
    for part in [
        "backends see this host's address instead of the client's",
        "ICMP echo is answered by this host itself",
        "rule rest: the kernel refuses ports without a socket",
        "tcp 192.0.2.77:80: the address is not on this host",
    ] {
        assert!(notes.iter().any(|note| note.contains(part)), "{part}: {notes:#?}");
    }
}

#[test]
fn ranges_listen_on_every_port_and_count_as_asked() {
    let (echo, address) = (Echo::tcp(local()), local());
    for count_per_port in [false, true] {
        let mut rule = rule(Protocol::Tcp, SocketAddr::new(address, 9000), &[echo.address]);
        rule.matches.ports = PortRange::new(9000, 9003).unwrap();
        rule.count_per_port = count_per_port;
        let path = path([rule]);
        for port in 9000..=9003 {
            echoes(&mut connect(SocketAddr::new(address, port)), b"12345");
        }
        let counters = path.counters().unwrap();
        let found: Vec<_> = counters
            .series
            .iter()
            .map(|(series, count)| (series.port, series.last_port, count.original_bytes))
            .collect();
        if count_per_port {
            assert_eq!(found, [9000, 9001, 9002, 9003].map(|port| (Some(port), None, 5)));
        } else {
            assert_eq!(found, [(Some(9000), Some(9003), 20)]);
        }
    }
}

#[test]
fn rejected_and_dropped_frontends_are_reset_and_counted() {
    let [reject, silent] = [(); 2].map(|()| frontend());
    let mut rules = [reject, silent].map(|front| rule(Protocol::Tcp, front, &[]));
    rules[0].action = Action::Reject;
    rules[1].action = Action::Drop(DropReason::RuleDrop);
    let table = RuleTable::new(rules.to_vec(), Settings::default());
    let mut path = UserspacePath::new().unwrap();
    path.apply(&table).unwrap();
    for front in [reject, silent] {
        assert_refused(front);
    }
    eventually("both are counted", || {
        [DropReason::Rejected, DropReason::RuleDrop].iter().all(|reason| drops(&path, *reason) == 1)
    });
}
