//! Names: of the cluster's DNS with several addresses and a time to live; of the tailnet's Services and of 4via6.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use proxy_testbed::{
    Namespace,
    dns::NameServer,
    tailnet::{KeyOptions, Settings, Tailnet},
    topology::{HOSTS, PROXY_CLUSTER},
    traffic::tcp::Client,
};

use crate::pod::{KERNEL_PATHS, Place, Pod, Servers, counted, exchange, leads_to};

/// Seconds.
const TTL: u32 = 1;

fn addresses(hosts: &[usize]) -> Vec<IpAddr> {
    hosts.iter().flat_map(|host| HOSTS[*host]).map(|text| text.parse().unwrap()).collect()
}

/// Who answers a number of connections.
fn reached(from: &Namespace, to: SocketAddr) -> BTreeSet<IpAddr> {
    (0..40).map(|_| Client::connect(from, to).unwrap().server.ip().to_canonical()).collect()
}

/// R30 (the name of a headless Service with three pods), R32: every address is used, and one that leaves the name leaves the rules after its time to live.
#[test]
fn an_ingress_to_a_name_uses_all_its_addresses_and_follows_them() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let name = format!("pod{index}");
        let place = Place::new(&tailnet, &name)
            .unwrap()
            .with("TS_EXPERIMENTAL_DEST_DNS_NAME", "backends.example");
        place.write("root/etc/resolv.conf", &format!("nameserver {}\n", HOSTS[0][0])).unwrap();
        let server = NameServer::new(&place.cluster, HOSTS[0][0].parse().unwrap(), TTL).unwrap();
        server.set("backends.example", &addresses(&[0, 1, 2]));
        let every = addresses(&[0, 1, 2, 3]);
        let _servers: Vec<_> = every
            .iter()
            .map(|at| Servers::new(&place.cluster, &at.to_string(), 80).unwrap())
            .collect();
        let pod = place.start(data_path).unwrap();
        peer.meet(&name).unwrap();
        for v4 in [true, false] {
            let frontend = SocketAddr::new(pod.address(v4).unwrap(), 80);
            peer.ping(frontend.ip()).unwrap();
            let expected = addresses(&[0, 1, 2]).into_iter().filter(|at| at.is_ipv4() == v4);
            assert_eq!(reached(&peer.underlay.namespace, frontend), expected.collect());
            let mut kept = Client::connect(&peer.underlay.namespace, frontend).unwrap();
            let stays = HOSTS[1..3]
                .iter()
                .flatten()
                .any(|at| kept.server.ip().to_canonical().to_string() == *at);
            server.set("backends.example", &addresses(&[1, 2, 3]));
            let soon = Duration::from_secs(u64::from(TTL) + 2);
            pod.wait(soon, "the new addresses", |s| leads_to(s, "ingress", &addresses(&[1, 2, 3])))
                .unwrap();
            let expected = addresses(&[1, 2, 3]).into_iter().filter(|at| at.is_ipv4() == v4);
            assert_eq!(reached(&peer.underlay.namespace, frontend), expected.collect());
            if stays {
                kept.echo(1000).unwrap();
            }
            server.set("backends.example", &addresses(&[0, 1, 2]));
            pod.wait(soon, "the old ones", |s| leads_to(s, "ingress", &addresses(&[0, 1, 2])))
                .unwrap();
        }
        still_good_without_answers(&pod, &server, &peer.underlay.namespace);
        // The name is gone: connections are refused at once, and the pod says that it is not ready.
        server.silence(false);
        server.set("backends.example", &[]);
        pod.wait(Duration::from_secs(35), "no address", |s| {
            s["targets"][0]["reason"] == "unresolved"
        })
        .unwrap();
        assert_eq!(pod.status().unwrap()["ready"], false);
    }
}

/// A name server that is silent takes nothing away.
fn still_good_without_answers(pod: &Pod, server: &NameServer, from: &Namespace) {
    server.silence(true);
    let passed = std::time::Instant::now();
    proxy_testbed::poll_until(Duration::from_secs(10), "three times to live pass", || {
        passed.elapsed() > Duration::from_secs(3)
    })
    .unwrap();
    let frontend = SocketAddr::new(pod.address(true).unwrap(), 80);
    Client::connect(from, frontend).unwrap();
    assert_eq!(pod.status().unwrap()["ready"], true);
}

/// Egress to a Tailscale Service by its name: two hosts serve it, its address stands once in the rules. R05 beside it: a
/// target that has IPv6 only is never sent IPv4.
#[test]
fn an_egress_to_a_service_goes_to_its_address() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let vips: [IpAddr; 2] =
        ["100.99.0.9".parse().unwrap(), "fd7a:115c:a1e0:99::9".parse().unwrap()];
    tailnet.set_service("svc:db", &vips).unwrap();
    let host = tailnet.node("host").unwrap();
    let tagged = KeyOptions { tags: vec!["tag:k8s".into()], ..KeyOptions::default() };
    host.up(&tailnet.auth_key(&tagged).unwrap(), &[]).unwrap();
    let _server = Servers::new(&host.underlay.namespace, "127.0.0.1", 80).unwrap();
    host.cli(&["serve", "--service=svc:db", "--tcp=80", "tcp://127.0.0.1:80"]).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let place = Place::new(&tailnet, &format!("pod{index}"))
            .unwrap()
            .with("TS_EXTRA_ARGS", &format!("--login-server={} --accept-routes", tailnet.url()))
            .with("TS_TAILNET_TARGET_FQDN", "db.tailnet.ts.net");
        let pod = place.start(data_path).unwrap();
        host.meet(&format!("pod{index}")).unwrap();
        pod.wait(Duration::from_secs(5), "the Service's addresses", |s| {
            leads_to(s, "egress", &vips)
        })
        .unwrap();
        for family in [0, 1] {
            let frontend = SocketAddr::new(PROXY_CLUSTER[family].parse().unwrap(), 80);
            let mut client = Client::connect(&pod.place.cluster, frontend)
                .map_err(|error| format!("{data_path}: {error}\n{}", pod.daemon.log()))
                .unwrap();
            client.echo(100_000).unwrap();
        }
        let (_, _, flows) = counted(&pod, "egress", "any").unwrap();
        assert_eq!(flows, 2, "{data_path}");
    }
}

/// A site behind a subnet router whose IPv4 range others have too, by the name that its IPv6 stand-in has.
#[test]
fn an_egress_to_a_4via6_name_reaches_the_site() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    tailnet.configure(Settings { auto_approve: true, https: false }).unwrap();
    let site = tailnet.node("site").unwrap();
    site.underlay.namespace.ip(["address add 10.1.2.3/32 dev lo"]).unwrap();
    let _server = Servers::new(&site.underlay.namespace, "10.1.2.3", 80).unwrap();
    let key = tailnet.auth_key(&KeyOptions::default()).unwrap();
    // Site 7, 10.1.2.0/24.
    site.up(&key, &["--advertise-routes=fd7a:115c:a1e0:b1a:0:7:a01:200/120"]).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let place = Place::new(&tailnet, &format!("pod{index}"))
            .unwrap()
            .with("TS_EXTRA_ARGS", &format!("--login-server={} --accept-routes", tailnet.url()))
            .with("TS_TAILNET_TARGET_FQDN", "10-1-2-3-via-7.tailnet.ts.net.");
        let pod = place.start(data_path).unwrap();
        site.meet(&format!("pod{index}")).unwrap();
        let stand_in = "fd7a:115c:a1e0:b1a:0:7:a01:203".parse().unwrap();
        assert!(leads_to(&pod.status().unwrap(), "egress", &[stand_in]));
        let [v4, v6] = PROXY_CLUSTER.map(|text| SocketAddr::new(text.parse().unwrap(), 80));
        let mut client = Client::connect(&pod.place.cluster, v6)
            .map_err(|error| format!("{data_path}: {error}\n{}", pod.daemon.log()))
            .unwrap();
        client.echo(100_000).unwrap();
        // IPv4 cannot get there, and nothing of it is sent: nobody listens on the pod itself.
        assert!(Client::connect(&pod.place.cluster, v4).is_err());
        let (_, _, flows) = counted(&pod, "egress", "any").unwrap();
        assert_eq!(flows, 1, "{data_path}");
    }
}

#[test]
fn an_egress_to_an_address_reaches_it() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let target = tailnet.joined("target", &[]).unwrap();
    for (index, address) in target.addresses().unwrap().iter().enumerate() {
        let _servers = Servers::new(&target.underlay.namespace, &address.to_string(), 80).unwrap();
        for data_path in KERNEL_PATHS {
            let place = Place::new(&tailnet, &format!("{data_path}{index}"))
                .unwrap()
                .with("TS_TAILNET_TARGET_IP", &address.to_string());
            let pod = place.start(data_path).unwrap();
            target.meet(&format!("{data_path}{index}")).unwrap();
            let frontend = SocketAddr::new(PROXY_CLUSTER[index].parse().unwrap(), 80);
            exchange(&pod.place.cluster, frontend)
                .map_err(|error| format!("{data_path}: {error:#}\n{}", pod.daemon.log()))
                .unwrap();
            let (_, _, flows) = counted(&pod, "egress", "any").unwrap();
            assert_eq!(flows, 3, "{data_path}");
        }
    }
}
