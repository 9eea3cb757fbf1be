//! Subnet routes both ways, an exit node, an app connector, routes that come and go.

use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::Context as _;
use proxy_testbed::{
    DEADLINE,
    dns::NameServer,
    http, poll_until,
    tailnet::{Node, NodeChange, Settings, Tailnet},
    topology::{HOSTS, PROXY_CLUSTER},
    traffic::tcp::Client,
};
use serde_json::{Value, json};

use crate::pod::{CHANGE, KERNEL_PATHS, Place, Servers, counted, exchange, serve_all};

const SUBNETS: &str = "192.0.2.0/24,2001:db8:2::/64";

/// A peer in a node's status.
fn named<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    let peers = status["Peer"].as_object()?;
    peers.values().find(|peer| peer["HostName"] == name)
}

#[test]
fn a_subnet_is_reached_from_the_tailnet_and_reaches_it() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    tailnet.configure(Settings { auto_approve: true, https: false }).unwrap();
    let peer = tailnet.joined("peer", &["--accept-routes"]).unwrap();
    let peer_at = peer.addresses().unwrap();
    let _peer_servers = serve_all(&peer.underlay.namespace, &peer_at, 80).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let name = format!("router{index}");
        let place = Place::new(&tailnet, &name).unwrap().with("TS_ROUTES", SUBNETS);
        let backends = HOSTS[1];
        let _servers: Vec<_> =
            backends.iter().map(|at| Servers::new(&place.cluster, at, 80).unwrap()).collect();
        let [v4, v6] = PROXY_CLUSTER;
        place
            .cluster
            .ip([
                format!("route add 100.64.0.0/10 via {v4}").as_str(),
                &format!("route add fd7a:115c:a1e0::/48 via {v6}"),
            ])
            .unwrap();
        let pod = place.start(data_path).unwrap();
        let pod_at = peer.meet(&name).unwrap();
        peer.ping(pod_at[0]).unwrap();
        let is_routed = |node: &Value| node["PrimaryRoutes"].as_array().map(Vec::len) == Some(2);
        peer.wait_status("routes", |status| named(status, &name).is_some_and(is_routed)).unwrap();
        for backend in backends {
            let to = SocketAddr::new(backend.parse().unwrap(), 80);
            exchange(&peer.underlay.namespace, to)
                .map_err(|error| format!("{data_path}: {error:#}\n{}", pod.daemon.log()))
                .unwrap();
            let client = Client::connect(&peer.underlay.namespace, to).unwrap();
            let own = PROXY_CLUSTER[usize::from(to.is_ipv6())].parse::<IpAddr>().unwrap();
            assert_eq!(client.seen_ip(), own, "hosts of the subnet need no route back");
        }
        let (_, _, flows) = counted(&pod, "routes", "any").unwrap();
        assert_eq!(flows, 8, "{data_path}: two TCP connections, UDP and ICMP of each family");
        // The other way round: the peer sees who of the subnet it is.
        for at in &peer_at {
            let to = SocketAddr::new(*at, 80);
            exchange(&pod.place.cluster, to)
                .map_err(|error| format!("{data_path}: {error:#}\n{}", pod.daemon.log()))
                .unwrap();
            let client = Client::connect(&pod.place.cluster, to).unwrap();
            let seen = client.seen_ip().to_string();
            assert!(
                HOSTS.iter().flatten().any(|host| *host == seen),
                "{seen} is not of the subnet"
            );
        }
        let (_, _, flows) = counted(&pod, "routes-back", "any").unwrap();
        assert_eq!(flows, 8, "{data_path}");
        // A route that is advertised no more carries nothing new. (An app connector's come and go like this.)
        pod.edit_prefs(r#"{"AdvertiseRoutes": ["192.0.2.13/32"], "AdvertiseRoutesSet": true}"#)
            .unwrap();
        pod.wait(CHANGE, "the route is in force", |status| {
            status["targets"].to_string().contains("192.0.2.13/32")
                && !status["targets"].to_string().contains("/24")
        })
        .unwrap();
    }
}

#[test]
fn an_exit_node_leads_to_what_is_not_on_the_tailnet() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    tailnet.configure(Settings { auto_approve: true, https: false }).unwrap();
    let outside = ["203.0.113.9", "2001:db8:113::9"];
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let name = format!("exit{index}");
        let place = Place::new(&tailnet, &name).unwrap().with(
            "TS_EXTRA_ARGS",
            &format!("--login-server={} --advertise-exit-node", tailnet.url()),
        );
        place
            .cluster
            .ip([
                "address add 203.0.113.9/32 dev lo",
                "address add 2001:db8:113::9/128 dev lo nodad",
            ])
            .unwrap();
        let [v4, v6] = HOSTS[0];
        place
            .underlay
            .namespace
            .ip([
                format!("route add default via {v4}").as_str(),
                &format!("route add ::/0 via {v6}"),
            ])
            .unwrap();
        let _servers: Vec<_> =
            outside.iter().map(|at| Servers::new(&place.cluster, at, 80).unwrap()).collect();
        let pod = place.start(data_path).unwrap();
        let peer = tailnet.joined(&format!("peer{index}"), &[]).unwrap();
        let pod_at = peer.meet(&name).unwrap();
        peer.ping(pod_at[0]).unwrap();
        // The control server approves what it hears of, and tells the peer, in its own time.
        let is_offered = |node: &Value| node["ExitNodeOption"] == true;
        peer.wait_status("an exit node", |status| named(status, &name).is_some_and(is_offered))
            .unwrap();
        peer.cli(&["set", &format!("--exit-node={}", pod_at[0])]).unwrap();
        for address in outside {
            let to = SocketAddr::new(address.parse().unwrap(), 80);
            exchange(&peer.underlay.namespace, to)
                .map_err(|error| format!("{data_path}: {error:#}\n{}", pod.daemon.log()))
                .unwrap();
        }
        let (_, _, flows) = counted(&pod, "routes", "any").unwrap();
        assert_eq!(flows, 6, "{data_path}: {}", pod.status().unwrap()["ports"]);
    }
}

/// Has a device resolve a name for a peer, as a peer's tailscaled does: DNS over HTTP at the device's peer API.
fn ask(peer: &Node, device: &str, name: &str, kind: &str) -> anyhow::Result<String> {
    let status = peer.status()?;
    let url = named(&status, device).context("no such peer")?["PeerAPIURL"][0].clone();
    let host = url.as_str().and_then(|url| url.strip_prefix("http://")).context("no peer API")?;
    let to: SocketAddr = host.parse()?;
    let limit = Duration::from_secs(5);
    let stream = peer.underlay.namespace.enter(|| TcpStream::connect_timeout(&to, limit))?;
    stream.set_read_timeout(Some(limit))?;
    http::request(stream, host, "GET", &format!("/dns-query?q={name}&t={kind}"), "")
}

/// An app connector: what a name of the app stands for is learnt from peers' questions, advertised, and reached through the pod.
#[test]
fn an_app_connector_leads_to_what_peers_ask_for() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    tailnet.configure(Settings { auto_approve: true, https: false }).unwrap();
    let peer = tailnet.joined("peer", &["--accept-routes"]).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let name = format!("connector{index}");
        let arguments = format!("--login-server={} --advertise-connector", tailnet.url());
        let place = Place::new(&tailnet, &name).unwrap().with("TS_EXTRA_ARGS", &arguments);
        let resolver = HOSTS[3][0];
        place.write("root/etc/resolv.conf", &format!("nameserver {resolver}\n")).unwrap();
        let server = NameServer::new(&place.cluster, resolver.parse().unwrap(), 60).unwrap();
        let app = HOSTS[2].map(|text| text.parse::<IpAddr>().unwrap());
        server.set("app.example", &app);
        let _servers = serve_all(&place.cluster, &app, 80).unwrap();
        let pod = place.start(data_path).unwrap();
        let app_of_tests =
            json!({"name": "tests", "connectors": ["*"], "domains": ["app.example"]});
        let caps = [("tailscale.com/app-connectors".to_owned(), vec![app_of_tests])];
        let change = NodeChange { caps: Some(caps.into()), ..NodeChange::default() };
        tailnet.change(tailnet.find(&name).unwrap().id, &change).unwrap();
        let pod_at = peer.meet(&name).unwrap();
        peer.ping(pod_at[0]).unwrap();
        // The first questions may come before the connector knows its names.
        let learns = |at: &IpAddr| {
            let kind = if at.is_ipv4() { "A" } else { "AAAA" };
            let answer = ask(&peer, &name, "app.example", kind);
            answer.is_ok_and(|text| text.contains(&at.to_string()))
                && pod.status().unwrap()["targets"].to_string().contains(&at.to_string())
        };
        for at in &app {
            poll_until(DEADLINE, "the connector learns", || learns(at))
                .map_err(|error| format!("{data_path}: {error}\n{}", pod.daemon.log()))
                .unwrap();
        }
        let is_routed = |node: &Value| node["PrimaryRoutes"].as_array().map(Vec::len) == Some(2);
        peer.wait_status("routes", |status| named(status, &name).is_some_and(is_routed)).unwrap();
        for at in app {
            exchange(&peer.underlay.namespace, SocketAddr::new(at, 80))
                .map_err(|error| format!("{data_path}: {error:#}\n{}", pod.daemon.log()))
                .unwrap();
        }
        let (_, _, flows) = counted(&pod, "routes", "any").unwrap();
        assert_eq!(flows, 6, "{data_path}: {}", pod.status().unwrap()["ports"]);
    }
}
