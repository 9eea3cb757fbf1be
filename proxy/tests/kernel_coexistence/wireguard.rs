//! The kernel's own WireGuard as the tailnet's device: no Ethernet header, like a TUN, and packets that it has decrypted
//! itself.

use proxy_rules::{Interfaces, Protocol, Rule, RuleTable, Settings, Side, Snat};
use proxy_testbed::{
    Namespace, Topology,
    topology::{HOSTS, PROXY_CLUSTER},
    traffic::{
        tcp::{Client, TcpServer},
        udp::{Answer, UdpClient, UdpServer},
    },
};

use crate::{
    count,
    driver::{Driver, Make, on_each_path},
    rules::{at, dnat, rule, settings},
};

on_each_path!(tcp_and_udp_are_carried_between_a_wireguard_tunnel_and_the_cluster);

/// The proxy's and the peer's addresses in the tunnel, by family.
const OURS: [&str; 2] = ["100.100.0.1", "2001:db8:77::1"];
const THEIRS: [&str; 2] = ["100.100.0.9", "2001:db8:77::9"];
const ASKED: u64 = 20;

/// One end of a tunnel.
struct End<'a> {
    namespace: &'a Namespace,
    /// Its address below the tunnel.
    under: &'static str,
    /// Its addresses in the tunnel.
    inside: [&'static str; 2],
    private: String,
    public: String,
}

impl<'a> End<'a> {
    fn new(namespace: &'a Namespace, under: &'static str, inside: [&'static str; 2]) -> Self {
        let private = namespace.run("wg", &["genkey"]).unwrap();
        let public = namespace.feed("wg", &["pubkey"], &private).unwrap().trim().to_owned();
        Self { namespace, under, inside, private, public }
    }

    /// Makes `wg0`, with the other end as its only peer.
    fn connect(&self, other: &Self) {
        let [v4, v6] = self.inside;
        self.namespace
            .ip([
                format!("address add {}/24 dev under0", self.under).as_str(),
                "link add wg0 type wireguard",
                &format!("address add {v4}/24 dev wg0"),
                &format!("address add {v6}/64 dev wg0 nodad"),
            ])
            .unwrap();
        let endpoint = format!("{}:51820", other.under);
        let peer = ["peer", &other.public, "allowed-ips", "0.0.0.0/0,::/0", "endpoint", &endpoint];
        let own = ["set", "wg0", "listen-port", "51820", "private-key", "/proc/self/fd/0"];
        self.namespace.feed("wg", &[&own[..], &peer].concat(), &self.private).unwrap();
        self.namespace.ip(["link set wg0 mtu 1420 up"]).unwrap();
    }
}

/// A tunnel between the tailnet's namespace and the proxy's, beside the usual TUN.
fn tunnel(topology: &Topology) {
    topology.proxy.link("under0", &topology.tailnet, "under0", 1500).unwrap();
    let ours = End::new(&topology.proxy, "203.0.113.1", OURS);
    let theirs = End::new(&topology.tailnet, "203.0.113.9", THEIRS);
    ours.connect(&theirs);
    theirs.connect(&ours);
}

fn services(family: usize) -> [Rule; 4] {
    let host = |port| at(HOSTS[0][family], port).to_string();
    let peer = |port| at(THEIRS[family], port).to_string();
    let (tailnet, cluster) = (OURS[family], PROXY_CLUSTER[family]);
    [
        ("web", Side::Tailnet, Protocol::Tcp, tailnet, 80, host(8080)),
        ("dns", Side::Tailnet, Protocol::Udp, tailnet, 53, host(5353)),
        ("out", Side::Cluster, Protocol::Tcp, cluster, 10_080, peer(8080)),
        ("ask", Side::Cluster, Protocol::Udp, cluster, 10_053, peer(5353)),
    ]
    .map(|(id, from, protocol, front, port, to)| {
        rule(id, from, protocol, front, port, dnat(&[&to], Snat::Masquerade))
    })
}

fn tcp_and_udp_are_carried_between_a_wireguard_tunnel_and_the_cluster(make: Make) {
    let topology = Topology::new().unwrap();
    tunnel(&topology);
    let mut servers = Vec::new();
    for (namespace, addresses) in [(&topology.cluster, HOSTS[0]), (&topology.tailnet, THEIRS)] {
        let web = TcpServer::new(namespace, "[::]:8080").unwrap();
        let dns = addresses.map(|address| {
            UdpServer::new(namespace, &at(address, 5353).to_string(), Answer::Names).unwrap()
        });
        servers.push((web, dns));
    }
    let before = topology.proxy.traces().unwrap();
    let driver = Driver::new(&topology, make);
    let interfaces = Interfaces { tailnet: vec!["wg0".into()], ..settings().interfaces };
    let rules = [services(0), services(1)].concat();
    driver.apply(&RuleTable::new(rules, Settings { interfaces, ..settings() }));

    for family in [0, 1] {
        for (from, front, web, dns, seen) in [
            (&topology.tailnet, OURS[family], 80, 53, PROXY_CLUSTER[family]),
            (&topology.cluster, PROXY_CLUSTER[family], 10_080, 10_053, OURS[family]),
        ] {
            let mut client = Client::connect(from, at(front, web)).unwrap();
            assert_eq!(client.seen_ip().to_canonical(), at(seen, 0).ip());
            client.echo(300_000).unwrap();
            client.close().unwrap();
            let client = UdpClient::new(from, at(front, dns)).unwrap();
            for _ in 0..ASKED {
                client.names().unwrap();
            }
        }
    }
    let snapshot = driver.counters();
    for id in ["dns", "ask"] {
        let counted = count(&snapshot, id);
        assert_eq!(
            (counted.original_packets, counted.reply_packets, counted.flows),
            (2 * ASKED, 2 * ASKED, 2),
            "{id}"
        );
    }
    for id in ["web", "out"] {
        let counted = count(&snapshot, id);
        assert!(counted.original_bytes > 600_000 && counted.reply_bytes > 600_000, "{counted:?}");
        assert_eq!(counted.flows, 2, "{id}");
    }
    driver.remove();
    assert_eq!(topology.proxy.traces().unwrap(), before);
}
