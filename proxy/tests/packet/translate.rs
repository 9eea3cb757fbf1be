//! What is written into a carried packet. Expected packets are built from scratch, so every checksum is recomputed in full.

use proxy::data_path::ebpf::shadow::Shadow;
use proxy_rules::{
    Protocol, Side, Snat,
    packet::{Build, checksum, flag, parse},
};

use crate::support::*;

/// One packet there and one back, for each protocol.
fn round_trips(snat: Snat) {
    let mut shadow = world(service(snat));
    for (index, f) in FAMILIES.into_iter().enumerate() {
        let source = |port| if snat == Snat::Keep { f.client(port) } else { f.masquerade(port) };
        for build in [Build::udp, Build::syn] {
            carries(
                &mut shadow,
                Side::Tailnet,
                build(f.client(4000), f.frontend(80)).payload("ask"),
                build(source(4000), f.backend(8080)).payload("ask").ttl(63),
            );
        }
        carries(
            &mut shadow,
            Side::Cluster,
            Build::udp(f.backend(8080), source(4000)).payload("tell"),
            Build::udp(f.frontend(80), f.client(4000)).payload("tell").ttl(63),
        );
        carries(
            &mut shadow,
            Side::Cluster,
            Build::tcp(f.backend(8080), source(4000), flag::SYN | flag::ACK),
            Build::tcp(f.frontend(80), f.client(4000), flag::SYN | flag::ACK).ttl(63),
        );
        carries(
            &mut shadow,
            Side::Tailnet,
            Build::echo(f.client, f.frontend, 4001, false).payload("ping"),
            Build::echo(source(0).ip(), f.backend, 4001, false).payload("ping").ttl(63),
        );
        carries(
            &mut shadow,
            Side::Cluster,
            Build::echo(f.backend, source(0).ip(), 4001, true).payload("ping"),
            Build::echo(f.frontend, f.client, 4001, true).payload("ping").ttl(63),
        );
        assert_eq!(shadow.flow_pairs().unwrap(), (3 * (index as u64 + 1), 0));
    }
}

#[test]
fn a_reply_undoes_what_dnat_did_to_the_request() {
    kernel_or_skip!();
    round_trips(Snat::Keep);
}

#[test]
fn a_reply_undoes_what_dnat_and_masquerade_did_to_the_request() {
    kernel_or_skip!();
    round_trips(Snat::Masquerade);
}

#[test]
fn ip_options_and_extension_headers_are_stepped_over_and_kept() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Masquerade));
    let options = |build: Build| build.ip_options([7, 7, 4, 0, 0, 0, 0]).payload("x");
    carries(
        &mut shadow,
        Side::Tailnet,
        options(Build::udp(V4.client(1024), V4.frontend(80))),
        options(Build::udp(V4.masquerade(1024), V4.backend(8080))).ttl(63),
    );
    let extended =
        |build: Build| build.extension(0, 0).extension(60, 2).extension(43, 0).payload("x");
    for build in [Build::udp, Build::syn] {
        carries(
            &mut shadow,
            Side::Tailnet,
            extended(build(V6.client(1025), V6.frontend(80))),
            extended(build(V6.masquerade(1025), V6.backend(8080))).ttl(63),
        );
    }
}

#[test]
fn bytes_after_the_ip_length_stay_as_they_are() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Keep));
        let padding = [0xab; 6];
        let sent = [Build::udp(f.client(4000), f.frontend(80)).bytes(), padding.to_vec()].concat();
        let expected = Build::udp(f.client(4000), f.backend(8080)).ttl(63).bytes();
        let got = carried(&mut shadow, Side::Tailnet, sent);
        assert_eq!(hex(&got), hex(&[expected.clone(), padding.to_vec()].concat()));
        assert_eq!(count(&shadow, "web").original_bytes, expected.len() as u64);
    }
}

#[test]
fn a_udp_packet_without_checksum_stays_without() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Masquerade));
    carries(
        &mut shadow,
        Side::Tailnet,
        Build::udp(V4.client(4000), V4.frontend(80)).no_checksum().payload("x"),
        Build::udp(V4.masquerade(4000), V4.backend(8080)).no_checksum().payload("x").ttl(63),
    );
}

#[test]
fn a_udp_checksum_that_becomes_zero_is_written_as_ffff() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Masquerade));
    for f in FAMILIES {
        let translated = |payload: [u8; 2]| {
            Build::udp(f.masquerade(4000), f.backend(8080)).payload(payload).ttl(63)
        };
        // With an empty word as payload the checksum is what that word must be for the sum to become zero.
        let blank = translated([0, 0]).bytes();
        let at = parse(&blank, None).unwrap().checksum_at().unwrap();
        let payload = [blank[at], blank[at + 1]];
        assert_eq!(translated(payload).bytes()[at..at + 2], [0xff, 0xff]);
        let sent = Build::udp(f.client(4000), f.frontend(80)).payload(payload);
        carries(&mut shadow, Side::Tailnet, sent, translated(payload));
    }
}

#[test]
fn a_tcp_checksum_may_become_zero() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Masquerade));
    let translated = |payload: [u8; 2]| {
        Build::syn(V4.masquerade(4000), V4.backend(8080)).payload(payload).ttl(63)
    };
    let blank = translated([0, 0]).bytes();
    let payload = [blank[36], blank[37]];
    assert_eq!(translated(payload).bytes()[36..38], [0, 0]);
    let sent = Build::syn(V4.client(4000), V4.frontend(80)).payload(payload);
    carries(&mut shadow, Side::Tailnet, sent, translated(payload));
}

/// A SYN and its SYN-ACK with these options; they should leave with those.
fn clamps(shadow: &mut Shadow, f: Family, sent: &[u8], expected: &[u8]) {
    carries(
        shadow,
        Side::Tailnet,
        Build::syn(f.client(4000), f.frontend(80)).tcp_options(sent),
        Build::syn(f.client(4000), f.backend(8080)).tcp_options(expected).ttl(63),
    );
    let both = flag::SYN | flag::ACK;
    carries(
        shadow,
        Side::Cluster,
        Build::tcp(f.backend(8080), f.client(4000), both).tcp_options(sent),
        Build::tcp(f.frontend(80), f.client(4000), both).tcp_options(expected).ttl(63),
    );
}

#[test]
fn the_mss_is_lowered_to_the_smaller_link_wherever_the_option_lies() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Keep));
    for f in FAMILIES {
        let [a, b] = if f.is_v6() { 1220u16 } else { 1240 }.to_be_bytes();
        for before in [vec![], vec![1], vec![1, 1], vec![3, 3, 7], vec![4, 2, 3, 3, 7]] {
            let with = |mss: [u8; 2]| [before.clone(), vec![2, 4, mss[0], mss[1]]].concat();
            clamps(&mut shadow, f, &with([0x05, 0xb4]), &with([a, b]));
        }
    }
}

#[test]
fn an_mss_that_fits_is_not_raised_and_one_that_is_absent_stays_absent() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Keep));
    for f in FAMILIES {
        for options in [&[2, 4, 2, 0][..], &[], &[4, 2], &[1, 1, 1, 1], &[0, 2, 4, 5, 180]] {
            clamps(&mut shadow, f, options, options);
        }
    }
}

#[test]
fn options_that_contradict_themselves_are_carried_as_they_are() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Keep));
    for options in [&[3, 0, 2, 4, 5, 180][..], &[2, 3, 5, 180], &[8, 40, 0, 0], &[2, 4]] {
        clamps(&mut shadow, V4, options, options);
    }
}

#[test]
fn a_segment_that_opens_nothing_keeps_what_looks_like_an_mss() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Keep));
    carries(
        &mut shadow,
        Side::Tailnet,
        Build::tcp(V4.client(4000), V4.frontend(80), flag::ACK).mss(1460),
        Build::tcp(V4.client(4000), V4.backend(8080), flag::ACK).mss(1460).ttl(63),
    );
}

#[test]
fn a_backend_without_port_gets_the_port_that_the_packet_had() {
    kernel_or_skip!();
    let to = action(vec![backend(V4.backend, None)], Snat::Keep);
    let ports = proxy_rules::PortRange::new(5000, 5009).unwrap();
    let mut shadow = world(vec![rule("range", Some(Protocol::Udp), V4.frontend, ports, to)]);
    for number in [5000, 5004, 5009] {
        carries(
            &mut shadow,
            Side::Tailnet,
            Build::udp(V4.client(4000), V4.frontend(number)),
            Build::udp(V4.client(4000), V4.backend(number)).ttl(63),
        );
    }
}

#[test]
fn every_carried_packet_has_right_checksums() {
    kernel_or_skip!();
    // Each bit pattern of the identifier meets another carry in the sums.
    let mut shadow = world(service(Snat::Masquerade));
    for id in (1024..u16::MAX).step_by(997) {
        for f in FAMILIES {
            let sent = Build::udp(f.client(id), f.frontend(80)).payload(id.to_be_bytes());
            let got = carried(&mut shadow, Side::Tailnet, sent.bytes());
            assert!(
                checksum::is_right(&got, &parse(&got, None).unwrap()),
                "port {id}: {}",
                hex(&got)
            );
        }
    }
}
