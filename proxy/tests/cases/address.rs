//! Addresses: which source the backend sees, and families that only one side has.

use std::{io::ErrorKind, time::Instant};

use proxy_rules::{Action, Protocol, Side, Snat};
use proxy_testbed::{
    Topology,
    topology::{HOSTS, PEERS, PROXY_CLUSTER, PROXY_TAILNET},
    traffic::tcp::{Client, TcpServer},
};

use crate::{
    driver::{Driver, Make, on_each_path},
    rules::{at, dnat, rule, table},
};

on_each_path!(
    r01_in_preserve_mode_the_backend_sees_the_client,
    r02_r03_a_family_without_backends_is_refused_at_once_and_the_other_works,
    r05_an_ipv6_route_behind_a_peer_is_carried_to_the_tailnet,
    r06_the_ipv6_source_is_translated,
);

fn web(family: usize, action: Action) -> proxy_rules::Rule {
    rule("web", Side::Tailnet, Protocol::Tcp, PROXY_TAILNET[family], 80, action)
}

fn host(family: usize) -> String {
    at(HOSTS[0][family], 8080).to_string()
}

fn r01_in_preserve_mode_the_backend_sees_the_client(make: Make) {
    let topology = Topology::new().unwrap();
    let _server = TcpServer::new(&topology.cluster, "[::]:8080").unwrap();
    let driver = Driver::new(&topology, make);
    driver.apply(&table([0, 1].map(|family| web(family, dnat(&[&host(family)], Snat::Keep)))));
    for family in [0, 1] {
        let from = at(PEERS[1][family], 0);
        let to = at(PROXY_TAILNET[family], 80);
        let mut client = Client::connect_from(&topology.tailnet, from, to).unwrap();
        assert_eq!(client.seen_ip(), from.ip());
        assert_eq!(client.seen.port(), client.stream.local_addr().unwrap().port());
        client.echo(100_000).unwrap();
    }
}

fn r02_r03_a_family_without_backends_is_refused_at_once_and_the_other_works(make: Make) {
    let topology = Topology::new().unwrap();
    let _server = TcpServer::new(&topology.cluster, "[::]:8080").unwrap();
    let driver = Driver::new(&topology, make);
    for (served, other) in [(0, 1), (1, 0)] {
        driver.apply(&table([
            web(served, dnat(&[&host(served)], Snat::Masquerade)),
            web(other, dnat(&[], Snat::Masquerade)),
        ]));
        let start = Instant::now();
        let refused = Client::connect(&topology.tailnet, at(PROXY_TAILNET[other], 80));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert!(start.elapsed().as_secs_f64() < 1.0);
        let client = Client::connect(&topology.tailnet, at(PROXY_TAILNET[served], 80)).unwrap();
        client.close().unwrap();
    }
}

fn r05_an_ipv6_route_behind_a_peer_is_carried_to_the_tailnet(make: Make) {
    let topology = Topology::new().unwrap();
    topology.tailnet.ip(["address add 2001:db8:9::5/128 dev tail0 nodad"]).unwrap();
    topology.proxy.ip(["route add 2001:db8:9::/64 dev tailscale0"]).unwrap();
    let _server = TcpServer::new(&topology.tailnet, "[2001:db8:9::5]:7000").unwrap();
    let driver = Driver::new(&topology, make);
    let action = Action::Forward { to: Side::Tailnet, snat: Snat::Masquerade };
    driver.apply(&table([rule("lan", Side::Cluster, Protocol::Tcp, "2001:db8:9::/64", 0, action)]));
    let mut client = Client::connect(&topology.cluster, at("2001:db8:9::5", 7000)).unwrap();
    assert_eq!(client.seen_ip().to_string(), PROXY_TAILNET[1]);
    client.echo(100_000).unwrap();
}

fn r06_the_ipv6_source_is_translated(make: Make) {
    let topology = Topology::new().unwrap();
    let _server = TcpServer::new(&topology.cluster, "[::]:8080").unwrap();
    let driver = Driver::new(&topology, make);
    driver.apply(&table([web(1, dnat(&[&host(1)], Snat::Masquerade))]));
    let client = Client::connect(&topology.tailnet, at(PROXY_TAILNET[1], 80)).unwrap();
    assert_eq!(client.seen_ip().to_string(), PROXY_CLUSTER[1]);
    client.close().unwrap();
}
