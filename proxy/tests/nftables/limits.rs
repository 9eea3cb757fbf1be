//! What must not pass does not, and what is not ours is left alone.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
};

use proxy::data_path::{DataPath as _, nftables::NftPath};
use proxy_rules::{Action, DropReason, Protocol, RuleTable, Settings, Snat};

use crate::support::*;

#[test]
fn a_route_forwards_what_it_names_and_nothing_else_passes() {
    let rig = rig_or_skip!();
    udp_server(&rig.backend, "198.51.100.2:7");
    udp_server(&rig.backend, "198.51.100.3:7");
    let mut path = NftPath::new();
    let forward = Action::Forward { to: CLUSTER, snat: Snat::Keep };
    let route = rule("route", TAILNET, Protocol::Udp, "198.51.100.2/31", 0, forward);
    let blocked = rule(
        "blocked",
        TAILNET,
        Protocol::Udp,
        "198.51.100.3/32",
        7,
        Action::Drop(DropReason::RuleDrop),
    );
    rig.proxy.enter(|| path.apply(&table(vec![route, blocked])).unwrap());
    let socket = udp(&rig.client, "0.0.0.0:0");
    assert_eq!(ask(&socket, "198.51.100.2:7", b"x").unwrap(), "198.51.100.2:7 100.64.0.2");
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    assert_eq!(ask(&socket, "198.51.100.3:7", b"x"), None);
    // Not named: dropped from the tailnet, and the kernel does not forward it from the cluster either.
    assert_eq!(ask(&socket, "198.51.100.9:7", b"x"), None);
    let inside = udp(&rig.backend, "0.0.0.0:0");
    inside.set_read_timeout(Some(SILENCE)).unwrap();
    udp_server(&rig.client, "100.64.0.2:7");
    assert_eq!(ask(&inside, "100.64.0.2:7", b"x"), None);
    let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
    assert_eq!(snapshot.drops[&DropReason::RuleDrop], 1);
    assert_eq!(snapshot.drops[&DropReason::NoRule], 1);
    assert_eq!(count(&snapshot, "blocked").dropped, 1);
    assert_eq!(count(&snapshot, "route").original_packets, 1);
}

#[test]
fn a_protected_source_from_the_cluster_is_dropped_and_its_neighbour_is_not() {
    let rig = rig_or_skip!();
    udp_server(&rig.client, "100.64.0.2:7");
    rig.backend.ip("address add 100.64.8.9/32 dev link0");
    rig.backend.ip("address add 100.64.8.10/32 dev link0");
    rig.proxy.ip("route add 100.64.8.0/24 dev eth0");
    let mut path = NftPath::new();
    let to = dnat(&["100.64.0.2:7"], Snat::Masquerade);
    let rules = vec![rule("egress", CLUSTER, Protocol::Udp, "198.51.100.1/32", 7, to)];
    let settings = Settings { protected: vec!["100.64.8.9/32".parse().unwrap()], ..settings() };
    rig.proxy.enter(|| path.apply(&RuleTable::new(rules, settings)).unwrap());
    assert!(ask(&udp(&rig.backend, "100.64.8.10:0"), "198.51.100.1:7", b"x").is_some());
    let spoofer = udp(&rig.backend, "100.64.8.9:0");
    spoofer.set_read_timeout(Some(SILENCE)).unwrap();
    assert_eq!(ask(&spoofer, "198.51.100.1:7", b"x"), None);
    let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
    assert_eq!(snapshot.drops[&DropReason::SpoofedSource], 1);
}

#[test]
fn only_the_named_sources_may_use_a_limited_rule() {
    let rig = rig_or_skip!();
    udp_server(&rig.backend, "198.51.100.2:7");
    udp_server(&rig.backend, "198.51.100.3:7");
    rig.client.ip("address add 100.64.0.3/24 dev link0");
    let mut path = NftPath::new();
    let to = |to: &str| dnat(&[to], Snat::Masquerade);
    let dst = "100.64.0.1/32";
    let mut special = rule("special", TAILNET, Protocol::Udp, dst, 7, to("198.51.100.3:7"));
    special.matches.src = vec!["100.64.0.3/32".parse().unwrap()];
    let general = rule("general", TAILNET, Protocol::Udp, dst, 7, to("198.51.100.2:7"));
    let mut alone = rule("alone", TAILNET, Protocol::Udp, dst, 8, to("198.51.100.2:7"));
    alone.matches.src = vec!["100.64.0.3/32".parse().unwrap()];
    rig.proxy.enter(|| path.apply(&table(vec![special, general, alone])).unwrap());
    let (one, other) = (udp(&rig.client, "100.64.0.2:0"), udp(&rig.client, "100.64.0.3:0"));
    assert!(ask(&one, "100.64.0.1:7", b"x").unwrap().starts_with("198.51.100.2:7"));
    assert!(ask(&other, "100.64.0.1:7", b"x").unwrap().starts_with("198.51.100.3:7"));
    assert!(ask(&other, "100.64.0.1:8", b"x").is_some());
    one.set_read_timeout(Some(SILENCE)).unwrap();
    assert_eq!(ask(&one, "100.64.0.1:8", b"x"), None);
}

#[test]
fn refusals_are_told_at_once_and_counted() {
    let rig = rig_or_skip!();
    let mut path = NftPath::new();
    let dst = "100.64.0.1/32";
    let rules = vec![
        rule("no", TAILNET, Protocol::Tcp, dst, 22, Action::Reject),
        rule("no6", TAILNET, Protocol::Tcp, "2001:db8:64::1/128", 22, Action::Reject),
        rule("never", TAILNET, Protocol::Udp, dst, 22, Action::Reject),
        rule("nobody", TAILNET, Protocol::Tcp, dst, 80, dnat(&[], Snat::Masquerade)),
    ];
    rig.proxy.enter(|| path.apply(&table(rules)).unwrap());
    for to in ["100.64.0.1:22", "[2001:db8:64::1]:22", "100.64.0.1:80"] {
        assert_eq!(
            connect(&rig.client, to).unwrap_err().kind(),
            ErrorKind::ConnectionRefused,
            "{to}"
        );
    }
    let socket = udp(&rig.client, "0.0.0.0:0");
    socket.connect("100.64.0.1:22").unwrap();
    socket.send(b"x").unwrap();
    assert_eq!(socket.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
    assert_eq!(snapshot.drops[&DropReason::Rejected], 3);
    assert_eq!(snapshot.drops[&DropReason::NoBackend], 1);
    for id in ["no", "no6", "never", "nobody"] {
        assert_eq!(count(&snapshot, id).dropped, 1, "{id}");
    }
}

#[test]
fn local_sockets_keep_their_traffic() {
    let rig = rig_or_skip!();
    udp_server(&rig.backend, "198.51.100.2:7");
    udp_server(&rig.proxy, "0.0.0.0:7");
    udp_server(&rig.proxy, "0.0.0.0:8");
    // A session from before connection tracking, from this host: its peer's segments are new to the kernel's table.
    let server = rig.client.enter(|| TcpListener::bind("100.64.0.2:99").unwrap());
    let mut session = rig.proxy.enter(|| TcpStream::connect("100.64.0.2:99").unwrap());
    let (mut peer, _) = server.accept().unwrap();
    let mut path = NftPath::new();
    let to = dnat(&["198.51.100.2:7"], Snat::Masquerade);
    let ports = rule("ports", TAILNET, Protocol::Udp, "100.64.0.1/32", 0, to.clone());
    let exact = rule("exact", TAILNET, Protocol::Udp, "100.64.0.1/32", 8, to);
    let local = session.local_addr().unwrap().port();
    let steal = rule(
        "steal",
        TAILNET,
        Protocol::Tcp,
        "100.64.0.1/32",
        local,
        dnat(&["198.51.100.2:80"], Snat::Keep),
    );
    rig.proxy.enter(|| path.apply(&table(vec![ports, exact, steal])).unwrap());
    peer.write_all(b"hello").unwrap();
    let mut got = [0; 5];
    session.set_read_timeout(Some(DEADLINE)).unwrap();
    session.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");

    let socket = udp(&rig.client, "0.0.0.0:0");
    // Any port: the bound socket goes first. Exactly this port: the rule does.
    assert!(ask(&socket, "100.64.0.1:7", b"x").unwrap().starts_with("0.0.0.0:7"));
    assert!(ask(&socket, "100.64.0.1:8", b"x").unwrap().starts_with("198.51.100.2:7"));
    assert!(ask(&socket, "100.64.0.1:9", b"x").unwrap().starts_with("198.51.100.2:7"));
}

#[test]
fn a_packet_without_time_left_is_answered_and_counted() {
    let rig = rig_or_skip!();
    let mut path = NftPath::new();
    let to = |to: &str| dnat(&[to], Snat::Masquerade);
    let rules = vec![
        rule("four", TAILNET, Protocol::Udp, "100.64.0.1/32", 7, to("198.51.100.2:7")),
        rule("six", TAILNET, Protocol::Udp, "2001:db8:64::1/128", 7, to("[2001:db8:1::2]:7")),
    ];
    rig.proxy.enter(|| path.apply(&table(rules)).unwrap());
    for (own, to) in [("0.0.0.0:0", "100.64.0.1:7"), ("[::]:0", "[2001:db8:64::1]:7")] {
        let socket = udp(&rig.client, own);
        let options = socket2::SockRef::from(&socket);
        if own.starts_with('[') {
            options.set_unicast_hops_v6(1).unwrap();
        } else {
            options.set_ttl_v4(1).unwrap();
        }
        socket.send_to(b"x", to).unwrap();
    }
    wait_until(|| {
        let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
        ["four", "six"].iter().all(|id| {
            (count(&snapshot, id).dropped, count(&snapshot, id).original_packets) == (1, 0)
        }) && snapshot.drops[&DropReason::TtlExpired] == 2
    });
}

#[test]
fn fragments_are_carried_or_dropped_as_the_settings_say() {
    let rig = rig_or_skip!();
    udp_server(&rig.backend, "198.51.100.2:7");
    udp_server(&rig.backend, "[2001:db8:1::2]:7");
    let mut path = NftPath::new();
    let to = |to: &str| dnat(&[to], Snat::Masquerade);
    let rules = || {
        vec![
            rule("four", TAILNET, Protocol::Udp, "100.64.0.1/32", 7, to("198.51.100.2:7")),
            rule("six", TAILNET, Protocol::Udp, "2001:db8:64::1/128", 7, to("[2001:db8:1::2]:7")),
        ]
    };
    let clients = [
        (udp(&rig.client, "0.0.0.0:0"), "100.64.0.1:7"),
        (udp(&rig.client, "[::]:0"), "[2001:db8:64::1]:7"),
    ];
    rig.proxy.enter(|| path.apply(&table(rules())).unwrap());
    for (socket, to) in &clients {
        assert!(ask(socket, to, &[1; 8000]).is_some(), "{to}");
        socket.set_read_timeout(Some(SILENCE)).unwrap();
    }
    let fragments = proxy_rules::Fragments::Drop;
    let without = RuleTable::new(rules(), Settings { fragments, ..settings() });
    rig.proxy.enter(|| path.apply(&without).unwrap());
    for (socket, to) in &clients {
        assert_eq!(ask(socket, to, &[1; 8000]), None, "{to}");
        assert!(ask(socket, to, &[1; 100]).is_some(), "{to}");
    }
    let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
    // 8008 bytes are six fragments of an MTU of 1500.
    assert_eq!(snapshot.drops[&DropReason::FragmentsDisabled], 12);
}

#[test]
fn what_the_host_forwards_by_itself_is_left_alone() {
    let rig = rig_or_skip!();
    for family in ["ipv4", "ipv6"] {
        rig.proxy.exec("sysctl", &["-qw", &format!("net.{family}.conf.all.forwarding=1")]);
    }
    udp_server(&rig.client, "100.64.0.2:7");
    udp_server(&rig.client, "[2001:db8:64::2]:7");
    let mut path = NftPath::new();
    let to = dnat(&["198.51.100.2:80"], Snat::Masquerade);
    let web = rule("web", TAILNET, Protocol::Tcp, "100.64.0.1/32", 80, to);
    let four = udp(&rig.backend, "0.0.0.0:0");
    let six = udp(&rig.backend, "[::]:0");
    let reachable = || {
        ask(&four, "100.64.0.2:7", b"x").is_some()
            && ask(&six, "[2001:db8:64::2]:7", b"x").is_some()
    };
    assert!(reachable());
    let before = rig.proxy.traces();
    rig.proxy.enter(|| path.apply(&table(vec![web])).unwrap());
    assert!(reachable());
    let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
    assert!(snapshot.drops.values().all(|packets| *packets == 0));
    assert_eq!(count(&snapshot, "web"), proxy_rules::Count::default());
    rig.proxy.enter(|| path.remove().unwrap());
    assert!(reachable());
    assert_eq!(rig.proxy.traces(), before);
}
