//! An nft flowtable: established flows that the host forwards skip its chains, and with them whatever counts there.

use proxy_rules::{Protocol, RuleTable, Side, Snat};
use proxy_testbed::{
    Namespace, Topology,
    topology::{HOSTS, PROXY_CLUSTER, PROXY_TAILNET},
    traffic::{
        tcp::{Client, TcpServer},
        udp::{Answer, UdpClient, UdpServer},
    },
};

use crate::{
    count,
    driver::{self, Driver, Make, on_each_path, skipped},
    rules::{at, dnat, rule, table},
};

const ASKED: u64 = 40;

/// Somebody's rules: everything that is forwarded between these devices is offloaded once it is established.
fn offload(namespace: &Namespace, devices: &str) {
    let rules = format!(
        "table inet foreign {{
            flowtable fast {{ hook ingress priority filter; devices = {{ {devices} }}; }}
            chain forward {{
                type filter hook forward priority filter; policy accept;
                meta l4proto {{ tcp, udp }} flow add @fast
                counter
            }}
        }}"
    );
    namespace.feed("nft", &["-f", "-"], &rules).unwrap();
}

/// TCP and UDP of both families from the tailnet to the first host.
fn services() -> RuleTable {
    let mut rules = Vec::new();
    for family in [0, 1] {
        for (id, protocol, port, there) in
            [("web", Protocol::Tcp, 80, 8080), ("dns", Protocol::Udp, 53, 5353)]
        {
            let to = dnat(&[&at(HOSTS[0][family], there).to_string()], Snat::Masquerade);
            rules.push(rule(id, Side::Tailnet, protocol, PROXY_TAILNET[family], port, to));
        }
    }
    table(rules)
}

fn servers(topology: &Topology) -> (TcpServer, [UdpServer; 2]) {
    let web = TcpServer::new(&topology.cluster, "[::]:8080").unwrap();
    let dns = HOSTS[0].map(|host| {
        UdpServer::new(&topology.cluster, &at(host, 5353).to_string(), Answer::Names).unwrap()
    });
    (web, dns)
}

/// Asks on one socket a family, so that each is one flow, and demands every answer.
fn ask(clients: &[UdpClient; 2]) {
    for client in clients {
        for _ in 0..ASKED {
            client.names().unwrap();
        }
    }
}

fn clients(topology: &Topology) -> [UdpClient; 2] {
    [0, 1].map(|f| UdpClient::new(&topology.tailnet, at(PROXY_TAILNET[f], 53)).unwrap())
}

fn transfer(topology: &Topology) {
    for front in PROXY_TAILNET {
        let mut client = Client::connect(&topology.tailnet, at(front, 80)).unwrap();
        client.echo(200_000).unwrap();
        client.close().unwrap();
    }
}

/// Flows that the kernel's connection tracking says are offloaded.
fn offloaded(namespace: &Namespace) -> usize {
    ["ipv4", "ipv6"]
        .map(|family| namespace.run("conntrack", &["-L", "-f", family, "-p", "udp"]).unwrap())
        .iter()
        .flat_map(|listed| listed.lines())
        .filter(|line| line.contains("[OFFLOAD]"))
        .count()
}

/// Packets that the foreign forward chain has let through.
fn forwarded(namespace: &Namespace) -> u64 {
    let listed = namespace.run("nft", &["list", "chain", "inet", "foreign", "forward"]).unwrap();
    let mut words = listed.split_whitespace().skip_while(|word| *word != "packets").skip(1);
    words.next().unwrap().parse().unwrap()
}

#[test]
fn on_the_ebpf_path_a_flowtable_sees_no_packet_and_every_packet_is_counted() {
    if skipped() {
        return;
    }
    let topology = Topology::new().unwrap();
    let _servers = servers(&topology);
    offload(&topology.proxy, "eth0, tailscale0");
    let driver = Driver::new(&topology, driver::ebpf);
    driver.apply(&services());
    ask(&clients(&topology));
    transfer(&topology);
    let snapshot = driver.counters();
    let dns = count(&snapshot, "dns");
    assert_eq!((dns.original_packets, dns.reply_packets, dns.flows), (2 * ASKED, 2 * ASKED, 2));
    let web = count(&snapshot, "web");
    assert!(web.original_bytes > 400_000 && web.reply_bytes > 400_000, "{web:?}");
    assert_eq!(forwarded(&topology.proxy), 0);
}

/// What the README says under "Limits": carried right, and what was offloaded is not counted. Without the flowtable, or
/// before a flow is established, every packet is.
#[test]
fn on_the_nftables_path_offloaded_packets_are_carried_and_not_counted() {
    if skipped() {
        return;
    }
    let topology = Topology::new().unwrap();
    let _servers = servers(&topology);
    offload(&topology.proxy, "eth0, tailscale0");
    let driver = Driver::new(&topology, driver::nftables);
    driver.apply(&services());
    let clients = clients(&topology);
    ask(&clients);
    transfer(&topology);
    assert_eq!(offloaded(&topology.proxy), 2);
    let dns = count(&driver.counters(), "dns");
    assert_eq!(dns.flows, 2);
    assert!((2..2 * ASKED).contains(&dns.original_packets), "{dns:?}");
    assert!((2..2 * ASKED).contains(&dns.reply_packets), "{dns:?}");

    topology.proxy.run("nft", &["delete", "table", "inet", "foreign"]).unwrap();
    ask(&clients);
    let after = count(&driver.counters(), "dns");
    assert_eq!(after.original_packets - dns.original_packets, 2 * ASKED);
    assert_eq!(after.reply_packets - dns.reply_packets, 2 * ASKED);
}

fn r17_what_the_host_forwards_stays_offloaded_and_is_not_counted(make: Make) {
    let topology = Topology::new().unwrap();
    let (lan, wan) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    for (device, namespace, network) in [("lan0", &lan, "198.51.100"), ("wan0", &wan, "203.0.113")]
    {
        topology.proxy.link(device, namespace, "eth0", 1500).unwrap();
        topology.proxy.ip([format!("address add {network}.1/24 dev {device}").as_str()]).unwrap();
        namespace
            .ip([
                format!("address add {network}.2/24 dev eth0").as_str(),
                &format!("route add default via {network}.1"),
            ])
            .unwrap();
    }
    topology.proxy.sysctl("net/ipv4/ip_forward", "1").unwrap();
    offload(&topology.proxy, "lan0, wan0");
    let _server = UdpServer::new(&wan, "203.0.113.2:7", Answer::Names).unwrap();
    let client = UdpClient::new(&lan, at("203.0.113.2", 7)).unwrap();
    client.names().unwrap();
    client.names().unwrap();
    assert_eq!(offloaded(&topology.proxy), 1);
    let driver = Driver::new(&topology, make);
    let to = dnat(&["100.64.0.10:53"], Snat::Masquerade);
    driver.apply(&table([rule("dns", Side::Cluster, Protocol::Udp, PROXY_CLUSTER[0], 53, to)]));
    for _ in 0..ASKED {
        client.names().unwrap();
    }
    assert_eq!(offloaded(&topology.proxy), 1);
    let snapshot = driver.counters();
    assert_eq!(count(&snapshot, "dns").original_packets, 0);
    assert!(snapshot.drops.values().all(|packets| *packets == 0), "{snapshot:#?}");
}

on_each_path!(r17_what_the_host_forwards_stays_offloaded_and_is_not_counted);
