//! ICMP errors about packets that we have translated: outside and in the quote they speak of what the sender knows.

use proxy::data_path::ebpf::shadow::Shadow;
use proxy_rules::{
    DropReason, Side, Snat,
    packet::{Build, flag},
};

use crate::support::*;

const ROUTER4: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 254));

/// "Fragmentation needed" or "packet too big", MTU 1300, about what is quoted.
fn too_big(f: Family, from: std::net::IpAddr, to: std::net::IpAddr, quote: &[u8]) -> Build {
    let (kind, code) = if f.is_v6() { (2, 0) } else { (3, 4) };
    Build::icmp(from, to, kind, code, [0, 0, 5, 0x14]).payload(quote)
}

/// A packet, then an error about it from its destination, quoting so many bytes of transport.
fn error_about(shadow: &mut Shadow, f: Family, snat: Snat, builds: [Build; 2], transport: usize) {
    let [sent, translated] = builds;
    let sent = sent.bytes();
    let out = carried(shadow, Side::Tailnet, sent.clone());
    assert_eq!(hex(&out), hex(&translated.bytes()));
    let ip = if f.is_v6() { 40 } else { 20 };
    let source = if snat == Snat::Keep { f.client } else { f.masquerade };
    // The TTL in the quote is what it was on the wire behind us.
    let mut original = sent;
    let ttl = if f.is_v6() { 7 } else { 8 };
    original[ttl] -= 1;
    if !f.is_v6() {
        proxy_rules::packet::checksum::fill_ipv4(&mut original, 20);
    }
    let end = (ip + transport).min(out.len());
    carries(
        shadow,
        Side::Cluster,
        too_big(f, f.backend, source, &out[..end]),
        too_big(f, f.frontend, f.client, &original[..end]).ttl(63),
    );
}

#[test]
fn an_error_from_the_backend_speaks_of_the_frontend_outside_and_in_the_quote() {
    kernel_or_skip!();
    for snat in [Snat::Keep, Snat::Masquerade] {
        let mut shadow = world(service(snat));
        for f in FAMILIES {
            let source = if snat == Snat::Keep { f.client } else { f.masquerade };
            for transport in [8, 12, 16, 18, 20, 60] {
                let source = |port| std::net::SocketAddr::new(source, port);
                for build in [Build::udp, Build::syn] {
                    let builds = [
                        build(f.client(4000), f.frontend(80)).payload("a payload"),
                        build(source(4000), f.backend(8080)).payload("a payload").ttl(63),
                    ];
                    error_about(&mut shadow, f, snat, builds, transport);
                }
                let builds = [
                    Build::echo(f.client, f.frontend, 4001, false).payload("ping"),
                    Build::echo(source(0).ip(), f.backend, 4001, false).payload("ping").ttl(63),
                ];
                error_about(&mut shadow, f, snat, builds, transport);
            }
        }
    }
}

#[test]
fn an_error_from_a_router_on_the_way_keeps_the_router_as_its_source_without_dnat() {
    kernel_or_skip!();
    let to = proxy_rules::Action::Forward { to: Side::Cluster, snat: Snat::Masquerade };
    let any = proxy_rules::PortRange::ANY;
    let mut shadow = world(vec![rule("exit", None, V4.backend, any, to)]);
    let sent = Build::udp(V4.client(4000), V4.backend(53)).payload("question");
    let out = carried(&mut shadow, Side::Tailnet, sent.clone().bytes());
    let quote = sent.ttl(63).bytes();
    carries(
        &mut shadow,
        Side::Cluster,
        too_big(V4, ROUTER4, V4.masquerade, &out),
        too_big(V4, ROUTER4, V4.client, &quote).ttl(63),
    );
}

#[test]
fn an_error_about_a_reply_reaches_the_backend_with_the_backends_own_packet() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Masquerade));
        carried(&mut shadow, Side::Tailnet, Build::udp(f.client(4000), f.frontend(80)).bytes());
        let reply = Build::udp(f.backend(8080), f.masquerade(4000)).payload("tell");
        let out = carried(&mut shadow, Side::Cluster, reply.clone().bytes());
        carries(
            &mut shadow,
            Side::Tailnet,
            too_big(f, f.client, f.frontend, &out),
            too_big(f, f.masquerade, f.backend, &reply.ttl(63).bytes()).ttl(63),
        );
        assert_eq!(count(&shadow, "web").original_packets, 2);
    }
}

#[test]
fn a_quoted_udp_packet_without_checksum_stays_without() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Masquerade));
    let builds = [
        Build::udp(V4.client(4000), V4.frontend(80)).no_checksum().payload("x"),
        Build::udp(V4.masquerade(4000), V4.backend(8080)).no_checksum().payload("x").ttl(63),
    ];
    error_about(&mut shadow, V4, Snat::Masquerade, builds, 20);
}

#[test]
fn an_error_about_a_packet_that_is_not_ours_passes() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Masquerade));
        let quote = Build::udp(f.masquerade(4000), f.backend(8080)).payload("x").bytes();
        passed(&mut shadow, Side::Cluster, too_big(f, f.backend, f.masquerade, &quote).bytes());
        carried(&mut shadow, Side::Tailnet, Build::udp(f.client(4000), f.frontend(80)).bytes());
        // Too short a quote, a quote of another family, and an error to somebody else.
        let ip = if f.is_v6() { 40 } else { 20 };
        let short = too_big(f, f.backend, f.masquerade, &quote[..ip + 7]);
        passed(&mut shadow, Side::Cluster, short.bytes());
        let mut other = quote.clone();
        other[0] ^= 0x20;
        passed(&mut shadow, Side::Cluster, too_big(f, f.backend, f.masquerade, &other).bytes());
        passed(&mut shadow, Side::Cluster, too_big(f, f.backend, f.client, &quote).bytes());
    }
}

#[test]
fn an_error_whose_time_is_up_is_dropped_and_never_answered() {
    kernel_or_skip!();
    let mut shadow = world(service(Snat::Masquerade));
    let sent = Build::tcp(V4.client(4000), V4.frontend(80), flag::ACK).bytes();
    let out = carried(&mut shadow, Side::Tailnet, sent);
    let error = too_big(V4, V4.backend, V4.masquerade, &out).ttl(1);
    dropped(&mut shadow, Side::Cluster, error.bytes(), DropReason::TtlExpired);
}
