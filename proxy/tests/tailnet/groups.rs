//! Groups: many Services in one pod, by upstream's files.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use proxy_testbed::{
    tailnet::Tailnet,
    topology::{HOSTS, PROXY_CLUSTER},
    traffic::tcp::Client,
};
use serde_json::{Value, json};

use crate::pod::{CHANGE, KERNEL_PATHS, Place, Servers, counted, exchange, leads_to, serve_all};

fn egress_service(target: &Value, port: u16, to: u16) -> Value {
    let map = |protocol: &str| json!({"protocol": protocol, "matchPort": port, "targetPort": to});
    json!({"healthCheckEndpoint": "", "tailnetTarget": target, "ports": [map("TCP"), map("UDP")]})
}

/// R33: the target's port is reached, not the Service's. R27: a target that is gone takes nothing else with it.
#[test]
fn an_egress_groups_services_come_and_go_and_one_that_is_gone_spoils_no_other() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let near = tailnet.joined("near", &[]).unwrap();
    let far = tailnet.joined("far", &[]).unwrap();
    let (near_at, far_at) = (near.addresses().unwrap(), far.addresses().unwrap());
    let _near = serve_all(&near.underlay.namespace, &near_at, 8080).unwrap();
    let _far = serve_all(&far.underlay.namespace, &far_at, 8080).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let place = Place::new(&tailnet, &format!("group{index}")).unwrap();
        let near_service =
            egress_service(&json!({"ip": "", "fqdn": "near.tailnet.ts.net"}), 10_080, 8080);
        let file = |services: Value| services.to_string();
        let path = place
            .write("egress/egress-services", &file(json!({"default-near": near_service})))
            .unwrap();
        place.write("egress/hep-pings", "0").unwrap();
        let directory = path.parent().unwrap().display().to_string();
        let pod = place.with("TS_EGRESS_PROXIES_CONFIG_PATH", &directory).start(data_path).unwrap();
        for node in [&near, &far] {
            node.meet(&format!("group{index}")).unwrap();
        }
        let frontend =
            |family: usize, port| SocketAddr::new(PROXY_CLUSTER[family].parse().unwrap(), port);
        // A pod is ready without a target that it has not heard of yet.
        pod.wait(CHANGE * 5, "the Service is in force", |s| leads_to(s, "default-near", &near_at))
            .unwrap();
        for family in [0, 1] {
            exchange_ports(&pod.place.cluster, frontend(family, 10_080));
        }
        // Another Service beside it: usable within two seconds (a second here), nothing restarted.
        let far_service =
            egress_service(&json!({"ip": "", "fqdn": "far.tailnet.ts.net."}), 10_081, 8080);
        let mut kept = Client::connect(&pod.place.cluster, frontend(0, 10_080)).unwrap();
        let both = json!({"default-near": near_service, "default-far": far_service});
        pod.place.write("egress/egress-services", &file(both)).unwrap();
        pod.wait(CHANGE, "the other Service is in force", |s| leads_to(s, "default-far", &far_at))
            .unwrap();
        for family in [0, 1] {
            exchange_ports(&pod.place.cluster, frontend(family, 10_081));
        }
        kept.echo(1000).unwrap();
        // A file that makes no sense changes nothing, and is told.
        pod.place.write("egress/egress-services", "{").unwrap();
        pod.wait(CHANGE, "the error is told", |s| s["tailnet"]["config_errors"][0].is_string())
            .unwrap();
        exchange_ports(&pod.place.cluster, frontend(0, 10_081));
        // One Service goes: its port is refused, the other's connections live on.
        pod.place
            .write("egress/egress-services", &file(json!({"default-near": near_service})))
            .unwrap();
        pod.wait(CHANGE, "the Service is gone", |s| s["targets"].as_array().unwrap().len() == 1)
            .unwrap();
        assert!(Client::connect(&pod.place.cluster, frontend(0, 10_081)).is_err());
        kept.echo(1000).unwrap();
        let (_, _, flows) = counted(&pod, "default-near", "tcp").unwrap();
        assert_eq!(flows, 3, "{data_path}");
    }
}

/// As [`exchange`], without the pings: ports are mapped, not the address.
fn exchange_ports(from: &proxy_testbed::Namespace, to: SocketAddr) {
    let mut client = Client::connect(from, to).unwrap();
    assert_eq!(client.server.port(), 8080);
    client.echo(100_000).unwrap();
    let udp = proxy_testbed::traffic::udp::UdpClient::new(from, to).unwrap();
    assert_eq!(udp.echo(10, 300).unwrap(), 10);
}

/// The address of a Tailscale Service on layer 3: control gives it to this host, which advertises it by its config file.
#[test]
fn an_ingress_group_serves_the_addresses_of_a_tailscale_service() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &["--accept-routes"]).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let vips: [IpAddr; 2] =
            [format!("100.99.0.{}", index + 1), format!("fd7a:115c:a1e0:99::{}", index + 1)]
                .map(|text| text.parse().unwrap());
        let service = format!("svc:web{index}");
        tailnet.set_service(&service, &vips).unwrap();
        let backends = HOSTS[2];
        let mapping = |family: usize| json!({"TailscaleServiceIP": vips[family], "ClusterIP": backends[family]});
        let config = json!({ &service: {"IPv4Mapping": mapping(0), "IPv6Mapping": mapping(1)}});
        let name = format!("group{index}");
        let place =
            Place::with_config(&tailnet, &name, &json!({"AdvertiseServices": [service]})).unwrap();
        let path = place.write("ingress/ingress-config.json", &config.to_string()).unwrap();
        let _servers: Vec<_> =
            backends.iter().map(|at| Servers::new(&place.cluster, at, 80).unwrap()).collect();
        let pod = place
            .with("TS_INGRESS_PROXIES_CONFIG_PATH", &path.display().to_string())
            .start(data_path)
            .unwrap();
        let addresses = peer.meet(&name).unwrap();
        peer.ping(addresses[0]).unwrap();
        // The peer is told of the Service's addresses after it was told of the node.
        peer.wait_status("the Service's addresses", |status| {
            let peers = status["Peer"].as_object();
            let allowed = |node: &Value| {
                vips.iter().all(|vip| node["AllowedIPs"].to_string().contains(&format!("\"{vip}/")))
            };
            peers.is_some_and(|peers| peers.values().any(allowed))
        })
        .unwrap();
        for vip in vips {
            // Ping is answered by tailscaled itself.
            exchange(&peer.underlay.namespace, SocketAddr::new(vip, 80))
                .map_err(|error| format!("{data_path}: {error:#}\n{}", pod.daemon.log()))
                .unwrap();
        }
        let (_, _, flows) = counted(&pod, &service, "tcp").unwrap();
        assert_eq!(flows, 2, "{data_path}");
        assert_eq!(pod.status().unwrap()["tailnet"]["services"], json!([service]));
    }
}

/// Our own rules file: words for the node's addresses, several endpoints with ports, counted port by port (R50: what leaves the pod
/// is addressed to an endpoint, so it matters nothing who translates ClusterIPs, and where); a file that is
/// not valid changes nothing.
#[test]
fn a_rules_file_with_words_serves_several_endpoints() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let name = format!("pod{index}");
        let place = Place::new(&tailnet, &name).unwrap();
        let hosts: Vec<_> = HOSTS[..2].iter().flatten().copied().collect();
        let _servers: Vec<_> =
            hosts.iter().map(|at| Servers::new(&place.cluster, at, 8080).unwrap()).collect();
        let rules = |hosts: &[&str]| {
            let backends: Vec<_> = hosts.iter().map(|at| format!("{{address: '{at}'}}")).collect();
            let backends = backends.join(", ");
            format!(
                "apiVersion: sluice.dev/v1\nkind: ProxyRules\ningress:\n- name: default/web\n  frontends: [tailnet]\n  \
                 ports: [{{protocol: tcp, port: 80, targetPort: 8080}}, {{protocol: udp, port: 80, targetPort: 8080}}]\n  \
                 backends: [{backends}]\n"
            )
        };
        let path = place.write("rules/rules.yaml", &rules(&hosts)).unwrap();
        let pod =
            place.with("SLUICE_CONFIG", &path.display().to_string()).start(data_path).unwrap();
        let of_host = |s: &Value, at: &str| leads_to(s, "default/web", &[at.parse().unwrap()]);
        pod.wait(CHANGE, "every endpoint", |s| hosts.iter().all(|at| of_host(s, at))).unwrap();
        peer.meet(&name).unwrap();
        for v4 in [true, false] {
            let frontend = SocketAddr::new(pod.address(v4).unwrap(), 80);
            let reached: BTreeSet<_> = (0..30)
                .map(|_| {
                    Client::connect(&peer.underlay.namespace, frontend)
                        .unwrap()
                        .server
                        .ip()
                        .to_canonical()
                })
                .collect();
            assert_eq!(reached.len(), 2, "{data_path}: {reached:?}");
        }
        let (_, _, flows) = counted(&pod, "default/web", "tcp").unwrap();
        assert_eq!(flows, 60, "{data_path}");
        pod.place
            .write("rules/rules.yaml", "apiVersion: sluice.dev/v1\nkind: ProxyRules\ningres: []\n")
            .unwrap();
        pod.wait(CHANGE, "the error is told", |s| {
            s["tailnet"]["config_errors"][0].as_str().is_some_and(|text| text.contains("`ingress`"))
        })
        .unwrap();
        pod.place.write("rules/rules.yaml", &rules(&hosts[..2])).unwrap();
        pod.wait(CHANGE, "one endpoint", |s| !of_host(s, hosts[2])).unwrap();
        let frontend = SocketAddr::new(pod.address(true).unwrap(), 80);
        let client = Client::connect(&peer.underlay.namespace, frontend).unwrap();
        assert_eq!(client.server.ip().to_canonical(), hosts[0].parse::<IpAddr>().unwrap());
    }
}
