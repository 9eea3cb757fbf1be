//! Sizes of packets on a real tailnet: what users ran into, named by the catalogue of cases.

use std::net::SocketAddr;

use proxy_testbed::{
    Namespace,
    tailnet::Tailnet,
    topology::{HOSTS, PROXY_CLUSTER},
    traffic::tcp::{Client, TcpServer},
};
use serde_json::{Value, json};

use crate::pod::{CHANGE, KERNEL_PATHS, Place, Servers, leads_to, serve_all};

/// The largest segments through tailscaled's device of 1280 bytes, by family.
const SEGMENT: [u32; 2] = [1240, 1220];

/// R07: five megabytes each way between a link of 1500 and a tunnel of 1280, with ICMP blocked: nothing but the segment size
/// that both ends agree on can save them.
#[test]
fn r07_segments_fit_the_tunnel_in_both_directions() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let at = peer.addresses().unwrap();
    let _peer_servers = serve_all(&peer.underlay.namespace, &at, 81).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let name = format!("pod{index}");
        let place = Place::new(&tailnet, &name)
            .unwrap()
            .with("TS_DEST_IP", HOSTS[1][0])
            .with("TS_TAILNET_TARGET_FQDN", "peer.tailnet.ts.net");
        let _servers = Servers::new(&place.cluster, HOSTS[1][0], 80).unwrap();
        for namespace in [&place.cluster, &peer.underlay.namespace] {
            let rules = "table inet block { chain input { type filter hook input priority 0; icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }; }";
            namespace.run("nft", &["destroy table inet block"]).ok();
            namespace.run("nft", &[rules]).unwrap();
        }
        let pod = place.start(data_path).unwrap();
        peer.meet(&name).unwrap();
        let ingress = SocketAddr::new(pod.address(true).unwrap(), 80);
        let egress = PROXY_CLUSTER.map(|text| SocketAddr::new(text.parse().unwrap(), 81));
        let directions = [
            (&peer.underlay.namespace, ingress),
            (&pod.place.cluster, egress[0]),
            (&pod.place.cluster, egress[1]),
        ];
        for (from, to) in directions {
            let mut client = Client::connect(from, to).unwrap();
            let largest = SEGMENT[usize::from(to.is_ipv6())];
            let used = client.info().unwrap().send_mss;
            assert!(used <= largest, "{data_path}: {to}: segments of {used} bytes");
            client.echo(5_000_000).map_err(|error| format!("{data_path}: {to}: {error}")).unwrap();
        }
    }
}

/// R08: rules of others accept what comes from the tailnet before ours are asked; segments are limited all the same.
#[test]
fn r08_segments_are_limited_behind_an_earlier_chain_that_accepts() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let foreign = "table inet foreign { chain forward { type filter hook forward priority -300;
        iifname tailscale0 accept; oifname tailscale0 accept
        }
    }";
    // Nothing but the limit is between them.
    peer.underlay.namespace.ip(["link set tailscale0 mtu 1400"]).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        for family in [0, 1] {
            let name = format!("pod{index}{family}");
            let backend = HOSTS[1][family];
            let place = Place::new(&tailnet, &name).unwrap().with("TS_DEST_IP", backend);
            place.underlay.namespace.feed("nft", &["-f", "-"], foreign).unwrap();
            let _servers = Servers::new(&place.cluster, backend, 80).unwrap();
            let pod = place.start(data_path).unwrap();
            peer.meet(&name).unwrap();
            let to = SocketAddr::new(pod.address(family == 0).unwrap(), 80);
            let client = Client::connect(&peer.underlay.namespace, to).unwrap();
            let used = client.info().unwrap().send_mss;
            // A time stamp takes twelve bytes of each.
            assert!(used <= SEGMENT[family] && used >= SEGMENT[family] - 12, "{data_path}: {used}");
        }
    }
}

/// R09: a hop behind the pod takes smaller packets only, and says so: the sender hears it of the connection that it has.
#[test]
fn r09_a_later_hops_packet_too_big_reaches_the_peer_as_its_own() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    peer.underlay.namespace.ip(["link set tailscale0 mtu 1400"]).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let name = format!("pod{index}");
        let place = Place::new(&tailnet, &name).unwrap();
        let far = Namespace::new().unwrap();
        place.cluster.link("eth1", &far, "eth0", 1500).unwrap();
        place.cluster.sysctl("net/ipv4/ip_forward", "1").unwrap();
        place.cluster.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
        let hop = [
            "address add 198.51.100.1/24 dev eth1",
            "address add 2001:db8:3::1/64 dev eth1 nodad",
            "link set eth1 mtu 1300",
        ];
        place.cluster.ip(hop).unwrap();
        let end = [
            "address add 198.51.100.2/24 dev eth0",
            "address add 2001:db8:3::2/64 dev eth0 nodad",
            "route add default via 198.51.100.1",
            "route add default via 2001:db8:3::1",
        ];
        far.ip(end).unwrap();
        let [v4, v6] = HOSTS[0];
        let ways = [
            format!("route add 198.51.100.0/24 via {v4}"),
            format!("route add 2001:db8:3::/64 via {v6}"),
        ];
        place.underlay.namespace.ip(ways.iter().map(String::as_str)).unwrap();
        let _server = TcpServer::new(&far, "[::]:8080").unwrap();
        let backends = ["198.51.100.2", "2001:db8:3::2"];
        let rules = json!({
            "apiVersion": "sluice.dev/v1", "kind": "ProxyRules",
            "ingress": [{
                "name": "web", "frontends": ["tailnet"],
                "ports": [{"protocol": "tcp", "port": 80, "targetPort": 8080}],
                "backends": backends.map(|address| json!({"address": address})),
            }],
        });
        let path = place.write("rules.yaml", &rules.to_string()).unwrap();
        let pod =
            place.with("SLUICE_CONFIG", &path.display().to_string()).start(data_path).unwrap();
        pod.place.underlay.namespace.ip(["link set tailscale0 mtu 1400"]).unwrap();
        let of = |s: &Value, address: &str| leads_to(s, "web", &[address.parse().unwrap()]);
        pod.wait(CHANGE * 5, "the rules", |s| backends.iter().all(|at| of(s, at))).unwrap();
        peer.meet(&name).unwrap();
        for v4 in [true, false] {
            let to = SocketAddr::new(pod.address(v4).unwrap(), 80);
            peer.ping(to.ip()).unwrap();
            let mut client = Client::connect(&peer.underlay.namespace, to).unwrap();
            assert_eq!(client.info().unwrap().path_mtu, 1400, "{data_path}: {to}");
            client.echo(100_000).map_err(|error| format!("{data_path}: {to}: {error}")).unwrap();
            assert_eq!(client.info().unwrap().path_mtu, 1300, "{data_path}: {to}");
        }
    }
}
