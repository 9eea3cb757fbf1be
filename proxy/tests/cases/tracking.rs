//! Flows, ports and fragments.

use std::{collections::BTreeSet, time::Duration};

use proxy_rules::{
    DropReason, Protocol, RuleTable, Settings, Side, Snat, SnatPorts,
    packet::{Build, checksum},
};
use proxy_testbed::{
    DEADLINE, Namespace, Topology,
    topology::{HOSTS, PEERS, PROXY_CLUSTER, PROXY_TAILNET},
    traffic::{
        icmp::Pinger,
        tcp::{Client, TcpServer},
        udp::{Answer, UdpClient, UdpServer},
    },
};

use crate::{
    driver::{Driver, Make, ebpf, nftables, on_each_path, skipped},
    rules::{at, dnat, rule, settings, table},
};

on_each_path!(
    r16_a_session_of_the_host_itself_is_never_taken_over_by_a_later_rule,
    r17_unrelated_forwarding_is_untouched_and_counts_nothing,
    r22_datagrams_in_fragments_are_carried,
    r22_fragments_are_dropped_and_counted_where_they_are_disabled,
);

fn r16_a_session_of_the_host_itself_is_never_taken_over_by_a_later_rule(make: Make) {
    let topology = Topology::new().unwrap();
    let _host = TcpServer::new(&topology.cluster, "[::]:8080").unwrap();
    let _target = TcpServer::new(&topology.tailnet, "[::]:8080").unwrap();
    let driver = Driver::new(&topology, make);
    let egress = table([0, 1].map(|family| {
        let to = dnat(&[PEERS[0][family]], Snat::Masquerade);
        rule("target", Side::Cluster, Protocol::Tcp, PROXY_CLUSTER[family], 0, to)
    }));
    for order in [["open", "apply"], ["apply", "open"]] {
        driver.apply(&table([]));
        let mut sessions = Vec::new();
        for step in order {
            if step == "apply" {
                driver.apply(&egress);
            } else {
                sessions.extend([0, 1].map(|family| {
                    Client::connect(&topology.proxy, at(HOSTS[0][family], 8080)).unwrap()
                }));
            }
        }
        for session in &mut sessions {
            session.echo(20_000).unwrap();
        }
        for family in [0, 1] {
            let to = at(PROXY_CLUSTER[family], 8080);
            let client = Client::connect(&topology.cluster, to).unwrap();
            assert_eq!(client.server.ip().to_canonical().to_string(), PEERS[0][family]);
        }
    }
}

fn r17_unrelated_forwarding_is_untouched_and_counts_nothing(make: Make) {
    let topology = Topology::new().unwrap();
    let (lan, wan) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    topology.proxy.sysctl("net/ipv4/ip_forward", "1").unwrap();
    for (device, namespace, own, there) in [
        ("lan0", &lan, "198.51.100.1", "198.51.100.2"),
        ("wan0", &wan, "203.0.113.1", "203.0.113.2"),
    ] {
        topology.proxy.link(device, namespace, "eth0", 1500).unwrap();
        topology.proxy.ip([format!("address add {own}/24 dev {device}").as_str()]).unwrap();
        namespace
            .ip([
                format!("address add {there}/24 dev eth0").as_str(),
                &format!("route add default via {own}"),
            ])
            .unwrap();
    }
    let _server = TcpServer::new(&wan, "0.0.0.0:80").unwrap();
    let to = dnat(&[HOSTS[0][0]], Snat::Masquerade);
    let web = table([rule("web", Side::Tailnet, Protocol::Tcp, PROXY_TAILNET[0], 80, to)]);
    let mut ping = Pinger::new(&lan, "203.0.113.2".parse().unwrap()).unwrap();
    let mut session = Client::connect(&lan, at("203.0.113.2", 80)).unwrap();
    let driver = Driver::new(&topology, make);
    for table in [&web, &table([]), &web] {
        driver.apply(table);
        session.echo(10_000).unwrap();
        assert_eq!(ping.pings(5, 56, DEADLINE).unwrap(), 5);
    }
    let snapshot = driver.counters();
    assert!(snapshot.series.values().all(|count| *count == proxy_rules::Count::default()));
    assert!(snapshot.drops.values().all(|packets| *packets == 0), "{snapshot:?}");
    driver.remove();
    session.echo(10_000).unwrap();
    assert_eq!(ping.pings(5, 56, DEADLINE).unwrap(), 5);
}

#[test]
fn r20_a_small_pool_gives_nine_tenths_of_its_ports_once_each_and_never_a_reserved_one() {
    if !skipped() {
        small_pool(ebpf, 48);
    }
}

/// The kernel draws a range between reserved ports and stays in it, so that a pool cannot be used up; the smaller of
/// the two ranges holds ten.
#[test]
fn r20_nftables_uses_no_port_twice_and_never_a_reserved_one() {
    if !skipped() {
        small_pool(nftables, 8);
    }
}

fn small_pool(make: Make, clients: usize) {
    let topology = Topology::new().unwrap();
    let _server = TcpServer::new(&topology.cluster, "[::]:8080").unwrap();
    let driver = Driver::new(&topology, make);
    let reserved: Vec<u16> = (40_010..40_020).collect();
    let snat_ports =
        SnatPorts { first: 40_000, last: 40_063, reserved: reserved.clone(), tries: 64 };
    let rules = [0, 1].map(|family| {
        let to = dnat(&[&at(HOSTS[0][family], 8080).to_string()], Snat::Masquerade);
        rule("web", Side::Tailnet, Protocol::Tcp, PROXY_TAILNET[family], 80, to)
    });
    driver.apply(&RuleTable::new(rules.to_vec(), Settings { snat_ports, ..settings() }));
    for family in [0, 1] {
        let to = at(PROXY_TAILNET[family], 80);
        let clients: Vec<Client> =
            (0..clients).map(|_| Client::connect(&topology.tailnet, to).unwrap()).collect();
        let ports: BTreeSet<u16> = clients.iter().map(|client| client.seen.port()).collect();
        assert_eq!(ports.len(), clients.len());
        assert!(ports.iter().all(|port| (40_000..=40_063).contains(port)), "{ports:?}");
        assert!(reserved.iter().all(|port| !ports.contains(port)), "{ports:?}");
    }
}

fn fragments(make: Make, fragments: proxy_rules::Fragments) -> (Topology, Driver, [UdpServer; 2]) {
    // So narrow that answers, which Linux sends with DF at first, fit the TUN.
    let topology = Topology::with_cluster_mtu(1280).unwrap();
    let servers = [0, 1].map(|family| {
        UdpServer::new(&topology.cluster, &at(HOSTS[0][family], 53).to_string(), Answer::Echo)
            .unwrap()
    });
    let driver = Driver::new(&topology, make);
    let rules = [0, 1].map(|family| {
        let to = dnat(&[HOSTS[0][family]], Snat::Masquerade);
        rule("dns", Side::Tailnet, Protocol::Udp, PROXY_TAILNET[family], 53, to)
    });
    driver.apply(&RuleTable::new(rules.to_vec(), Settings { fragments, ..settings() }));
    (topology, driver, servers)
}

fn r22_datagrams_in_fragments_are_carried(make: Make) {
    let (topology, _driver, _servers) = fragments(make, proxy_rules::Fragments::Track);
    for family in [0, 1] {
        let client = UdpClient::new(&topology.tailnet, at(PROXY_TAILNET[family], 53)).unwrap();
        // Around what fits the MTU, 1252 and 1232 bytes; then two and more pieces.
        for bytes in (1225..=1260).step_by(3).chain([1444, 1448, 1472, 1480, 8000]) {
            let got = client.ask(&vec![bytes as u8; bytes]);
            assert_eq!(
                got.map(|got| got.len()).ok(),
                Some(bytes),
                "{bytes} bytes, family {family}"
            );
        }
    }
}

fn r22_fragments_are_dropped_and_counted_where_they_are_disabled(make: Make) {
    let (topology, driver, _servers) = fragments(make, proxy_rules::Fragments::Drop);
    for family in [0, 1] {
        let client = UdpClient::new(&topology.tailnet, at(PROXY_TAILNET[family], 53)).unwrap();
        assert_eq!(client.echo(1, 1000).unwrap(), 1);
        client.socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        client.ask(&[0; 3000]).unwrap_err();
    }
    assert!(driver.counters().drops[&DropReason::FragmentsDisabled] >= 2);
}

/// A datagram of the first peer to the proxy's port 53, in two pieces: the first, the last.
fn pieces(id: u16) -> [Vec<u8>; 2] {
    let (from, to) = (at(PEERS[0][0], 5555), at(PROXY_TAILNET[0], 53));
    let whole = Build::udp(from, to).payload([7; 2000]).bytes();
    [(0, 1200), (1200, 2008)].map(|(start, end): (usize, usize)| {
        let mut piece = [&whole[..20], &whole[20 + start..20 + end]].concat();
        let more = if end < 2008 { 0x2000 } else { 0 };
        let words = [(piece.len() as u16, 2), (id, 4), (more | (start as u16 / 8), 6)];
        for (word, place) in words {
            piece[place..place + 2].copy_from_slice(&word.to_be_bytes());
        }
        checksum::fill_ipv4(&mut piece, 20);
        piece
    })
}

/// How long the answer is, and how many later fragments were dropped for want of a first one.
fn asks_in_pieces(make: Make, order: [usize; 2], id: u16) -> (Option<usize>, u64) {
    let (topology, driver, _servers) = fragments(make, proxy_rules::Fragments::Track);
    let (from, to) = (at(PEERS[0][0], 5555), at(PROXY_TAILNET[0], 53));
    let client = UdpClient::bound(&topology.tailnet, from, to).unwrap();
    let pieces = pieces(id);
    for piece in order {
        topology.tun.inject(&pieces[piece]).unwrap();
    }
    // What is dropped is counted at once: only an answer takes time.
    let lost = driver.counters().drops.values().any(|packets| *packets > 0);
    client.socket.set_read_timeout(Some(if lost { SHORT } else { DEADLINE })).unwrap();
    let mut answer = [0; 4096];
    let len = client.socket.recv(&mut answer).ok();
    let orphans = driver.counters().drops.get(&DropReason::FragmentWithoutFirst).copied();
    (len, orphans.unwrap_or_default())
}

const SHORT: Duration = Duration::from_millis(300);

#[test]
fn r22_a_later_fragment_before_its_first_is_dropped_and_counted() {
    if skipped() {
        return;
    }
    assert_eq!(asks_in_pieces(ebpf, [0, 1], 1), (Some(2000), 0), "in order");
    assert_eq!(asks_in_pieces(ebpf, [1, 0], 2), (None, 1), "reversed");
}

/// The kernel puts datagrams together before its connection tracking sees them.
#[test]
fn r22_nftables_carries_fragments_in_any_order() {
    if !skipped() {
        for order in [[0, 1], [1, 0]] {
            assert_eq!(asks_in_pieces(nftables, order, 3), (Some(2000), 0), "{order:?}");
        }
    }
}
