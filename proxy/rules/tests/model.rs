//! The packet model: what the specification says, on packets.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test")]

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use proptest::prelude::*;
use proxy_rules::{
    DropReason, FlowState, Protocol, RuleTable, Side,
    model::{Device, Env, Model, Outcome, Socket, Verdict},
    packet::{Build, Headers, checksum, flag, parse},
    validate::validate,
};

const RULES: &str = "
settings: {snatPorts: {range: 20000-20009, reserved: [20003], tries: 10}, protectedSources: [100.64.0.7]}
ingress:
- name: web
  frontends: [100.64.0.9, 'fd7a::9']
  ports: [{protocol: tcp, port: 80, targetPort: 8080}, {protocol: udp, port: 53}, {protocol: icmp}]
  backends: [{address: 192.0.2.10}, {address: '2001:db8::10'}]
- {name: none, frontends: [100.64.0.10], ports: [{protocol: tcp, port: 80}, {protocol: udp, port: 80}]}
- {name: a, frontends: [100.64.0.11], ports: [{protocol: tcp, port: 1}], backends: [{address: 192.0.2.1}], sources: [100.64.1.0/24]}
routes:
- {name: lan, from: tailnet, destinations: [203.0.113.0/24], snat: keep}
deny:
- {name: no, from: tailnet, destinations: [203.0.113.1]}
- {name: away, from: tailnet, destinations: [203.0.113.2], action: drop}
";

fn table(body: &str) -> RuleTable {
    validate(&format!("apiVersion: sluice.dev/v1\nkind: ProxyRules\n{body}")).unwrap().table
}

fn model_of(body: &str) -> Model {
    let device = |address4: &str, address6: &str, mtu| Device {
        address4: Some(address4.parse().unwrap()),
        address6: Some(address6.parse().unwrap()),
        mtu,
        l3: true,
    };
    let env = Env {
        tailnet: Some(device("100.64.0.9", "fd7a::9", 1280)),
        cluster: Some(device("192.0.2.2", "2001:db8::2", 1500)),
        local: ["100.64.0.9", "192.0.2.2"].iter().map(|text| text.parse().unwrap()).collect(),
        ..Env::default()
    };
    Model::new(table(body), env)
}

fn model() -> Model {
    model_of(RULES)
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn host(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn carried(outcome: &Outcome, to: Side) -> (Headers, Vec<u8>) {
    let Verdict::Forward { side, bytes } = &outcome.verdict else { panic!("{outcome:?}") };
    assert_eq!(*side, to);
    let headers = parse(bytes, None).unwrap();
    assert!(checksum::is_right(bytes, &headers), "wrong checksum: {bytes:02x?}");
    (headers, bytes.clone())
}

fn answer(outcome: &Outcome) -> (DropReason, Headers, Vec<u8>) {
    let Verdict::Answer { bytes, reason } = &outcome.verdict else { panic!("{outcome:?}") };
    let headers = parse(bytes, None).unwrap();
    assert!(checksum::is_right(bytes, &headers), "wrong checksum: {bytes:02x?}");
    (*reason, headers, bytes.clone())
}

fn ends(headers: &Headers) -> (SocketAddr, SocketAddr) {
    (SocketAddr::new(headers.src, headers.src_port), SocketAddr::new(headers.dst, headers.dst_port))
}

#[test]
fn a_connection_is_translated_both_ways_and_counted() {
    let mut model = model();
    let (client, frontend) = (at("100.64.0.5:20001"), at("100.64.0.9:80"));
    let out = model.process(Side::Tailnet, &Build::syn(client, frontend).mss(1460).bytes());
    let (headers, bytes) = carried(&out, Side::Cluster);
    assert_eq!(ends(&headers), (at("192.0.2.2:20001"), at("192.0.2.10:8080")));
    assert_eq!((headers.ttl, &bytes[42..44]), (63, &1240_u16.to_be_bytes()[..]));
}

#[test]
fn a_reply_leaves_from_the_frontend() {
    let mut model = model();
    let (client, frontend) = (at("100.64.0.5:20001"), at("100.64.0.9:80"));
    carried(&model.process(Side::Tailnet, &Build::syn(client, frontend).bytes()), Side::Cluster);
    let back = Build::tcp(at("192.0.2.10:8080"), at("192.0.2.2:20001"), flag::SYN | flag::ACK);
    let (headers, _) = carried(&model.process(Side::Cluster, &back.bytes()), Side::Tailnet);
    assert_eq!(ends(&headers), (frontend, client));
    assert_eq!(model.flows()[0].state, FlowState::SynReceived);
    let ack = Build::tcp(client, frontend, flag::ACK).bytes();
    carried(&model.process(Side::Tailnet, &ack), Side::Cluster);
    assert_eq!(model.flows()[0].state, FlowState::Established);
    let counters = model.counters();
    let count = counters.series.values().next().unwrap();
    assert_eq!((count.flows, count.original_packets, count.original_bytes), (1, 2, 80));
    assert_eq!((count.reply_packets, count.reply_bytes, count.dropped), (1, 40, 0));
}

#[test]
fn echo_keeps_its_identifier_where_it_can() {
    let mut model = model();
    let ping = Build::echo(host("fd7a::5"), host("fd7a::9"), 20001, false).bytes();
    let (headers, _) = carried(&model.process(Side::Tailnet, &ping), Side::Cluster);
    assert_eq!(ends(&headers), (at("[2001:db8::2]:20001"), at("[2001:db8::10]:20001")));
    let pong = Build::echo(host("2001:db8::10"), host("2001:db8::2"), 20001, true).bytes();
    let (headers, _) = carried(&model.process(Side::Cluster, &pong), Side::Tailnet);
    assert_eq!((headers.src, headers.dst), (host("fd7a::9"), host("fd7a::5")));
}

#[test]
fn refusals_are_told_to_the_sender() {
    let mut model = model();
    let syn = Build::syn(at("100.64.0.5:1"), at("100.64.0.10:80")).bytes();
    let (reason, headers, bytes) = answer(&model.process(Side::Tailnet, &syn));
    assert_eq!((reason, bytes[33]), (DropReason::NoBackend, flag::RST | flag::ACK));
    assert_eq!(bytes[28..32], 1001_u32.to_be_bytes());
    assert_eq!(ends(&headers), (at("100.64.0.10:80"), at("100.64.0.5:1")));
    let udp = Build::udp(at("100.64.0.5:1"), at("203.0.113.1:9")).payload(*b"12345").bytes();
    let (reason, _, bytes) = answer(&model.process(Side::Tailnet, &udp));
    assert_eq!((reason, bytes.len(), &bytes[20..22]), (DropReason::Rejected, 56, &[3, 3][..]));
    let udp = Build::udp(at("100.64.0.5:1"), at("203.0.113.2:9")).bytes();
    let out = model.process(Side::Tailnet, &udp);
    assert_eq!(out.verdict, Verdict::Drop(DropReason::RuleDrop));
    let old = Build::syn(at("100.64.0.5:1"), at("203.0.113.9:9")).ttl(1).bytes();
    let (reason, _, bytes) = answer(&model.process(Side::Tailnet, &old));
    assert_eq!((reason, bytes[20]), (DropReason::TtlExpired, 11));
    assert_eq!(model.counters().drops.values().sum::<u64>(), 4);
}

#[test]
fn what_no_rule_names_is_dropped_from_the_tailnet_and_passed_from_the_cluster() {
    let mut model = model();
    let udp = Build::udp(at("100.64.0.5:1"), at("198.51.100.1:9")).bytes();
    let dropped = Verdict::Drop(DropReason::NoRule);
    assert_eq!(model.process(Side::Tailnet, &udp).verdict, dropped);
    assert_eq!(model.process(Side::Cluster, &udp).verdict, Verdict::Pass);
    let local = Build::udp(at("100.64.0.5:1"), at("100.64.0.9:9")).bytes();
    assert_eq!(model.process(Side::Tailnet, &local).verdict, Verdict::Pass);
    let forged = Build::udp(at("100.64.0.7:1"), at("198.51.100.1:9")).bytes();
    let spoofed = Verdict::Drop(DropReason::SpoofedSource);
    assert_eq!(model.process(Side::Cluster, &forged).verdict, spoofed);
}

#[test]
fn sources_limit_who_may_connect_and_the_rest_is_counted() {
    // R34: a may use target A only.
    let mut model = model();
    let good = Build::syn(at("100.64.1.5:20001"), at("100.64.0.11:1")).bytes();
    carried(&model.process(Side::Tailnet, &good), Side::Cluster);
    let bad = Build::syn(at("100.64.2.5:20001"), at("100.64.0.11:1")).bytes();
    assert_eq!(model.process(Side::Tailnet, &bad).verdict, Verdict::Drop(DropReason::NoRule));
    assert_eq!(model.counters().drops[&DropReason::NoRule], 1);
}

#[test]
fn local_sockets_keep_their_packets() {
    let mut model = model();
    let (client, frontend) = (at("100.64.0.5:20001"), at("100.64.0.9:80"));
    let socket = Socket { protocol: Protocol::Tcp, local: frontend, remote: Some(client) };
    model.env_mut().sockets.push(socket);
    let syn = Build::syn(client, frontend).bytes();
    assert_eq!(model.process(Side::Tailnet, &syn).verdict, Verdict::Pass);
    model.env_mut().sockets = vec![Socket { remote: None, ..socket }];
    carried(&model.process(Side::Tailnet, &syn), Side::Cluster);
}

#[test]
fn a_small_pool_is_used_up_without_reserved_ports_and_without_merging_flows() {
    // R20.
    let mut model = model();
    let mut sources = Vec::new();
    for client in 0..9_u16 {
        let syn = Build::syn(at(&format!("100.64.0.5:{}", 30000 + client)), at("100.64.0.9:80"));
        let (headers, _) = carried(&model.process(Side::Tailnet, &syn.bytes()), Side::Cluster);
        sources.push(headers.src_port);
    }
    sources.sort_unstable();
    sources.dedup();
    assert_eq!(sources, [20000, 20001, 20002, 20004, 20005, 20006, 20007, 20008, 20009]);
    let syn = Build::syn(at("100.64.0.5:40000"), at("100.64.0.9:80")).bytes();
    let out = model.process(Side::Tailnet, &syn);
    assert_eq!(out.verdict, Verdict::Drop(DropReason::PortsExhausted));
}

#[test]
fn an_icmp_error_with_eight_quoted_bytes_finds_its_flow() {
    // R11.
    let mut model = model();
    let (client, frontend) = (at("100.64.0.5:30001"), at("100.64.0.9:80"));
    let out = model.process(Side::Tailnet, &Build::syn(client, frontend).bytes());
    let (_, sent) = carried(&out, Side::Cluster);
    let error = Build::icmp(host("192.0.2.77"), host("192.0.2.2"), 3, 4, [0, 0, 5, 0])
        .payload(&sent[..28])
        .bytes();
    let (headers, bytes) = carried(&model.process(Side::Cluster, &error), Side::Tailnet);
    assert_eq!((headers.src, headers.dst), (host("100.64.0.9"), client.ip()));
    let quoted = &bytes[28..];
    assert_eq!((&quoted[12..16], &quoted[16..20]), (&[100, 64, 0, 5][..], &[100, 64, 0, 9][..]));
    assert_eq!(quoted[20..24], [117, 49, 0, 80]);
    assert_eq!(checksum::sum(&quoted[..20]), 0xffff);
}

#[test]
fn later_fragments_follow_the_first() {
    let mut model = model();
    let (client, frontend) = (at("100.64.0.5:20001"), at("100.64.0.9:53"));
    let later = Build::udp(client, frontend).payload([7; 16]).fragment(9, 1208, false).bytes();
    let lost = Verdict::Drop(DropReason::FragmentWithoutFirst);
    assert_eq!(model.process(Side::Tailnet, &later).verdict, lost);
    let first = Build::udp(client, frontend).payload([7; 1200]).fragment(9, 0, true).bytes();
    let out = model.process(Side::Tailnet, &first);
    assert!(matches!(out.verdict, Verdict::Forward { .. }), "{out:?}");
    let out = model.process(Side::Tailnet, &later);
    let Verdict::Forward { bytes, .. } = out.verdict else { panic!("{out:?}") };
    assert_eq!(bytes[12..20], [192, 0, 2, 2, 192, 0, 2, 10]);
    assert_eq!(bytes[20..], [7; 16]);
}

#[test]
fn flows_of_a_removed_backend_end_and_those_of_others_go_on() {
    let mut model = model();
    let (client, frontend) = (at("100.64.0.5:20001"), at("100.64.0.9:80"));
    let dns = Build::udp(client, at("100.64.0.9:53")).bytes();
    carried(&model.process(Side::Tailnet, &Build::syn(client, frontend).bytes()), Side::Cluster);
    carried(&model.process(Side::Tailnet, &dns), Side::Cluster);
    model.apply(table(&RULES.replace("192.0.2.10}", "192.0.2.11}")));
    let ack = Build::tcp(client, frontend, flag::ACK).numbers(5, 77).bytes();
    let (reason, _, bytes) = answer(&model.process(Side::Tailnet, &ack));
    assert_eq!(
        (reason, bytes[33], &bytes[24..28]),
        (DropReason::BackendGone, flag::RST, &[0, 0, 0, 77][..])
    );
    let (headers, _) = carried(&model.process(Side::Tailnet, &dns), Side::Cluster);
    assert_eq!(headers.dst, host("192.0.2.11"));
    model.apply(table(&RULES.replace("192.0.2.10}", "192.0.2.11, state: draining}")));
    carried(&model.process(Side::Tailnet, &dns), Side::Cluster);
}

#[test]
fn flows_age_and_the_unassured_go_first_when_the_table_is_full() {
    let mut model = model_of(&RULES.replace("settings: {", "settings: {maxFlows: 1024, "));
    for port in 0..1024_u16 {
        let udp = Build::udp(at(&format!("100.64.0.5:{}", 1000 + port)), at("203.0.113.9:9"));
        carried(&model.process(Side::Tailnet, &udp.bytes()), Side::Cluster);
    }
    let reply = Build::udp(at("203.0.113.9:9"), at("100.64.0.5:1000")).bytes();
    carried(&model.process(Side::Cluster, &reply), Side::Tailnet);
    let more = Build::udp(at("100.64.0.6:1"), at("203.0.113.9:9")).bytes();
    let full = Verdict::Drop(DropReason::FlowTableFull);
    assert_eq!(model.process(Side::Tailnet, &more).verdict, full);
    model.age(Duration::from_secs(1));
    assert!(model.flows().len() < 1024 * 9 / 10 + 1);
    assert!(model.flows().iter().any(|flow| flow.state == FlowState::Replied));
    model.age(Duration::from_secs(31));
    assert_eq!(model.flows().len(), 1);
    model.age(Duration::from_secs(121));
    assert!(model.flows().is_empty());
}

#[test]
fn packets_that_are_too_big_are_told_so() {
    let mut model = model();
    let back =
        |size: usize| Build::udp(at("192.0.2.10:53"), at("192.0.2.2:20001")).payload(vec![0; size]);
    let dns = Build::udp(at("100.64.0.5:20001"), at("100.64.0.9:53")).bytes();
    carried(&model.process(Side::Tailnet, &dns), Side::Cluster);
    carried(&model.process(Side::Cluster, &back(1252).bytes()), Side::Tailnet);
    let (reason, _, bytes) = answer(&model.process(Side::Cluster, &back(1253).df().bytes()));
    assert_eq!(
        (reason, &bytes[20..22], &bytes[26..28]),
        (DropReason::TooBig, &[3, 4][..], &[5, 0][..])
    );
    let silent = model.process(Side::Cluster, &back(1253).bytes());
    assert_eq!(silent.verdict, Verdict::Drop(DropReason::TooBig));
}

/// A packet that a rule names, of any shape.
fn packets() -> impl Strategy<Value = Vec<u8>> {
    let ports = (1..=u16::MAX, prop::sample::select(vec![53_u16, 80, 9]));
    let v6 = prop::bool::ANY;
    (ports, v6, 0..3_u8, 0..64_usize, any::<u8>()).prop_map(|((from, to), v6, kind, len, flags)| {
        let (src, dst) = if v6 { ("fd7a::5", "fd7a::9") } else { ("100.64.0.5", "100.64.0.9") };
        let (src, dst) = (SocketAddr::new(host(src), from), SocketAddr::new(host(dst), to));
        match kind {
            0 => Build::tcp(src, dst, flags).mss(1460),
            1 => Build::udp(src, dst),
            _ => Build::echo(src.ip(), dst.ip(), from, false),
        }
        .payload(vec![flags; len])
        .bytes()
    })
}

proptest! {
    #[test]
    fn garbage_and_truncated_packets_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), packet in packets()) {
        let mut model = model();
        model.process(Side::Tailnet, &bytes);
        for cut in 0..packet.len() {
            model.process(Side::Tailnet, &packet[..cut]);
            let verdict = model.process(Side::Cluster, &packet[..cut]).verdict;
            prop_assert!(!matches!(verdict, Verdict::Forward { .. }), "carried {} bytes", cut);
        }
        let mut broken = packet;
        for (byte, garbage) in broken.iter_mut().zip(&bytes) {
            *byte ^= garbage & garbage.rotate_left(3) & garbage.rotate_left(5);
        }
        model.process(Side::Tailnet, &broken);
    }

    #[test]
    fn a_reply_undoes_its_request(packet in packets()) {
        let mut model = model();
        let before = parse(&packet, None).unwrap();
        if let Verdict::Forward { bytes, .. } = model.process(Side::Tailnet, &packet).verdict {
            let there = parse(&bytes, None).unwrap();
            prop_assert!(checksum::is_right(&bytes, &there));
            let (src, dst) = ends(&there);
            let back = match there.protocol {
                6 => Build::tcp(dst, src, flag::ACK),
                17 => Build::udp(dst, src),
                _ => Build::echo(dst.ip(), src.ip(), src.port(), true),
            };
            let out = model.process(Side::Cluster, &back.bytes());
            let (headers, _) = carried(&out, Side::Tailnet);
            let (src, dst) = ends(&before);
            prop_assert_eq!(ends(&headers), (dst, src));
        }
    }

    #[test]
    fn tuples_stay_unique_under_translation(clients in prop::collection::hash_set((1..5_u8, 1..=u16::MAX), 1..40)) {
        let wide = RULES.replace("20000-20009", "20000-20049").replace("tries: 10", "tries: 50");
        let mut model = model_of(&wide);
        let mut seen = std::collections::HashSet::new();
        for (last, port) in clients {
            let syn = Build::syn(at(&format!("100.64.0.{last}:{port}")), at("100.64.0.9:80")).bytes();
            let (headers, _) = carried(&model.process(Side::Tailnet, &syn), Side::Cluster);
            prop_assert!(seen.insert(ends(&headers)));
        }
    }

    #[test]
    fn a_table_is_the_same_in_any_order(seed in any::<u64>()) {
        let table = table(RULES);
        let mut rules = table.rules().to_vec();
        let count = rules.len() as u64;
        for i in 0..rules.len() {
            let other = seed.wrapping_mul(i as u64 * 2 + 1).wrapping_add(seed >> 7) % count;
            rules.swap(i, usize::try_from(other).unwrap());
        }
        let shuffled = RuleTable::new(rules, table.settings().clone());
        prop_assert_eq!(&shuffled, &table);
        prop_assert_eq!(shuffled.generation(), table.generation());
    }
}
