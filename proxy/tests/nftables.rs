//! The nftables path with real packets in network namespaces. Needs root, `ip`, `nft` and `sysctl`; with
//! SKIP_KERNEL_TESTS=1 it says so and does nothing.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
};

use proxy::data_path::{DataPath as _, Unsupported, nftables::NftPath};
use proxy_rules::{
    Action, BackendState, DropReason, FlowState, Protocol, RuleTable, Settings, Side, Snat,
};

#[cfg(test)]
#[path = "nftables/support.rs"]
mod support;

use support::{
    Rig, SILENCE, ask, connect, count, dnat, echo, echo_server, ping, rule, settings, table, udp,
    udp_server,
};

macro_rules! rig_or_skip {
    () => {
        if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
            eprintln!("skipped: SKIP_KERNEL_TESTS=1");
            return;
        } else {
            Rig::new()
        }
    };
}

const TAILNET: Side = Side::Tailnet;
const CLUSTER: Side = Side::Cluster;

#[test]
fn tcp_udp_and_icmp_of_both_families_are_carried_and_counted_exactly() {
    let rig = rig_or_skip!();
    // What really is on the client's wire.
    rig.client.nft(
        "table inet wire {
            counter tcp_out { }
            counter tcp_in { }
            chain out { type filter hook output priority 0; tcp dport 80 counter name tcp_out
            }
            chain in { type filter hook input priority 0; tcp sport 80 counter name tcp_in
            }
        }",
    );
    echo_server(&rig.backend, "[::]:8080");
    udp_server(&rig.backend, "198.51.100.2:5353");
    udp_server(&rig.backend, "[2001:db8:1::2]:5353");
    let mut path = NftPath::new();
    let rules = |suffix: &str, dst: &str, to: &str, bare: &str, snat| {
        let to = |port| dnat(&[&format!("{to}:{port}")], snat);
        vec![
            rule(&format!("web{suffix}"), TAILNET, Protocol::Tcp, dst, 80, to(8080)),
            rule(&format!("dns{suffix}"), TAILNET, Protocol::Udp, dst, 53, to(5353)),
            rule(&format!("ping{suffix}"), TAILNET, Protocol::Icmp, dst, 0, dnat(&[bare], snat)),
        ]
    };
    let mut all = rules("4", "100.64.0.1/32", "198.51.100.2", "198.51.100.2", Snat::Masquerade);
    all.extend(rules("6", "2001:db8:64::1/128", "[2001:db8:1::2]", "2001:db8:1::2", Snat::Keep));
    rig.proxy.enter(|| {
        path.supports(&table(all.clone())).unwrap();
        path.apply(&table(all.clone())).unwrap();
    });

    for (suffix, frontend, header, seen_as) in
        [("4", "100.64.0.1", 20, "198.51.100.1"), ("6", "[2001:db8:64::1]", 40, "2001:db8:64::2")]
    {
        let before = (rig.client.wire("tcp_out"), rig.client.wire("tcp_in"));
        let (mut stream, peer) = connect(&rig.client, &format!("{frontend}:80")).unwrap();
        // An IPv6 socket shows IPv4 peers as mapped addresses.
        assert_eq!(peer.to_canonical(), seen_as.parse::<std::net::IpAddr>().unwrap());
        echo(&mut stream, &[7; 3000]).unwrap();
        drop(stream);
        let socket = udp(&rig.client, if suffix == "4" { "0.0.0.0:0" } else { "[::]:0" });
        let mut answered = 0;
        for _ in 0..5 {
            let answer = ask(&socket, &format!("{frontend}:53"), &[1; 100]).unwrap();
            assert!(answer.ends_with(seen_as), "{answer}");
            answered += answer.len() as u64;
        }
        assert!(ping(&rig.client, frontend.trim_matches(['[', ']'])));

        let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
        let dns = count(&snapshot, &format!("dns{suffix}"));
        assert_eq!((dns.original_packets, dns.original_bytes), (5, 5 * (header + 8 + 100)));
        assert_eq!((dns.reply_packets, dns.reply_bytes), (5, 5 * (header + 8) + answered));
        assert_eq!((dns.flows, dns.dropped), (1, 0));
        let echoes = count(&snapshot, &format!("ping{suffix}"));
        assert_eq!((echoes.original_packets, echoes.original_bytes), (1, header + 64));
        assert_eq!((echoes.reply_packets, echoes.reply_bytes), (1, header + 64));
        // The connection's end may still be on its way: wait until both counts stand.
        wait_until(|| {
            let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
            let web = count(&snapshot, &format!("web{suffix}"));
            let (out, back) = (rig.client.wire("tcp_out"), rig.client.wire("tcp_in"));
            web.flows == 1
                && web.original_packets == out.0 - before.0.0
                && web.original_bytes == out.1 - before.0.1
                && web.reply_packets == back.0 - before.1.0
                && web.reply_bytes == back.1 - before.1.1
        });
    }
}

/// Polls a condition that the kernel will bring about, each time after a moment of rest.
fn wait_until(mut done: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + support::DEADLINE;
    let (_keep, rest) = std::sync::mpsc::channel::<()>();
    while !done() {
        assert!(std::time::Instant::now() < deadline, "the condition did not come true in time");
        let _ = rest.recv_timeout(std::time::Duration::from_millis(10));
    }
}

#[test]
fn new_flows_spread_over_backends_and_a_flow_stays_where_it_is() {
    let rig = rig_or_skip!();
    udp_server(&rig.backend, "198.51.100.2:53");
    udp_server(&rig.backend, "198.51.100.3:53");
    let mut path = NftPath::new();
    let to = dnat(&["198.51.100.2:53", "198.51.100.3:53"], Snat::Masquerade);
    let both = table(vec![rule("dns", TAILNET, Protocol::Udp, "100.64.0.1/32", 53, to)]);
    rig.proxy.enter(|| path.apply(&both).unwrap());
    let answers: Vec<(std::net::UdpSocket, String)> = (0..32)
        .map(|_| {
            let socket = udp(&rig.client, "0.0.0.0:0");
            let first = ask(&socket, "100.64.0.1:53", b"x").unwrap();
            assert_eq!(ask(&socket, "100.64.0.1:53", b"x").unwrap(), first);
            (socket, first)
        })
        .collect();
    let second = answers.iter().filter(|(_, a)| a.starts_with("198.51.100.3:")).count();
    assert!((6..=26).contains(&second), "{second} of 32 at the second backend");

    // A removed backend's UDP flows are re-homed, the others stay.
    let to = dnat(&["198.51.100.3:53"], Snat::Masquerade);
    let one = table(vec![rule("dns", TAILNET, Protocol::Udp, "100.64.0.1/32", 53, to)]);
    rig.proxy.enter(|| path.apply(&one).unwrap());
    for (socket, _) in &answers {
        let now = ask(socket, "100.64.0.1:53", b"x").unwrap();
        assert!(now.starts_with("198.51.100.3:"), "{now}");
    }
    let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
    assert_eq!(count(&snapshot, "dns").original_packets, 96);
    assert_eq!(count(&snapshot, "dns").flows, 32 + 32 - second as u64);
}

#[test]
fn a_draining_backend_keeps_its_flows_and_a_removed_one_resets_them() {
    let rig = rig_or_skip!();
    echo_server(&rig.backend, "198.51.100.2:80");
    echo_server(&rig.backend, "198.51.100.3:80");
    let mut path = NftPath::new();
    let with = |action: Action| {
        table(vec![rule("web", TAILNET, Protocol::Tcp, "100.64.0.1/32", 80, action)])
    };
    rig.proxy.enter(|| path.apply(&with(dnat(&["198.51.100.2:80"], Snat::Masquerade))).unwrap());
    let (mut old, _) = connect(&rig.client, "100.64.0.1:80").unwrap();
    let mut draining = dnat(&["198.51.100.2:80", "198.51.100.3:80"], Snat::Masquerade);
    if let Action::Dnat { backends, .. } = &mut draining {
        backends.list[0].state = BackendState::Draining;
    }
    rig.proxy.enter(|| path.apply(&with(draining)).unwrap());
    echo(&mut old, b"still here").unwrap();

    rig.proxy.enter(|| path.apply(&with(dnat(&["198.51.100.3:80"], Snat::Masquerade))).unwrap());
    let error = echo(&mut old, b"gone").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
    assert_eq!(snapshot.drops[&DropReason::BackendGone], 1);
    let (mut new, _) = connect(&rig.client, "100.64.0.1:80").unwrap();
    echo(&mut new, b"hello").unwrap();
}

#[test]
fn egress_goes_from_the_cluster_to_the_tailnet() {
    let rig = rig_or_skip!();
    echo_server(&rig.client, "100.64.0.2:443");
    let mut path = NftPath::new();
    let to = dnat(&["100.64.0.2:443"], Snat::Masquerade);
    let egress = table(vec![rule("egress", CLUSTER, Protocol::Tcp, "198.51.100.1/32", 10_443, to)]);
    rig.proxy.enter(|| path.apply(&egress).unwrap());
    let (mut stream, peer) = connect(&rig.backend, "198.51.100.1:10443").unwrap();
    assert_eq!(peer.to_string(), "100.64.0.1");
    echo(&mut stream, b"out").unwrap();
    // The port means nothing on the other side.
    let error = connect(&rig.client, "100.64.0.1:10443").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

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
fn the_mss_is_clamped_both_ways_even_behind_a_chain_that_accepts() {
    let rig = rig_or_skip!();
    rig.proxy.ip("link set tun0 mtu 1280");
    rig.proxy.nft(
        "table inet foreign { chain forward { type filter hook forward priority -300; accept
        }
        }",
    );
    echo_server(&rig.backend, "[::]:80");
    let mut path = NftPath::new();
    let web = |dst, to: &str| rule("web", TAILNET, Protocol::Tcp, dst, 80, dnat(&[to], Snat::Keep));
    let rules = vec![
        web("100.64.0.1/32", "198.51.100.2:80"),
        web("2001:db8:64::1/128", "[2001:db8:1::2]:80"),
    ];
    rig.proxy.enter(|| path.apply(&table(rules)).unwrap());
    for (to, mss) in [("100.64.0.1:80", 1240), ("[2001:db8:64::1]:80", 1220)] {
        let (mut stream, _) = connect(&rig.client, to).unwrap();
        // What the SYN-ACK said, less the time stamp option.
        let seen = socket2::SockRef::from(&stream).tcp_mss().unwrap();
        assert_eq!(seen, mss - 12, "{to}");
        echo(&mut stream, &vec![9; 20_000]).unwrap();
    }
    let counter = rig.proxy.exec("nft", &["list", "counter", "inet", "sluice", "mss_clamped"]);
    assert!(counter.contains("packets 4 "), "{counter}");
}

#[test]
fn local_sockets_keep_their_traffic() {
    let rig = rig_or_skip!();
    udp_server(&rig.backend, "198.51.100.2:7");
    udp_server(&rig.proxy, "100.64.0.1:7");
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
    session.set_read_timeout(Some(support::DEADLINE)).unwrap();
    session.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");

    let socket = udp(&rig.client, "0.0.0.0:0");
    // Any port: the bound socket goes first. Exactly this port: the rule does.
    assert!(ask(&socket, "100.64.0.1:7", b"x").unwrap().starts_with("100.64.0.1:7"));
    assert!(ask(&socket, "100.64.0.1:8", b"x").unwrap().starts_with("198.51.100.2:7"));
    assert!(ask(&socket, "100.64.0.1:9", b"x").unwrap().starts_with("198.51.100.2:7"));
}

#[test]
fn counters_survive_applies_and_removal_leaves_no_trace() {
    let rig = rig_or_skip!();
    udp_server(&rig.backend, "198.51.100.2:7");
    let before = rig.proxy.traces();
    let mut path = NftPath::new();
    let to = || dnat(&["198.51.100.2:7"], Snat::Masquerade);
    let kept = || rule("kept", TAILNET, Protocol::Udp, "100.64.0.1/32", 7, to());
    let going = rule("going", TAILNET, Protocol::Udp, "100.64.0.1/32", 8, to());
    rig.proxy.enter(|| path.apply(&table(vec![kept(), going])).unwrap());
    let socket = udp(&rig.client, "0.0.0.0:0");
    for port in [7, 8] {
        ask(&socket, &format!("100.64.0.1:{port}"), b"x").unwrap();
    }
    let counts = |path: &NftPath| {
        let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
        (count(&snapshot, "kept").original_packets, count(&snapshot, "going").original_packets)
    };
    assert_eq!(counts(&path), (1, 1));
    for _ in 0..3 {
        rig.proxy.enter(|| path.apply(&table(vec![kept()])).unwrap());
        assert_eq!(counts(&path), (1, 1));
    }
    // Settings that change the chains.
    let fragments = proxy_rules::Fragments::Drop;
    let changed = RuleTable::new(vec![kept()], Settings { fragments, ..settings() });
    rig.proxy.enter(|| path.apply(&changed).unwrap());
    ask(&socket, "100.64.0.1:7", b"x").unwrap();
    assert_eq!(counts(&path), (2, 1));

    // A table that the kernel refuses changes nothing.
    let unsupported = rule(
        "kept",
        TAILNET,
        Protocol::Udp,
        "100.64.0.1/32",
        7,
        dnat(&["2001:db8::1"], Snat::Keep),
    );
    rig.proxy.enter(|| path.apply(&table(vec![unsupported])).unwrap_err());
    ask(&socket, "100.64.0.1:7", b"x").unwrap();
    assert_eq!(counts(&path), (3, 1));

    // A process that starts anew takes the table over, with what it had counted.
    let mut next = NftPath::new();
    rig.proxy.enter(|| next.apply(&changed).unwrap());
    ask(&socket, "100.64.0.1:7", b"x").unwrap();
    assert_eq!(counts(&next).0, 4);
    rig.proxy.enter(|| next.remove().unwrap());
    assert_eq!(rig.proxy.traces(), before);
    assert_eq!(counts(&next).0, 4);
    rig.proxy.enter(|| next.remove().unwrap());
}

#[test]
fn live_flows_move_out_and_back_in() {
    let rig = rig_or_skip!();
    echo_server(&rig.backend, "198.51.100.2:8080");
    echo_server(&rig.backend, "[2001:db8:1::2]:8080");
    udp_server(&rig.backend, "198.51.100.2:7");
    let rules = table(vec![
        rule(
            "web",
            TAILNET,
            Protocol::Tcp,
            "100.64.0.1/32",
            80,
            dnat(&["198.51.100.2:8080"], Snat::Masquerade),
        ),
        rule(
            "web6",
            TAILNET,
            Protocol::Tcp,
            "2001:db8:64::1/128",
            80,
            dnat(&["[2001:db8:1::2]:8080"], Snat::Keep),
        ),
        rule(
            "udp",
            TAILNET,
            Protocol::Udp,
            "100.64.0.1/32",
            7,
            dnat(&["198.51.100.2:7"], Snat::Masquerade),
        ),
    ]);
    let mut path = NftPath::new();
    rig.proxy.enter(|| path.apply(&rules).unwrap());
    let (mut four, _) = connect(&rig.client, "100.64.0.1:80").unwrap();
    let (mut six, _) = connect(&rig.client, "[2001:db8:64::1]:80").unwrap();
    let socket = udp(&rig.client, "0.0.0.0:0");
    ask(&socket, "100.64.0.1:7", b"x").unwrap();

    let mut flows = rig.proxy.enter(|| path.flows()).unwrap();
    flows.sort_by_key(|flow| flow.rule.clone());
    assert_eq!(flows.len(), 3);
    assert_eq!(flows[1].rule.as_ref().unwrap().as_str(), "web");
    assert_eq!(flows[1].client, four.local_addr().unwrap());
    assert_eq!(flows[1].frontend, "100.64.0.1:80".parse().unwrap());
    assert_eq!(flows[1].backend, "198.51.100.2:8080".parse().unwrap());
    assert_eq!(flows[1].source.ip(), "198.51.100.1".parse::<std::net::IpAddr>().unwrap());
    assert_eq!(flows[1].state, FlowState::Established);
    assert_eq!(flows[0].state, FlowState::Replied);
    assert!(!flows[2].is_snat() && flows[2].is_dnat());

    rig.proxy.enter(|| {
        path.remove().unwrap();
        path.apply(&rules).unwrap();
        assert!(path.flows().unwrap().is_empty());
        assert_eq!(path.adopt(&flows).unwrap(), 3);
        assert_eq!(path.adopt(&flows).unwrap(), 0);
    });
    let mut again = rig.proxy.enter(|| path.flows()).unwrap();
    again.sort_by_key(|flow| flow.rule.clone());
    for (was, is) in flows.iter().zip(&again) {
        assert_eq!(
            (was.client, was.frontend, was.source, was.backend, was.state),
            (is.client, is.frontend, is.source, is.backend, is.state)
        );
    }
    echo(&mut four, &[1; 5000]).unwrap();
    echo(&mut six, &[2; 5000]).unwrap();
    ask(&socket, "100.64.0.1:7", b"x").unwrap();
    let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
    for id in ["web", "web6", "udp"] {
        // Adopted flows are not new ones.
        assert_eq!(count(&snapshot, id).flows, 1, "{id}");
        assert!(count(&snapshot, id).original_packets > 1, "{id}");
    }
}

#[test]
fn what_cannot_be_carried_is_refused_by_name() {
    let rig = rig_or_skip!();
    let path = NftPath::new();
    let mut action = dnat(&["198.51.100.2:80"], Snat::Keep);
    if let Action::Dnat { proxy_protocol, .. } = &mut action {
        *proxy_protocol = true;
    }
    let before = rig.proxy.traces();
    let refused = table(vec![rule("web", TAILNET, Protocol::Tcp, "100.64.0.1/32", 80, action)]);
    let error = rig.proxy.enter(|| path.supports(&refused)).unwrap_err();
    assert!(error.to_string().contains("rule web: the PROXY protocol header"), "{error}");
    let mut settings = settings();
    settings.interfaces.cluster = vec!["eth7".into()];
    let error = rig.proxy.enter(|| path.supports(&RuleTable::empty(settings))).unwrap_err();
    assert!(matches!(error, Unsupported::Interface(name) if name == "eth7"));
    assert_eq!(rig.proxy.traces(), before);
}

#[test]
fn a_thousand_ports_install_fast_and_one_change_costs_little() {
    let rig = rig_or_skip!();
    let rules = |count: u16, last: &str| {
        let all = (0..count).map(|i| {
            let to = if i + 1 == count { last } else { "198.51.100.2:80" };
            let to = dnat(&[to], Snat::Masquerade);
            rule(&format!("port{i}"), TAILNET, Protocol::Tcp, "100.64.0.1/32", 1000 + i, to)
        });
        table(all.collect())
    };
    let mut path = NftPath::new();
    let mut timed = |what: &str, table: RuleTable| {
        let start = std::time::Instant::now();
        rig.proxy.enter(|| path.apply(&table).unwrap());
        let took = start.elapsed();
        eprintln!("{what}: {took:?}");
        took
    };
    let (first, second) = (rules(1000, "198.51.100.2:80"), rules(1000, "198.51.100.3:80"));
    let third = rules(999, "198.51.100.2:80");
    let cold = timed("1000 ports", first);
    let change = timed("one backend changed", second);
    let removed = timed("one port removed", third);
    // Generous: what is asserted is that a change does not install everything anew.
    assert!(change < cold, "{change:?} of {cold:?}");
    assert!(removed < cold, "{removed:?} of {cold:?}");
}
