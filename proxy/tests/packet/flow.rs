//! Flows: source ports, a full table, the choice of backends, counters, and the express path over XDP.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use proxy_rules::{
    Action, Affinity, Backends, DropReason, PortRange, Protocol, RuleTable, Settings, Side, Snat,
    SnatPorts,
    packet::{Build, flag, parse},
};
use proxy_testbed::poll_until;

use crate::support::*;

const XDP_PASS: i32 = 2;
const XDP_REDIRECT: i32 = 4;

fn pool(first: u16, last: u16, reserved: Vec<u16>) -> Settings {
    let snat_ports = SnatPorts { first, last, reserved, tries: 64 };
    Settings { snat_ports, ..Settings::default() }
}

#[test]
fn source_ports_are_unique_and_never_reserved_up_to_the_last_of_the_pool() {
    kernel_or_skip!();
    for protocol in [Build::udp, Build::syn] {
        let settings = pool(20_000, 20_049, (20_010..20_020).collect());
        let mut shadow = world_with(service(Snat::Masquerade), settings);
        let mut sources = BTreeSet::new();
        for number in 0..40 {
            let sent = protocol(V4.client(4000 + number), V4.frontend(80)).bytes();
            let headers = parse(&carried(&mut shadow, Side::Tailnet, sent), None).unwrap();
            assert!((20_000..20_050).contains(&headers.src_port), "{headers:?}");
            assert!(!(20_010..20_020).contains(&headers.src_port), "{headers:?}");
            assert!(sources.insert(headers.src_port), "{headers:?} is taken");
        }
        let sent = protocol(V4.client(5000), V4.frontend(80)).bytes();
        dropped(&mut shadow, Side::Tailnet, sent, DropReason::PortsExhausted);
        assert_eq!(shadow.flow_pairs().unwrap(), (40, 0));
        // Those who have a port keep it.
        carried(&mut shadow, Side::Tailnet, protocol(V4.client(4000), V4.frontend(80)).bytes());
    }
}

#[test]
fn a_full_table_refuses_new_flows_and_keeps_the_old_ones_whole() {
    kernel_or_skip!();
    let settings = Settings { max_flows: 16, ..Settings::default() };
    let mut shadow = world_with(service(Snat::Keep), settings);
    carried(&mut shadow, Side::Tailnet, Build::syn(V4.client(4000), V4.frontend(80)).bytes());
    for number in 0..15 {
        let sent = Build::syn(V4.client(5000 + number), V4.frontend(80)).bytes();
        carried(&mut shadow, Side::Tailnet, sent);
    }
    for number in 0..200 {
        let sent = Build::syn(V4.client(6000 + number), V4.frontend(80)).bytes();
        dropped(&mut shadow, Side::Tailnet, sent, DropReason::FlowTableFull);
    }
    assert_eq!(shadow.flow_pairs().unwrap(), (16, 0));
    let ack = |from, to| Build::tcp(from, to, flag::ACK).payload("still here");
    carries(
        &mut shadow,
        Side::Cluster,
        ack(V4.backend(8080), V4.client(4000)),
        ack(V4.frontend(80), V4.client(4000)).ttl(63),
    );
    carries(
        &mut shadow,
        Side::Tailnet,
        ack(V4.client(4000), V4.frontend(80)),
        ack(V4.client(4000), V4.backend(8080)).ttl(63),
    );
}

#[test]
fn a_flow_that_would_be_its_own_reply_takes_another_port() {
    kernel_or_skip!();
    for f in FAMILIES {
        let to = || Action::Forward { to: Side::Tailnet, snat: Snat::Keep };
        let mut shadow = world(vec![rule("hairpin", None, f.client, PortRange::ANY, to())]);
        for protocol in [Build::udp, Build::syn] {
            let sent = protocol(f.client(4000), f.client(4000)).bytes();
            let left = parse(&carried(&mut shadow, Side::Tailnet, sent), None).unwrap();
            assert_eq!((left.src, left.dst, left.dst_port), (f.client, f.client, 4000));
            assert_ne!(left.src_port, 4000, "its reply would be itself");
            let reply = protocol(f.client(4000), f.client(left.src_port)).bytes();
            let back = parse(&carried(&mut shadow, Side::Tailnet, reply), None).unwrap();
            assert_eq!((back.src_port, back.dst_port), (4000, 4000));
        }
        let ping = Build::echo(f.client, f.client, 7, false).bytes();
        let left = parse(&carried(&mut shadow, Side::Tailnet, ping), None).unwrap();
        assert_ne!(left.src_port, 7, "its reply would be itself");
        assert_eq!(shadow.flow_pairs().unwrap(), (3, 0));
    }
}

/// How many of three backends a client's flows reach.
fn spread(affinity: Affinity) -> usize {
    let list = (20..23).map(|last| backend(format!("203.0.113.{last}").parse().unwrap(), None));
    let backends = Backends { list: list.collect(), affinity };
    let to = Action::Dnat { backends, snat: Snat::Keep, proxy_protocol: false };
    let mut shadow = world(vec![rule("web", Some(Protocol::Udp), V4.frontend, port(80), to)]);
    let mut reached = BTreeSet::new();
    for number in 0..40 {
        let sent = Build::udp(V4.client(4000 + number), V4.frontend(80)).bytes();
        reached.insert(parse(&carried(&mut shadow, Side::Tailnet, sent), None).unwrap().dst);
    }
    reached.len()
}

#[test]
fn flows_are_spread_over_backends_unless_a_client_belongs_to_one() {
    kernel_or_skip!();
    assert_eq!(spread(Affinity::Flow), 3);
    assert_eq!(spread(Affinity::ClientIp), 1);
}

#[test]
fn a_range_is_counted_as_one_or_port_by_port_and_ends_at_its_edges() {
    kernel_or_skip!();
    for per_port in [false, true] {
        let to = action(vec![backend(V4.backend, None)], Snat::Keep);
        let ports = PortRange::new(5001, 5006).unwrap();
        let mut range = rule("range", Some(Protocol::Udp), V4.frontend, ports, to);
        range.count_per_port = per_port;
        let mut shadow = world(vec![range]);
        for number in [5001, 5006, 5006] {
            let sent = Build::udp(V4.client(4000), V4.frontend(number)).bytes();
            carried(&mut shadow, Side::Tailnet, sent);
        }
        for number in [5000, 5007] {
            let sent = Build::udp(V4.client(4000), V4.frontend(number)).bytes();
            dropped(&mut shadow, Side::Tailnet, sent, DropReason::NoRule);
        }
        let series = shadow.counters().unwrap().series;
        let counted: Vec<_> = series
            .iter()
            .filter(|(_, count)| count.original_packets > 0)
            .map(|(series, count)| (series.port, series.last_port, count.original_packets))
            .collect();
        let wanted = if per_port {
            vec![(Some(5001), None, 1), (Some(5006), None, 2)]
        } else {
            vec![(Some(5001), Some(5006), 3)]
        };
        assert_eq!(counted, wanted);
    }
}

#[test]
fn a_flow_whose_backend_is_gone_is_reset_once_and_then_unknown() {
    kernel_or_skip!();
    let table = |rules| RuleTable::new(rules, Settings { max_flows: 4096, ..Settings::default() });
    let mut shadow = world(service(Snat::Keep));
    let ack = Build::tcp(V4.client(4000), V4.frontend(80), flag::ACK).numbers(1000, 77).bytes();
    carried(&mut shadow, Side::Tailnet, ack.clone());
    shadow.apply(&table(vec![])).unwrap();
    let got = answered(&mut shadow, Side::Tailnet, &ack, DropReason::BackendGone);
    let headers = parse(&got, None).unwrap();
    let ends = [(headers.src, headers.src_port), (headers.dst, headers.dst_port)];
    assert_eq!(ends.map(SocketAddr::from), [V4.frontend(80), V4.client(4000)]);
    assert_eq!(shadow.flow_pairs().unwrap(), (0, 0));
    dropped(&mut shadow, Side::Tailnet, ack, DropReason::NoRule);
}

#[test]
fn xdp_carries_known_flows_once_the_next_hop_is_known_and_nothing_else() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Masquerade));
        let ask = || frame(&Build::udp(f.client(4000), f.frontend(80)).payload("ask").bytes());
        let tell = frame(&Build::udp(f.backend(8080), f.masquerade(4000)).payload("tell").bytes());
        // No flow yet; then a flow whose backend's Ethernet address nobody has shown.
        assert_eq!(shadow.run_xdp(Side::Tailnet, &ask()).unwrap().action, XDP_PASS);
        assert_eq!(shadow.run(Side::Tailnet, &ask()).unwrap().action, REDIRECT);
        let verdict = shadow.run_xdp(Side::Tailnet, &ask()).unwrap();
        assert_eq!((verdict.action, hex(&verdict.frame)), (XDP_PASS, hex(&ask())));
        // The client's was shown by its request, and the backend's is by its reply.
        let verdict = shadow.run_xdp(Side::Cluster, &tell).unwrap();
        let expected = Build::udp(f.frontend(80), f.client(4000)).payload("tell").ttl(63).bytes();
        assert_eq!(verdict.action, XDP_REDIRECT);
        assert_eq!(verdict.frame[..12], [PEER_MAC, OUR_MAC].concat());
        assert_eq!(hex(&verdict.frame[14..]), hex(&expected));
        let verdict = shadow.run_xdp(Side::Tailnet, &ask()).unwrap();
        let expected = Build::udp(f.masquerade(4000), f.backend(8080)).payload("ask").ttl(63);
        assert_eq!(verdict.action, XDP_REDIRECT);
        assert_eq!(hex(&verdict.frame[14..]), hex(&expected.bytes()));
        let counted = count(&shadow, "web");
        assert_eq!((counted.original_packets, counted.reply_packets), (2, 1));
    }
}

#[test]
fn a_flow_silent_for_so_long_that_both_hops_are_stale_comes_back_to_the_express_path() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Masquerade));
    let ask = frame(&Build::udp(V4.client(4000), V4.frontend(80)).bytes());
    let tell = frame(&Build::udp(V4.backend(8080), V4.masquerade(4000)).bytes());
    // As on a device: what XDP lets pass goes to TC.
    let mut carry = |side, frame: &[u8]| {
        let express = shadow.run_xdp(side, frame).unwrap().action == XDP_REDIRECT;
        if !express {
            assert_eq!(shadow.run(side, frame).unwrap().action, REDIRECT);
        }
        express
    };
    carry(Side::Tailnet, &ask);
    assert!(carry(Side::Cluster, &tell));
    assert!(carry(Side::Tailnet, &ask));
    // Longer than a learned hop is trusted: ten ticks of 1.07 s. Any packet meanwhile would keep it fresh.
    let (silent, since) = (Duration::from_secs(12), Instant::now());
    poll_until(silent * 2, "the hops are stale", || since.elapsed() >= silent).unwrap();
    assert!(!carry(Side::Tailnet, &ask));
    assert!(!carry(Side::Cluster, &tell));
    // Each direction looks after the other every four ticks.
    poll_until(Duration::from_secs(10), "XDP carries both directions", || {
        let there = carry(Side::Tailnet, &ask);
        let back = carry(Side::Cluster, &tell);
        there && back
    })
    .unwrap();
}
