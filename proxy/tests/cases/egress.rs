//! Egress targets that come, go and change.

use proxy_rules::{Protocol, RuleTable, Side, Snat};
use proxy_testbed::{
    Topology,
    topology::{PEERS, PROXY_CLUSTER},
    traffic::{
        tcp::{Client, TcpServer},
        udp::{Answer, UdpClient, UdpServer},
    },
};

use crate::{
    driver::{Driver, Make, on_each_path},
    rules::{at, dnat, rule, table},
};

on_each_path!(
    r23_r25_what_is_installed_follows_the_target_at_every_step,
    r33_the_target_is_reached_on_its_own_port,
);

fn to_peer(peer: Option<usize>) -> RuleTable {
    let rules = [0, 1].map(|family| {
        peer.map(|peer| {
            let to = dnat(&[&at(PEERS[peer][family], 5353).to_string()], Snat::Masquerade);
            rule("target", Side::Cluster, Protocol::Udp, PROXY_CLUSTER[family], 53, to)
        })
    });
    table(rules.into_iter().flatten().collect::<Vec<_>>())
}

fn r23_r25_what_is_installed_follows_the_target_at_every_step(make: Make) {
    let topology = Topology::new().unwrap();
    let server = |host: &str| {
        UdpServer::new(&topology.tailnet, &at(host, 5353).to_string(), Answer::Names).unwrap()
    };
    let _servers: Vec<_> = PEERS.iter().take(3).flatten().map(|host| server(host)).collect();
    let driver = Driver::new(&topology, make);
    // Steps of a netmap: the target goes, comes back, changes its address, and back again.
    for step in [Some(1), None, Some(1), Some(2), Some(0), None, None, Some(2)] {
        driver.apply(&to_peer(step));
        for family in [0, 1] {
            let client = UdpClient::new(&topology.cluster, at(PROXY_CLUSTER[family], 53)).unwrap();
            match step {
                Some(peer) => assert_eq!(client.names().unwrap().0, at(PEERS[peer][family], 5353)),
                None => _ = client.names().unwrap_err(),
            }
        }
    }
}

fn r33_the_target_is_reached_on_its_own_port(make: Make) {
    let topology = Topology::new().unwrap();
    let _wrong = TcpServer::new(&topology.tailnet, "[::]:80").unwrap();
    let _right = TcpServer::new(&topology.tailnet, "[::]:8080").unwrap();
    let driver = Driver::new(&topology, make);
    driver.apply(&table([0, 1].map(|family| {
        let to = dnat(&[&at(PEERS[0][family], 8080).to_string()], Snat::Masquerade);
        rule("target", Side::Cluster, Protocol::Tcp, PROXY_CLUSTER[family], 80, to)
    })));
    for family in [0, 1] {
        let to = at(PROXY_CLUSTER[family], 80);
        let client = Client::connect(&topology.cluster, to).unwrap();
        assert_eq!(client.server.port(), 8080);
        client.close().unwrap();
    }
}
