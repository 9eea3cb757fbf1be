//! What is carried arrives, and is counted as it was.

use std::{io::ErrorKind, net::UdpSocket};

use proxy::data_path::{DataPath as _, nftables::NftPath};
use proxy_rules::{Action, Affinity, PortRange, Protocol, Snat};

use crate::support::*;

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

#[test]
fn new_flows_spread_over_backends_and_a_flow_stays_where_it_is() {
    let rig = rig_or_skip!();
    udp_server(&rig.backend, "198.51.100.2:53");
    udp_server(&rig.backend, "198.51.100.3:53");
    let mut path = NftPath::new();
    let to = dnat(&["198.51.100.2:53", "198.51.100.3:53"], Snat::Masquerade);
    let both = table(vec![rule("dns", TAILNET, Protocol::Udp, "100.64.0.1/32", 53, to)]);
    rig.proxy.enter(|| path.apply(&both).unwrap());
    let answers: Vec<(UdpSocket, String)> = (0..32)
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
fn each_port_of_a_range_counts_by_itself_and_the_rest_of_the_address_together() {
    let rig = rig_or_skip!();
    for port in [9000, 9001, 9500] {
        udp_server(&rig.backend, &format!("198.51.100.2:{port}"));
    }
    let mut path = NftPath::new();
    let to = || dnat(&["198.51.100.2"], Snat::Masquerade);
    let mut each = rule("each", TAILNET, Protocol::Udp, "100.64.0.1/32", 0, to());
    each.matches.ports = PortRange::new(9000, 9001).unwrap();
    each.count_per_port = true;
    let rest = rule("rest", TAILNET, Protocol::Udp, "100.64.0.1/32", 0, to());
    rig.proxy.enter(|| path.apply(&table(vec![each, rest])).unwrap());
    let socket = udp(&rig.client, "0.0.0.0:0");
    for port in [9000, 9001, 9001, 9500] {
        ask(&socket, &format!("100.64.0.1:{port}"), b"x").unwrap();
    }
    let snapshot = rig.proxy.enter(|| path.counters()).unwrap();
    let counted: Vec<_> = snapshot
        .series
        .iter()
        .map(|(series, count)| (series.rule.as_str(), series.port, count.original_packets))
        .collect();
    assert_eq!(counted, [("each", Some(9000), 1), ("each", Some(9001), 2), ("rest", None, 1)]);
}

#[test]
fn a_client_keeps_its_backend_across_flows_where_affinity_says_so() {
    let rig = rig_or_skip!();
    udp_server(&rig.backend, "198.51.100.2:7");
    udp_server(&rig.backend, "198.51.100.3:7");
    let mut path = NftPath::new();
    let mut to = dnat(&["198.51.100.2:7", "198.51.100.3:7"], Snat::Masquerade);
    if let Action::Dnat { backends, .. } = &mut to {
        backends.affinity = Affinity::ClientIp;
    }
    let sticky = rule("sticky", TAILNET, Protocol::Udp, "100.64.0.1/32", 7, to);
    rig.proxy.enter(|| path.apply(&table(vec![sticky])).unwrap());
    let answers: std::collections::BTreeSet<_> = (0..16)
        .map(|_| ask(&udp(&rig.client, "0.0.0.0:0"), "100.64.0.1:7", b"x").unwrap())
        .collect();
    assert_eq!(answers.len(), 1, "{answers:?}");
}

#[test]
fn an_exit_route_masquerades_and_a_more_specific_rule_goes_first() {
    let rig = rig_or_skip!();
    udp_server(&rig.backend, "198.51.100.2:7");
    udp_server(&rig.backend, "198.51.100.3:7");
    udp_server(&rig.backend, "[2001:db8:1::2]:7");
    let mut path = NftPath::new();
    let forward = |snat| Action::Forward { to: CLUSTER, snat };
    let all = |id, dst: &str, snat| {
        let mut rule = rule(id, TAILNET, Protocol::Udp, dst, 0, forward(snat));
        rule.matches.protocol = None;
        rule
    };
    let rules = vec![
        all("exit4", "0.0.0.0/0", Snat::Masquerade),
        all("exit6", "::/0", Snat::Masquerade),
        rule("kept", TAILNET, Protocol::Udp, "198.51.100.3/32", 0, forward(Snat::Keep)),
    ];
    rig.proxy.enter(|| path.apply(&table(rules)).unwrap());
    let (four, six) = (udp(&rig.client, "0.0.0.0:0"), udp(&rig.client, "[::]:0"));
    assert!(ask(&four, "198.51.100.2:7", b"x").unwrap().ends_with(" 198.51.100.1"));
    assert!(ask(&four, "198.51.100.3:7", b"x").unwrap().ends_with(" 100.64.0.2"));
    assert!(ask(&six, "[2001:db8:1::2]:7", b"x").unwrap().ends_with(" 2001:db8:1::1"));
    assert!(ping(&rig.client, "198.51.100.2") && ping(&rig.client, "2001:db8:1::3"));
}
