//! One table: what is forwarded, by which data path, of which family.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use proxy_testbed::{
    tailnet::Tailnet,
    topology::{HOSTS, PROXY_CLUSTER},
    traffic::tcp::Client,
};

use crate::pod::{KERNEL_PATHS, Place, Servers, counted, exchange, serve_all};

#[test]
fn ingress_to_an_address_of_the_cluster() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        for v4 in [false, true] {
            let name = format!("pod{index}{v4}");
            let backend = HOSTS[1][usize::from(!v4)];
            let place = Place::new(&tailnet, &name).unwrap().with("TS_DEST_IP", backend);
            let _servers = Servers::new(&place.cluster, backend, 80).unwrap();
            let pod = place.start(data_path).unwrap();
            peer.meet(&name).unwrap();
            let frontend = SocketAddr::new(pod.address(v4).unwrap(), 80);
            exchange(&peer.underlay.namespace, frontend)
                .with_context(|| format!("{data_path}: {}", pod.daemon.log()))
                .unwrap();
            let client = Client::connect(&peer.underlay.namespace, frontend).unwrap();
            assert_eq!(client.server.ip().to_canonical(), backend.parse::<IpAddr>().unwrap());
            assert_eq!(
                client.seen_ip(),
                PROXY_CLUSTER[usize::from(!v4)].parse::<IpAddr>().unwrap()
            );
            let (_, _, flows) = counted(&pod, "ingress", "tcp").unwrap();
            assert_eq!(flows, 2, "{data_path}");
            let (original, reply, flows) = counted(&pod, "ingress", "udp").unwrap();
            assert_eq!((original, reply, flows), (20, 20, 1), "{data_path}");
            let (original, reply, flows) = counted(&pod, "ingress", "icmp").unwrap();
            assert_eq!((original, reply, flows), (5, 5, 1), "{data_path}");
            assert_eq!(pod.status().unwrap()["data_path"]["kind"], *data_path);
        }
    }
}

#[test]
fn egress_to_an_address_and_to_a_name_of_the_tailnet() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let target = tailnet.joined("target", &[]).unwrap();
    let addresses = target.addresses().unwrap();
    let _servers = serve_all(&target.underlay.namespace, &addresses, 80).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let name = format!("pod{index}");
        let place = Place::new(&tailnet, &name)
            .unwrap()
            .with("TS_TAILNET_TARGET_FQDN", "target.tailnet.ts.net.");
        let pod = place.start(data_path).unwrap();
        target.meet(&name).unwrap();
        for (v4, at) in [(true, 0), (false, 1)] {
            let frontend = SocketAddr::new(PROXY_CLUSTER[at].parse().unwrap(), 80);
            exchange(&pod.place.cluster, frontend)
                .with_context(|| format!("{data_path}: {}", pod.daemon.log()))
                .unwrap();
            let client = Client::connect(&pod.place.cluster, frontend).unwrap();
            assert!(addresses.contains(&client.server.ip().to_canonical()));
            assert_eq!(client.seen_ip(), pod.address(v4).unwrap());
        }
        let (_, _, flows) = counted(&pod, "egress", "any").unwrap();
        assert_eq!(flows, 8, "{data_path}: two TCP connections, UDP and ICMP of each family");
    }
}
