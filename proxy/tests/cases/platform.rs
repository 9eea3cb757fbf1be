//! The network around the proxy: ranges that others use too, hops, neighbours.

use std::time::Duration;

use proxy_rules::{DropReason, Protocol, RuleTable, Settings, Side, Snat};
use proxy_testbed::{
    Topology,
    topology::{HOSTS, PEERS, PROXY_CLUSTER, PROXY_TAILNET},
    traffic::udp::{Answer, UdpClient, UdpServer},
};

use crate::{
    driver::{Driver, Make, on_each_path},
    rules::{at, dnat, rule, settings, table},
};

on_each_path!(
    r53_only_assigned_tailnet_addresses_are_refused_from_the_cluster,
    r63_every_hop_costs_one_ttl_and_the_last_is_answered,
    r70_the_first_packet_after_a_neighbour_flush_arrives,
);

fn dns(side: Side, fronts: [&str; 2], targets: [&str; 2]) -> Vec<proxy_rules::Rule> {
    let rules = [0, 1].map(|family| {
        let to = dnat(&[targets[family]], Snat::Masquerade);
        rule("dns", side, Protocol::Udp, fronts[family], 53, to)
    });
    rules.to_vec()
}

fn r53_only_assigned_tailnet_addresses_are_refused_from_the_cluster(make: Make) {
    let topology = Topology::new().unwrap();
    // A pod in the shared address space, and a pod that pretends to be a peer.
    topology
        .cluster
        .ip(["address add 100.64.8.10/32 dev eth0", "address add 100.64.0.12/32 dev eth0"])
        .unwrap();
    topology.proxy.ip(["route add 100.64.8.0/22 via 192.0.2.10"]).unwrap();
    let _server = UdpServer::new(&topology.tailnet, "100.64.0.9:53", Answer::Echo).unwrap();
    let driver = Driver::new(&topology, make);
    let protected =
        PEERS.iter().map(|[v4, _]| v4.parse::<std::net::IpAddr>().unwrap().into()).collect();
    let rules = dns(Side::Cluster, PROXY_CLUSTER, PEERS[0]);
    driver.apply(&RuleTable::new(rules, Settings { protected, ..settings() }));
    let from = |source: &str| {
        let client =
            UdpClient::bound(&topology.cluster, at(source, 0), at(PROXY_CLUSTER[0], 53)).unwrap();
        client.socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        client.echo(1, 100)
    };
    assert_eq!(from("100.64.8.10").unwrap(), 1);
    from("100.64.0.12").unwrap_err();
    assert_eq!(driver.counters().drops[&DropReason::SpoofedSource], 1);
}

fn r63_every_hop_costs_one_ttl_and_the_last_is_answered(make: Make) {
    let topology = Topology::new().unwrap();
    let _servers = HOSTS[0].map(|host| {
        UdpServer::new(&topology.cluster, &at(host, 53).to_string(), Answer::Echo).unwrap()
    });
    let driver = Driver::new(&topology, make);
    driver.apply(&table(dns(Side::Tailnet, PROXY_TAILNET, HOSTS[0])));
    for family in [0, 1] {
        let client = UdpClient::new(&topology.tailnet, at(PROXY_TAILNET[family], 53)).unwrap();
        let hops = |hops: u32| {
            let socket = socket2::SockRef::from(&client.socket);
            if family == 0 { socket.set_ttl_v4(hops) } else { socket.set_unicast_hops_v6(hops) }
        };
        hops(2).unwrap();
        assert_eq!(client.echo(1, 10).unwrap(), 1);
        // A connected socket asks for nothing: IP_RECVERR makes the kernel tell it of time exceeded at once.
        hops(1).unwrap();
        receive_errors(&client.socket, family);
        let error = client.echo(1, 10).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable, "family {family}: {error}");
    }
}

fn receive_errors(socket: &std::net::UdpSocket, family: usize) {
    let (level, option) =
        [(libc::IPPROTO_IP, libc::IP_RECVERR), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)][family];
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads an int from `on`.
    let done = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(socket),
            level,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(done, 0);
}

fn r70_the_first_packet_after_a_neighbour_flush_arrives(make: Make) {
    let topology = Topology::new().unwrap();
    let _servers = HOSTS[0].map(|host| {
        UdpServer::new(&topology.cluster, &at(host, 53).to_string(), Answer::Echo).unwrap()
    });
    let driver = Driver::new(&topology, make);
    driver.apply(&table(dns(Side::Tailnet, PROXY_TAILNET, HOSTS[0])));
    for family in [0, 1] {
        let client = UdpClient::new(&topology.tailnet, at(PROXY_TAILNET[family], 53)).unwrap();
        for _ in 0..3 {
            topology.proxy.ip(["neigh flush dev eth0"]).unwrap();
            assert_eq!(client.echo(1, 100).unwrap(), 1);
        }
    }
}
