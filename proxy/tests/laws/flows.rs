//! Laws about flows: those of surviving backends survive; those of removed backends are re-homed or reset.

use std::io::ErrorKind;

use proxy_rules::{Action, BackendState, DropReason, Protocol, RuleTable, Side, Snat};
use proxy_testbed::{
    Topology,
    topology::{HOSTS, PROXY_TAILNET},
    traffic::{
        tcp::{Client, TcpServer},
        udp::{Answer, UdpClient, UdpServer},
    },
};

use crate::{
    count,
    driver::{Driver, Make, on_each_path},
    rules::{at, dnat, rule, table},
};

on_each_path!(
    established_flows_of_surviving_backends_survive,
    a_removed_backend_resets_tcp_and_its_udp_flows_are_re_homed,
    a_draining_backend_keeps_its_flows_and_gets_no_new_ones,
);

on_each_path!(
    userspace = crate::userspace:
    established_flows_of_surviving_backends_survive,
    a_removed_backend_resets_tcp_and_its_udp_flows_are_re_homed,
    a_draining_backend_keeps_its_flows_and_gets_no_new_ones,
);

/// TCP port 80 and UDP port 53 on both families, at these hosts' 8080 and 5353.
fn to(hosts: &[usize], draining: Option<usize>) -> RuleTable {
    let mut rules = Vec::new();
    for family in [0, 1] {
        let front = PROXY_TAILNET[family];
        for (id, protocol, port, there) in
            [("web", Protocol::Tcp, 80, 8080), ("dns", Protocol::Udp, 53, 5353)]
        {
            let all: Vec<String> =
                hosts.iter().map(|host| at(HOSTS[*host][family], there).to_string()).collect();
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            let mut action = dnat(&all, Snat::Masquerade);
            if let (Action::Dnat { backends, .. }, Some(draining)) = (&mut action, draining) {
                for backend in &mut backends.list {
                    if backend.address == at(HOSTS[draining][family], 0).ip() {
                        backend.state = BackendState::Draining;
                    }
                }
            }
            rules.push(rule(id, Side::Tailnet, protocol, front, port, action));
        }
    }
    table(rules)
}

fn servers(topology: &Topology) -> (TcpServer, Vec<UdpServer>) {
    let udp = |host: &str| {
        UdpServer::new(&topology.cluster, &at(host, 5353).to_string(), Answer::Names).unwrap()
    };
    let udp = HOSTS.iter().take(2).flatten().map(|host| udp(host)).collect();
    (TcpServer::new(&topology.cluster, "[::]:8080").unwrap(), udp)
}

fn web(topology: &Topology, family: usize) -> Client {
    Client::connect(&topology.tailnet, at(PROXY_TAILNET[family], 80)).unwrap()
}

fn established_flows_of_surviving_backends_survive(make: Make) {
    let topology = Topology::new().unwrap();
    let _servers = servers(&topology);
    let driver = Driver::new(&topology, make);
    driver.apply(&to(&[0], None));
    let mut clients = [web(&topology, 0), web(&topology, 1)];
    let asking =
        [0, 1].map(|f| UdpClient::new(&topology.tailnet, at(PROXY_TAILNET[f], 53)).unwrap());
    let homes = asking.each_ref().map(|client| client.names().unwrap());
    for hosts in [&[0, 1][..], &[1, 0, 2], &[0]] {
        driver.apply(&to(hosts, None));
        for client in &mut clients {
            client.echo(50_000).unwrap();
        }
        assert_eq!(asking.each_ref().map(|client| client.names().unwrap()), homes);
    }
    assert_eq!(count(&driver.counters(), "web").flows, 2);
    assert_eq!(count(&driver.counters(), "dns").flows, 2);
}

fn a_removed_backend_resets_tcp_and_its_udp_flows_are_re_homed(make: Make) {
    let topology = Topology::new().unwrap();
    let _servers = servers(&topology);
    let driver = Driver::new(&topology, make);
    driver.apply(&to(&[0], None));
    let clients = [web(&topology, 0), web(&topology, 1)];
    let asking =
        [0, 1].map(|f| UdpClient::new(&topology.tailnet, at(PROXY_TAILNET[f], 53)).unwrap());
    for (family, client) in asking.iter().enumerate() {
        assert_eq!(client.names().unwrap().0, at(HOSTS[0][family], 5353));
    }
    driver.apply(&to(&[1], None));
    for mut client in clients {
        let error = client.echo(10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    for (family, client) in asking.iter().enumerate() {
        assert_eq!(client.names().unwrap().0, at(HOSTS[1][family], 5353));
    }
    let snapshot = driver.counters();
    assert!(snapshot.drops[&DropReason::BackendGone] >= 2, "{snapshot:#?}");
    web(&topology, 0).close().unwrap();
}

fn a_draining_backend_keeps_its_flows_and_gets_no_new_ones(make: Make) {
    let topology = Topology::new().unwrap();
    let _servers = servers(&topology);
    let driver = Driver::new(&topology, make);
    driver.apply(&to(&[0], None));
    let mut old = web(&topology, 0);
    driver.apply(&to(&[0, 1], Some(0)));
    for _ in 0..8 {
        let new = web(&topology, 0);
        assert_eq!(new.server.ip().to_canonical(), at(HOSTS[1][0], 0).ip());
    }
    old.echo(50_000).unwrap();
}
