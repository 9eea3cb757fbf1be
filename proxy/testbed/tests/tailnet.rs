//! The test tailnet itself: upstream's tailscaled logs in and carries traffic, and sees what tests change.
#![cfg(test)]

use proxy_testbed::{
    DEADLINE, Tailnet,
    traffic::{
        icmp::Pinger,
        tcp::{Client, TcpServer},
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

#[test]
fn two_nodes_log_in_and_carry_tcp_and_icmp_over_both_families() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (left, right) =
        (tailnet.joined("left", &[]).unwrap(), tailnet.joined("right", &[]).unwrap());
    left.wait_peer("right").unwrap();
    right.wait_peer("left").unwrap();
    let _server = TcpServer::new(&right.underlay.namespace, "[::]:8080").unwrap();
    let own = left.addresses().unwrap();
    for (family, address) in right.addresses().unwrap().into_iter().enumerate() {
        assert_eq!(address.is_ipv6(), family == 1);
        left.ping(address).unwrap();
        let mut client = Client::connect(&left.underlay.namespace, (address, 8080).into()).unwrap();
        assert_eq!(client.seen_ip(), own[family]);
        client.echo(1 << 20).unwrap();
        client.close().unwrap();
        let mut ping = Pinger::new(&left.underlay.namespace, address).unwrap();
        assert_eq!(ping.pings(3, 56, DEADLINE).unwrap(), 3);
    }
    assert_eq!(left.addresses().unwrap()[0].to_string(), "100.64.0.1");
    let machine = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    assert!(!machine.contains("100.100.100.100"), "the machine's DNS was rewritten: {machine}");
}
