//! What is not carried: left alone, dropped with a reason, or answered.

use std::net::IpAddr;

use proxy::data_path::Stance;
use proxy_rules::{
    Action, DropReason, PortRange, Protocol, Rule, RuleTable, Settings, Side, Snat, Unmatched,
    packet::{Build, ICMPV6, checksum, flag, octets, parse},
};

use crate::support::*;

/// The IP packet of an answer: TTL 64, identification 0, not to be fragmented.
fn answer(src: IpAddr, dst: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u16;
    let mut ip = if src.is_ipv6() {
        let [a, b] = len.to_be_bytes();
        vec![0x60, 0, 0, 0, a, b, protocol, 64]
    } else {
        let [a, b] = (len + 20).to_be_bytes();
        vec![0x45, 0, a, b, 0, 0, 0x40, 0, 64, protocol, 0, 0]
    };
    ip.extend([octets(src), octets(dst)].concat());
    let l4 = ip.len();
    ip.extend(payload);
    if !src.is_ipv6() {
        checksum::fill_ipv4(&mut ip, l4);
    }
    let headers = parse(&ip, None).unwrap();
    checksum::fill_transport(&mut ip, &headers);
    ip
}

/// An ICMP error about a packet, quoting its IP header and 8 bytes.
fn error(f: Family, about: &[u8], (v4, v6): ([u8; 2], [u8; 2]), rest: [u8; 4]) -> Vec<u8> {
    let l4 = parse(about, None).unwrap().l4;
    let ([kind, code], protocol) = if f.is_v6() { (v6, ICMPV6) } else { (v4, 1) };
    let message = [&[kind, code, 0, 0], &rest[..], &about[..l4 + 8]].concat();
    answer(f.frontend, f.client, protocol, &message)
}

fn reset(f: Family, seq: u32, ack: u32, flags: u8) -> Vec<u8> {
    let ports = [80u16.to_be_bytes(), 4000u16.to_be_bytes()].concat();
    let numbers = [seq.to_be_bytes(), ack.to_be_bytes()].concat();
    let segment = [&ports[..], &numbers, &[0x50, flags, 0, 0, 0, 0, 0, 0]].concat();
    answer(f.frontend, f.client, 6, &segment)
}

#[test]
fn a_packet_whose_time_is_up_is_answered_with_time_exceeded() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Masquerade));
        // Both as a flow's first packet and as one of a known flow.
        for _ in 0..2 {
            for ttl in [0, 1] {
                let sent = Build::udp(f.client(4000), f.frontend(80)).payload("abcdefgh").ttl(ttl);
                let sent = sent.bytes();
                let got = answered(&mut shadow, Side::Tailnet, &sent, DropReason::TtlExpired);
                assert_eq!(hex(&got), hex(&error(f, &sent, ([11, 0], [3, 0]), [0; 4])));
            }
            carried(&mut shadow, Side::Tailnet, Build::udp(f.client(4000), f.frontend(80)).bytes());
        }
        assert_eq!(count(&shadow, "web").dropped, 4);
    }
}

#[test]
fn a_packet_too_big_for_the_way_out_is_answered_with_the_mtu() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Keep));
        carried(&mut shadow, Side::Tailnet, Build::udp(f.client(4000), f.frontend(80)).bytes());
        let reply = |len| Build::udp(f.backend(8080), f.client(4000)).payload(vec![7; len]).df();
        let header = if f.is_v6() { 48 } else { 28 };
        carried(&mut shadow, Side::Cluster, reply(1280 - header).bytes());
        let sent = reply(1281 - header).bytes();
        let got = answered(&mut shadow, Side::Cluster, &sent, DropReason::TooBig);
        let about = Family { client: f.backend, frontend: f.client, ..f };
        assert_eq!(hex(&got), hex(&error(about, &sent, ([3, 4], [2, 0]), [0, 0, 5, 0])));
    }
    let mut shadow = world(service(Snat::Keep));
    carried(&mut shadow, Side::Tailnet, Build::udp(V4.client(4000), V4.frontend(80)).bytes());
    let large = Build::udp(V4.backend(8080), V4.client(4000)).payload(vec![7; 1300]);
    dropped(&mut shadow, Side::Cluster, large.bytes(), DropReason::TooBig);
}

fn rejecting() -> Vec<Rule> {
    let reject = |f: &Family| rule("no", None, f.frontend, PortRange::ANY, Action::Reject);
    FAMILIES.iter().map(reject).collect()
}

#[test]
fn a_rejected_segment_is_answered_with_the_reset_of_rfc_9293() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(rejecting());
        let (fin, syn, rst, ack) = (flag::FIN, flag::SYN, flag::RST, flag::ACK);
        // Flags, payload -> sequence number, acknowledgement, flags of the reset.
        for (flags, payload, seq, acked, answer) in [
            (syn, 0, 0, 1001, rst | ack),
            (syn, 5, 0, 1006, rst | ack),
            (fin, 0, 0, 1001, rst | ack),
            (0, 3, 0, 1003, rst | ack),
            (ack, 9, 77, 0, rst),
            (syn | ack, 0, 77, 0, rst),
            (fin | ack, 0, 77, 0, rst),
        ] {
            let sent = Build::tcp(f.client(4000), f.frontend(80), flags).numbers(1000, 77);
            let sent = sent.mss(1400).payload(vec![1; payload]).bytes();
            let got = answered(&mut shadow, Side::Tailnet, &sent, DropReason::Rejected);
            assert_eq!(hex(&got), hex(&reset(f, seq, acked, answer)), "flags {flags}");
        }
        let sent = Build::tcp(f.client(4000), f.frontend(80), rst);
        dropped(&mut shadow, Side::Tailnet, sent.bytes(), DropReason::Rejected);
    }
}

#[test]
fn a_rejected_datagram_is_answered_with_port_unreachable() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(rejecting());
        for sent in [
            Build::udp(f.client(4000), f.frontend(80)).payload("hello, there").bytes(),
            Build::udp(f.client(4000), f.frontend(80)).bytes(),
            Build::echo(f.client, f.frontend, 9, false).payload("ping").bytes(),
        ] {
            let got = answered(&mut shadow, Side::Tailnet, &sent, DropReason::Rejected);
            assert_eq!(hex(&got), hex(&error(f, &sent, ([3, 3], [1, 4]), [0; 4])));
        }
    }
}

#[test]
fn a_frontend_without_ready_backend_refuses_and_counts_no_backend() {
    kernel_or_skip!();
    for f in FAMILIES {
        let to = || action(vec![], Snat::Keep);
        let rules = vec![rule("web", Some(Protocol::Tcp), f.frontend, port(80), to())];
        let mut shadow = world(rules);
        let sent = Build::syn(f.client(4000), f.frontend(80)).bytes();
        let got = answered(&mut shadow, Side::Tailnet, &sent, DropReason::NoBackend);
        assert_eq!(hex(&got), hex(&reset(f, 0, 1001, flag::RST | flag::ACK)));
        assert_eq!(count(&shadow, "web").dropped, 1);
    }
}

#[test]
fn a_drop_rule_drops_in_silence_with_its_reason() {
    kernel_or_skip!();
    let to = Action::Drop(DropReason::RuleDrop);
    let mut shadow = world(vec![rule("no", None, V4.frontend, PortRange::ANY, to)]);
    let sent = Build::syn(V4.client(4000), V4.frontend(80));
    dropped(&mut shadow, Side::Tailnet, sent.bytes(), DropReason::RuleDrop);
    let other = Build::other(V4.client, V4.frontend, 47).payload("gre");
    dropped(&mut shadow, Side::Tailnet, other.bytes(), DropReason::UnsupportedProtocol);
}

#[test]
fn a_segment_that_cannot_start_a_flow_starts_none() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Keep));
    for flags in [flag::RST, flag::FIN, flag::FIN | flag::ACK, flag::SYN | flag::ACK] {
        let sent = Build::tcp(V4.client(4000), V4.frontend(80), flags);
        dropped(&mut shadow, Side::Tailnet, sent.bytes(), DropReason::NoFlow);
    }
    assert_eq!(shadow.flow_pairs().unwrap(), (0, 0));
}

#[test]
fn a_protected_source_from_the_cluster_is_spoofed_unless_its_flow_is_known() {
    kernel_or_skip!();
    let settings =
        Settings { protected: vec![V4.client.into(), V6.client.into()], ..Settings::default() };
    let mut shadow = world_with(service(Snat::Keep), settings);
    for f in FAMILIES {
        let sent = Build::udp(f.client(4000), f.backend(53)).bytes();
        dropped(&mut shadow, Side::Cluster, sent, DropReason::SpoofedSource);
        carried(&mut shadow, Side::Tailnet, Build::udp(f.client(4000), f.frontend(80)).bytes());
        passed(&mut shadow, Side::Cluster, Build::udp(f.backend(1), f.frontend(1)).bytes());
    }
}

#[test]
fn sources_are_protected_from_the_moment_that_a_table_says_so() {
    kernel_or_skip!();
    let egress = |f: &Family| {
        let to = action(vec![backend(f.client, None)], Snat::Keep);
        Rule { from: Side::Cluster, ..rule("egress", None, f.frontend, PortRange::ANY, to) }
    };
    let rules: Vec<_> = FAMILIES.iter().map(egress).collect();
    let mut shadow = world(rules.clone());
    for f in FAMILIES {
        carried(&mut shadow, Side::Cluster, Build::udp(f.client(4000), f.frontend(80)).bytes());
    }
    let protected = vec![V4.client.into(), V6.client.into()];
    let settings = Settings { protected, max_flows: 4096, ..Settings::default() };
    shadow.apply(&RuleTable::new(rules, settings)).unwrap();
    for f in FAMILIES {
        let sent = Build::udp(f.client(4001), f.frontend(80)).bytes();
        dropped(&mut shadow, Side::Cluster, sent, DropReason::SpoofedSource);
    }
}

#[test]
fn what_no_rule_names_is_dropped_from_the_tailnet_and_passed_from_the_cluster() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Keep));
    for f in FAMILIES {
        let sent = Build::udp(f.client(4000), f.frontend(81)).bytes();
        dropped(&mut shadow, Side::Tailnet, sent.clone(), DropReason::NoRule);
        passed(&mut shadow, Side::Cluster, sent);
        // Another protocol is not ours to drop; nor is port 0, nor a multicast destination.
        passed(
            &mut shadow,
            Side::Tailnet,
            Build::other(f.client, f.frontend, 47).payload("gre").bytes(),
        );
        passed(&mut shadow, Side::Tailnet, Build::udp(f.client(4000), f.frontend(0)).bytes());
    }
    for group in ["224.0.0.251:5353", "[ff02::fb]:5353", "[fe80::1]:53"] {
        let group: std::net::SocketAddr = group.parse().unwrap();
        let f = if group.is_ipv6() { V6 } else { V4 };
        passed(&mut shadow, Side::Tailnet, Build::udp(f.client(4000), group).bytes());
    }
    let settings = Settings { unmatched: Unmatched::Pass, ..Settings::default() };
    let mut shadow = world_with(service(Snat::Keep), settings);
    passed(&mut shadow, Side::Tailnet, Build::udp(V4.client(4000), V4.frontend(81)).bytes());
}

#[test]
fn only_untagged_ip_to_a_unicast_address_is_looked_at() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Keep));
    let ours = frame(&Build::udp(V4.client(4000), V4.frontend(80)).bytes());
    for (at, bytes) in
        [(0, [0x33, 0x33]), (0, [0xff, 0xff]), (12, [0x08, 0x06]), (12, [0x88, 0xa8])]
    {
        let mut frame = ours.clone();
        frame[at..at + 2].copy_from_slice(&bytes);
        let verdict = shadow.run(Side::Tailnet, &frame).unwrap();
        assert_eq!((verdict.action, hex(&verdict.frame)), (PASS, hex(&frame)));
    }
}

#[test]
fn while_only_known_flows_are_carried_the_rest_is_left_to_the_kernel() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Keep));
    carried(&mut shadow, Side::Tailnet, Build::udp(V4.client(4000), V4.frontend(80)).bytes());
    shadow.set_stance(Stance::KnownFlows).unwrap();
    carried(&mut shadow, Side::Tailnet, Build::udp(V4.client(4000), V4.frontend(80)).bytes());
    passed(&mut shadow, Side::Tailnet, Build::udp(V4.client(4001), V4.frontend(80)).bytes());
}

#[test]
fn what_was_left_to_the_kernel_is_not_picked_up_before_it_is_handed_over() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Keep));
        shadow.set_stance(Stance::KnownFlows).unwrap();
        let syn = |port| Build::syn(f.client(port), f.frontend(80)).bytes();
        let datagram = |port| Build::udp(f.client(port), f.frontend(80)).bytes();
        passed(&mut shadow, Side::Tailnet, syn(4000));
        passed(&mut shadow, Side::Tailnet, datagram(4000));
        shadow.set_stance(Stance::Handover).unwrap();
        passed(&mut shadow, Side::Tailnet, syn(4000));
        passed(&mut shadow, Side::Tailnet, datagram(4000));
        carried(&mut shadow, Side::Tailnet, syn(4001));
        carried(&mut shadow, Side::Tailnet, datagram(4001));
        shadow.set_stance(Stance::All).unwrap();
        carried(&mut shadow, Side::Tailnet, syn(4000));
        carried(&mut shadow, Side::Tailnet, datagram(4000));
    }
}

#[test]
fn a_frame_cut_anywhere_is_never_carried() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Masquerade));
        let packets = [
            Build::syn(f.client(4000), f.frontend(80)).mss(1460).payload("x"),
            Build::udp(f.client(4000), f.frontend(80)).payload("abc"),
            Build::udp(f.client(4000), f.frontend(80)).ip_options([1; 8]).extension(60, 1),
            Build::echo(f.client, f.frontend, 7, false).payload("ping"),
        ];
        for packet in packets {
            let whole = frame(&packet.bytes());
            for end in 14..whole.len() {
                // The kernel itself refuses frames that are too short for a network header.
                let Ok(verdict) = shadow.run(Side::Tailnet, &whole[..end]) else { continue };
                assert!(matches!(verdict.action, PASS | DROP), "cut at {end}: {verdict:?}");
                assert_eq!(hex(&verdict.frame), hex(&whole[..end]), "cut at {end}");
            }
        }
        assert_eq!(shadow.flow_pairs().unwrap(), (0, 0));
    }
}

#[test]
fn an_ip_packet_cut_within_its_transport_header_is_malformed() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Masquerade));
        for (packet, least) in [
            (Build::syn(f.client(4000), f.frontend(80)).bytes(), 20),
            (Build::udp(f.client(4000), f.frontend(80)).bytes(), 8),
            (Build::echo(f.client, f.frontend, 7, false).bytes(), 8),
        ] {
            let header = parse(&packet, None).unwrap().l4;
            for len in header..header + least {
                let mut cut = packet[..len].to_vec();
                let (at, value) = if f.is_v6() { (4, len - 40) } else { (2, len) };
                cut[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
                dropped(&mut shadow, Side::Tailnet, cut, DropReason::Malformed);
            }
        }
    }
}

#[test]
fn padding_is_not_taken_for_the_rest_of_a_transport_header() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Masquerade));
        for (packet, least) in [
            (Build::syn(f.client(4000), f.frontend(80)).bytes(), 20),
            (Build::udp(f.client(4000), f.frontend(80)).bytes(), 8),
            (Build::echo(f.client, f.frontend, 7, false).bytes(), 8),
        ] {
            let header = parse(&packet, None).unwrap().l4;
            for len in header..header + least {
                let mut cut = packet.clone();
                let (at, value) = if f.is_v6() { (4, len - 40) } else { (2, len) };
                cut[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
                cut.extend([0; 26]);
                dropped(&mut shadow, Side::Tailnet, cut, DropReason::Malformed);
            }
        }
    }
}

#[test]
fn a_tcp_header_that_says_it_is_shorter_than_itself_is_malformed() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Masquerade));
        let segment = Build::syn(f.client(4000), f.frontend(80)).payload([0; 26]).bytes();
        let at = parse(&segment, None).unwrap().l4 + 12;
        for words in 0..5 {
            let mut short = segment.clone();
            short[at] = words << 4;
            dropped(&mut shadow, Side::Tailnet, short, DropReason::Malformed);
        }
        carried(&mut shadow, Side::Tailnet, segment);
    }
}
