//! The rig itself: with the kernel forwarding, every kind of traffic crosses it whole.
#![cfg(test)]

use std::time::Duration;

use proxy_testbed::{
    DEADLINE, Topology,
    capture::{Capture, Level},
    counter,
    offload::{self, Offload},
    topology::{HOSTS, PEERS},
    traffic::{
        icmp::Pinger,
        steady::Steady,
        tcp::{Client, TcpServer},
        udp::{Answer, UdpClient, UdpServer},
    },
};

/// Whether this machine's tests are told to do without the kernel.
fn skipped() -> bool {
    let skip = std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1");
    if skip {
        eprintln!("skipped: SKIP_KERNEL_TESTS=1");
    }
    skip
}

fn forwarding() -> Topology {
    let topology = Topology::new().unwrap();
    for family in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        topology.proxy.sysctl(&format!("net/{family}"), "1").unwrap();
    }
    topology
}

#[test]
fn every_kind_of_traffic_crosses_plain_forwarding_whole() {
    if skipped() {
        return;
    }
    let topology = forwarding();
    let _tcp = TcpServer::new(&topology.cluster, "[::]:8080").unwrap();
    for family in [0, 1] {
        let host: std::net::IpAddr = HOSTS[0][family].parse().unwrap();
        let _udp =
            UdpServer::new(&topology.cluster, &format!("{}:53", brackets(host)), Answer::Echo)
                .unwrap();
        let mut client = Client::connect(&topology.tailnet, (host, 8080).into()).unwrap();
        assert_eq!(client.seen_ip().to_string(), PEERS[0][family]);
        client.echo(2 << 20).unwrap();
        // One in a thousand: on a busy machine an acknowledgement may be late.
        assert!(client.info().unwrap().retransmits <= 2);
        client.close().unwrap();
        let udp = UdpClient::new(&topology.tailnet, (host, 53).into()).unwrap();
        assert_eq!(udp.echo(10, 1000).unwrap(), 10);
        let mut ping = Pinger::new(&topology.tailnet, host).unwrap();
        assert_eq!(ping.pings(3, 56, DEADLINE).unwrap(), 3);
    }
    for namespace in [&topology.tailnet, &topology.cluster] {
        assert_eq!(counter::kernel(namespace, "Tcp", "InCsumErrors").unwrap(), 0);
    }
}

#[test]
fn steady_traffic_notices_an_interruption() {
    if skipped() {
        return;
    }
    let topology = forwarding();
    let host: std::net::IpAddr = HOSTS[1][0].parse().unwrap();
    let _tcp = TcpServer::new(&topology.cluster, "0.0.0.0:8080").unwrap();
    // An answer comes from the address that was asked only if the server is bound to it.
    let _udp = UdpServer::new(&topology.cluster, &format!("{host}:53"), Answer::Echo).unwrap();
    let steady =
        Steady::start(&topology.tailnet, 20, &[(host, 8080).into()], Some((host, 53).into()))
            .unwrap();
    steady.await_rounds(20).unwrap();
    topology.proxy.ip(["link set eth0 down"]).unwrap();
    std::thread::park_timeout(Duration::from_millis(100));
    topology.proxy.ip(["link set eth0 up"]).unwrap();
    steady.await_rounds(20).unwrap();
    let report = steady.finish().unwrap();
    assert!(report.lost >= 20 && report.broken.is_empty(), "{report:?}");
}

#[test]
fn a_capture_sees_what_an_injection_puts_on_the_wire_and_offloads_can_be_switched() {
    if skipped() {
        return;
    }
    let topology = Topology::new().unwrap();
    offload::set(&topology.cluster, "eth0", Offload::TxChecksum, false).unwrap();
    let mut there = Capture::new(&topology.proxy, "eth0", Level::Link).unwrap();
    let here = Capture::new(&topology.cluster, "eth0", Level::Link).unwrap();
    let mut frame = vec![0xff; 12];
    frame.extend([0x88, 0xb5]);
    frame.extend([7; 50]);
    here.inject(&frame).unwrap();
    let seen = there.find(DEADLINE, |packet| (packet == frame).then_some(())).unwrap();
    assert_eq!(seen, Some(()));
}

fn brackets(address: std::net::IpAddr) -> String {
    match address {
        std::net::IpAddr::V4(address) => address.to_string(),
        std::net::IpAddr::V6(address) => format!("[{address}]"),
    }
}
