//! Links of different MTU, and super-packets.

use proxy_rules::{Protocol, Side, Snat};
use proxy_testbed::{
    DEADLINE, Namespace, Topology,
    topology::{HOSTS, PEERS, PROXY_CLUSTER, PROXY_TAILNET},
    traffic::{
        icmp::Pinger,
        tcp::{Client, TcpServer},
    },
};

use crate::{
    driver::{Driver, Make, on_each_path},
    rules::{at, dnat, rule, table},
};

on_each_path!(
    r07_five_megabytes_each_way_pass_though_icmp_errors_are_blocked,
    r08_the_mss_is_clamped_behind_an_earlier_chain_that_accepts,
    r09_a_later_hops_packet_too_big_reaches_the_sender_as_its_own,
    r13_pings_up_to_the_mtu_pass_and_larger_ones_are_answered_by_an_error,
    r15_super_packets_pass_without_retransmissions_or_bad_checksums,
);

/// Ingress port 80 and egress port 81 of both families.
fn both_ways() -> proxy_rules::RuleTable {
    let rules = [0, 1].map(|family| {
        let host = at(HOSTS[0][family], 8080).to_string();
        let peer = at(PEERS[0][family], 8080).to_string();
        let (web, out) = (dnat(&[&host], Snat::Masquerade), dnat(&[&peer], Snat::Masquerade));
        [
            rule("web", Side::Tailnet, Protocol::Tcp, PROXY_TAILNET[family], 80, web),
            rule("out", Side::Cluster, Protocol::Tcp, PROXY_CLUSTER[family], 81, out),
        ]
    });
    table(rules.concat())
}

fn servers(topology: &Topology) -> [TcpServer; 2] {
    [&topology.cluster, &topology.tailnet].map(|ns| TcpServer::new(ns, "[::]:8080").unwrap())
}

fn clients(topology: &Topology, family: usize) -> [Client; 2] {
    [
        Client::connect(&topology.tailnet, at(PROXY_TAILNET[family], 80)).unwrap(),
        Client::connect(&topology.cluster, at(PROXY_CLUSTER[family], 81)).unwrap(),
    ]
}

/// The largest segment on a link of 1280 bytes, less the time stamp option.
const SEGMENT: [u32; 2] = [1240 - 12, 1220 - 12];

fn r07_five_megabytes_each_way_pass_though_icmp_errors_are_blocked(make: Make) {
    let topology = Topology::new().unwrap();
    // Only the proxy knows that its TUN is narrow.
    topology.tailnet.ip(["link set tail0 mtu 1500"]).unwrap();
    let deaf = "table inet deaf { chain in { type filter hook input priority 0;
        icmp type destination-unreachable drop; icmpv6 type packet-too-big drop
        }
    }";
    for namespace in [&topology.tailnet, &topology.cluster] {
        namespace.feed("nft", &["-f", "-"], deaf).unwrap();
    }
    let _servers = servers(&topology);
    let driver = Driver::new(&topology, make);
    driver.apply(&both_ways());
    for family in [0, 1] {
        for mut client in clients(&topology, family) {
            assert!(client.info().unwrap().send_mss <= SEGMENT[family]);
            client.echo(5 << 20).unwrap();
        }
    }
}

fn r08_the_mss_is_clamped_behind_an_earlier_chain_that_accepts(make: Make) {
    let topology = Topology::new().unwrap();
    topology.tailnet.ip(["link set tail0 mtu 1500"]).unwrap();
    let foreign = "table inet foreign { chain forward { type filter hook forward priority -300;
        iifname tailscale0 accept; oifname tailscale0 accept
        }
    }";
    topology.proxy.feed("nft", &["-f", "-"], foreign).unwrap();
    let _servers = servers(&topology);
    let driver = Driver::new(&topology, make);
    driver.apply(&both_ways());
    for family in [0, 1] {
        for client in clients(&topology, family) {
            assert_eq!(client.info().unwrap().send_mss, SEGMENT[family]);
        }
    }
}

fn r09_a_later_hops_packet_too_big_reaches_the_sender_as_its_own(make: Make) {
    let topology = Topology::new().unwrap();
    topology.tailnet.ip(["link set tail0 mtu 1500"]).unwrap();
    topology.proxy.ip(["link set tailscale0 mtu 1500"]).unwrap();
    let far = Namespace::new().unwrap();
    topology.cluster.link("eth1", &far, "eth0", 1500).unwrap();
    topology.cluster.sysctl("net/ipv4/ip_forward", "1").unwrap();
    topology.cluster.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
    topology
        .cluster
        .ip([
            "address add 198.51.100.1/24 dev eth1",
            "address add 2001:db8:3::1/64 dev eth1 nodad",
            "link set eth1 mtu 1300",
        ])
        .unwrap();
    far.ip([
        "address add 198.51.100.2/24 dev eth0",
        "address add 2001:db8:3::2/64 dev eth0 nodad",
        "route add default via 198.51.100.1",
        "route add default via 2001:db8:3::1",
    ])
    .unwrap();
    topology
        .proxy
        .ip([
            "route add 198.51.100.0/24 via 192.0.2.10",
            "route add 2001:db8:3::/64 via 2001:db8:2::10",
        ])
        .unwrap();
    let _server = TcpServer::new(&far, "[::]:8080").unwrap();
    let driver = Driver::new(&topology, make);
    driver.apply(&table([0, 1].map(|family| {
        let host = at(["198.51.100.2", "2001:db8:3::2"][family], 8080).to_string();
        let to = dnat(&[&host], Snat::Masquerade);
        rule("web", Side::Tailnet, Protocol::Tcp, PROXY_TAILNET[family], 80, to)
    })));
    for family in [0, 1] {
        let to = at(PROXY_TAILNET[family], 80);
        let mut client = Client::connect(&topology.tailnet, to).unwrap();
        assert_eq!(client.info().unwrap().path_mtu, 1500);
        client.echo(100_000).unwrap();
        assert_eq!(client.info().unwrap().path_mtu, 1300, "{to}");
    }
}

fn r13_pings_up_to_the_mtu_pass_and_larger_ones_are_answered_by_an_error(make: Make) {
    let topology = Topology::new().unwrap();
    let driver = Driver::new(&topology, make);
    driver.apply(&table([0, 1].map(|family| {
        let to = dnat(&[PEERS[0][family]], Snat::Masquerade);
        rule("ping", Side::Cluster, Protocol::Icmp, PROXY_CLUSTER[family], 0, to)
    })));
    for (family, header) in [(0, 28), (1, 48)] {
        let to = PROXY_CLUSTER[family].parse().unwrap();
        let mut ping = Pinger::new(&topology.cluster, to).unwrap();
        ping.dont_fragment().unwrap();
        for bytes in [0, 64, 1000, 1162, 1280 - header] {
            assert!(ping.ping(bytes, DEADLINE).unwrap().is_some(), "{bytes} bytes to {to}");
        }
        // The first one too large finds out, by the error that comes instead of an answer; then the sender knows.
        let silence = std::time::Duration::from_millis(300);
        let first = ping.ping(1281 - header, silence);
        assert!(!matches!(first, Ok(Some(_))), "{first:?}");
        let error = ping.ping(1281 - header, silence).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(90), "EMSGSIZE, not {error}");
    }
}

fn r15_super_packets_pass_without_retransmissions_or_bad_checksums(make: Make) {
    const BYTES: usize = 16 << 20;
    let topology = Topology::new().unwrap();
    let _servers = servers(&topology);
    let driver = Driver::new(&topology, make);
    driver.apply(&both_ways());
    for family in [0, 1] {
        let segments = BYTES as u64 / u64::from(SEGMENT[family]);
        // A path that sends super-packets wrongly loses some in every transfer. One transfer alone can also lose packets in the
        // rig: its pump shares two processors with the other tests, and TCP takes a late answer for a lost one.
        let best = (0..3).map(|_| {
            let again = clients(&topology, family).into_iter().map(|mut client| {
                client.echo(BYTES).unwrap();
                u64::from(client.info().unwrap().retransmits)
            });
            again.max().unwrap()
        });
        let best = best.min().unwrap();
        assert!(best * 1000 < segments, "{best} of {segments} segments sent again, at best");
    }
    for namespace in [&topology.tailnet, &topology.cluster] {
        let bad = proxy_testbed::counter::kernel(namespace, "Tcp", "InCsumErrors").unwrap();
        assert_eq!(bad, 0);
    }
}
