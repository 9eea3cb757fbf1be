//! What is carried, by family, protocol and translation, and that the counters say so.

use proxy::data_path::{
    DataPath,
    ebpf::{EbpfOptions, EbpfPath},
};
use proxy_rules::{Action, DropReason, Protocol, RuleTable, Snat};

use crate::support::*;

pub(crate) fn apply(rig: &Rig, table: &RuleTable) -> EbpfPath {
    rig.proxy.enter(|| {
        let mut path = EbpfPath::new(EbpfOptions::default());
        path.supports(table).unwrap();
        path.apply(table).unwrap();
        path
    })
}

#[test]
fn tcp_is_carried_to_a_backend_and_back_in_both_families() {
    let rig = rig_or_skip!();
    echo_server(&rig.backend, "198.51.100.2:8080");
    echo_server(&rig.backend, "[2001:db8:1::2]:8080");
    let path = apply(
        &rig,
        &table(vec![
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
        ]),
    );
    for (to, seen, id) in [
        ("100.64.0.1:80", "198.51.100.1", "web"),
        ("[2001:db8:64::1]:80", "2001:db8:64::2", "web6"),
    ] {
        let (mut stream, peer) = connect(&rig.client, to).unwrap();
        assert_eq!(peer.to_string(), seen);
        echo(&mut stream, &vec![7; 100_000]).unwrap();
        let counted = count(&path.counters().unwrap(), id);
        assert_eq!((counted.flows, counted.dropped), (1, 0));
        assert!(counted.original_bytes > 100_000 && counted.reply_bytes > 100_000, "{counted:?}");
    }
}

#[test]
fn udp_and_icmp_are_counted_packet_by_packet() {
    let rig = rig_or_skip!();
    for (backend, frontend, header) in
        [("198.51.100.2", "100.64.0.1", 20), ("2001:db8:1::2", "2001:db8:64::1", 40)]
    {
        let bracket =
            |ip: &str, port: u16| std::net::SocketAddr::new(ip.parse().unwrap(), port).to_string();
        udp_server(&rig.backend, &bracket(backend, 5353));
        let prefix = format!("{frontend}/{}", if header == 20 { 32 } else { 128 });
        let path = apply(
            &rig,
            &table(vec![
                rule(
                    "dns",
                    TAILNET,
                    Protocol::Udp,
                    &prefix,
                    53,
                    dnat(&[&bracket(backend, 5353)], Snat::Masquerade),
                ),
                rule(
                    "ping",
                    TAILNET,
                    Protocol::Icmp,
                    &prefix,
                    0,
                    dnat(&[backend], Snat::Masquerade),
                ),
            ]),
        );
        let socket = udp(&rig.client, if header == 20 { "0.0.0.0:0" } else { "[::]:0" });
        let answers: Vec<String> =
            (0..5).map(|_| ask(&socket, &bracket(frontend, 53), &[1; 72]).unwrap()).collect();
        let counted = count(&path.counters().unwrap(), "dns");
        let replies: usize = answers.iter().map(|answer| answer.len() + 8 + header).sum();
        assert_eq!((counted.original_packets, counted.reply_packets, counted.flows), (5, 5, 1));
        assert_eq!(counted.original_bytes, 5 * (72 + 8 + header as u64));
        assert_eq!(counted.reply_bytes, replies as u64);
        assert!(ping(&rig.client, frontend));
        let counted = count(&path.counters().unwrap(), "ping");
        assert_eq!((counted.original_packets, counted.reply_packets), (1, 1));
        assert_eq!(counted.original_bytes, 64 + header as u64);
    }
}

#[test]
fn a_service_port_on_the_cluster_side_leads_to_a_tailnet_target() {
    let rig = rig_or_skip!();
    echo_server(&rig.client, "100.64.0.2:8080");
    let _path = apply(
        &rig,
        &table(vec![rule(
            "egress",
            CLUSTER,
            Protocol::Tcp,
            "198.51.100.1/32",
            10_080,
            dnat(&["100.64.0.2:8080"], Snat::Masquerade),
        )]),
    );
    let (mut stream, peer) = connect(&rig.backend, "198.51.100.1:10080").unwrap();
    assert_eq!(peer.to_string(), "100.64.0.1");
    echo(&mut stream, b"hello").unwrap();
}

#[test]
fn a_subnet_route_carries_both_ways_without_ip_forward() {
    let rig = rig_or_skip!();
    echo_server(&rig.backend, "198.51.100.3:9000");
    let forward = Action::Forward { to: CLUSTER, snat: Snat::Keep };
    let _path = apply(
        &rig,
        &table(vec![rule("lan", TAILNET, Protocol::Tcp, "198.51.100.0/24", 0, forward)]),
    );
    let (mut stream, peer) = connect(&rig.client, "198.51.100.3:9000").unwrap();
    assert_eq!(peer.to_string(), "100.64.0.2");
    echo(&mut stream, &[1; 3000]).unwrap();
}

#[test]
fn what_no_rule_names_and_what_is_rejected_is_told_or_dropped() {
    let rig = rig_or_skip!();
    let path = apply(
        &rig,
        &table(vec![
            rule("no", TAILNET, Protocol::Tcp, "100.64.0.1/32", 81, Action::Reject),
            rule("no", TAILNET, Protocol::Udp, "100.64.0.1/32", 81, Action::Reject),
            rule("none", TAILNET, Protocol::Tcp, "100.64.0.1/32", 82, dnat(&[], Snat::Masquerade)),
        ]),
    );
    for to in ["100.64.0.1:81", "100.64.0.1:82"] {
        let refused = connect(&rig.client, to).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{to}");
    }
    let socket = rig.client.enter(|| std::net::UdpSocket::bind("0.0.0.0:0").unwrap());
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket.connect("100.64.0.1:81").unwrap();
    socket.send(b"?").unwrap();
    let refused = socket.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    socket.connect("198.51.100.2:7").unwrap();
    socket.send(b"?").unwrap();
    let drops = path.counters().unwrap().drops;
    assert_eq!(drops[&DropReason::Rejected], 2);
    assert_eq!(drops[&DropReason::NoBackend], 1);
    assert_eq!(drops[&DropReason::NoRule], 1);
}
