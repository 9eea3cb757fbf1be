//! Nodes that serve others: routes, Services, certificates, and upstream's own proxy in a pod.

use std::{net::IpAddr, path::Path};

use nix::sys::signal::Signal;
use proxy_testbed::{
    DEADLINE, Namespace, Tailnet, poll_until,
    tailnet::{Cluster, HOSTS, KeyOptions, Mask, Node, NodeOptions},
    traffic::tcp::{Client, TcpServer},
};

use crate::skipped;

fn host(number: usize, family: usize) -> IpAddr {
    HOSTS[number][family].parse().unwrap()
}

fn forward(namespace: &Namespace) {
    for family in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        namespace.sysctl(&format!("net/{family}"), "1").unwrap();
    }
}

/// Connects once the node has heard of the way, and echoes.
fn reach(from: &Node, to: IpAddr, port: u16) -> Client {
    let mut connected = None;
    poll_until(DEADLINE, &format!("{to} is reached"), || {
        connected = Client::connect(&from.underlay.namespace, (to, port).into()).ok();
        connected.is_some()
    })
    .unwrap_or_else(|error| panic!("{error}; {}", from.log()));
    let mut client = connected.unwrap();
    client.echo(100_000).unwrap();
    client
}

fn tagged(tailnet: &Tailnet, name: &str, arguments: &[&str]) -> Node {
    let tags = vec!["tag:server".to_owned()];
    let key = tailnet.auth_key(&KeyOptions { tags, ..KeyOptions::default() }).unwrap();
    let node = tailnet.node(name).unwrap();
    node.up(&key, arguments).unwrap();
    node
}

#[test]
fn a_subnet_router_and_exit_node_serves_what_is_approved() {
    if skipped() {
        return;
    }
    let (tailnet, cluster) = (Tailnet::start().unwrap(), Cluster::new().unwrap());
    let _server = TcpServer::new(&cluster.namespace, "[::]:8080").unwrap();
    let client = tailnet.joined("client", &["--accept-routes"]).unwrap();
    let router = tailnet.node("router").unwrap();
    forward(&router.underlay.namespace);
    let pod = cluster.attach(&router.underlay.namespace).unwrap();
    let routes = ["10.77.0.0/24", "2001:db8:77::/64", "0.0.0.0/0", "::/0"];
    let key = tailnet.auth_key(&KeyOptions::default()).unwrap();
    let advertise = format!("--advertise-routes={}", routes[..2].join(","));
    router.up(&key, &["--advertise-exit-node", &advertise]).unwrap();

    let mut info = tailnet.find("router").unwrap();
    info.advertised.sort();
    let mut all = routes.map(str::to_owned);
    all.sort();
    assert_eq!((info.advertised.as_slice(), info.served.as_slice()), (&all[..], &[][..]));
    tailnet.approve(info.id, &routes[..2]).unwrap();
    assert_eq!(tailnet.find("router").unwrap().served, routes[..2]);
    client.meet("router").unwrap();
    for family in [0, 1] {
        // The router masquerades.
        assert_eq!(reach(&client, host(0, family), 8080).seen_ip(), pod[family]);
    }

    tailnet.approve(info.id, &routes[2..]).unwrap();
    let refused = Client::connect(&client.underlay.namespace, (host(1, 0), 8080).into());
    assert!(refused.is_err(), "the route is withdrawn, and no exit node is chosen yet");
    client
        .wait_status("an exit node is offered", |status| {
            status["Peer"].as_object().unwrap().values().any(|p| p["ExitNodeOption"] == true)
        })
        .unwrap();
    client.cli(&["set", "--exit-node=router"]).unwrap();
    for family in [0, 1] {
        reach(&client, host(1, family), 8080);
    }
}

#[test]
fn a_service_is_served_by_the_node_that_advertises_it_and_moves_when_it_leaves() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let vips: [IpAddr; 2] =
        ["100.64.99.1".parse().unwrap(), "fd7a:115c:a1e0::99:1".parse().unwrap()];
    tailnet.set_service("svc:web", &vips).unwrap();
    let client = tailnet.joined("client", &["--accept-routes"]).unwrap();
    let servers = ["one", "two"].map(|name| {
        let node = tagged(&tailnet, name, &[]);
        let server = TcpServer::new(&node.underlay.namespace, "127.0.0.1:8080").unwrap();
        node.cli(&["serve", "--service=svc:web", "--tcp=80", "tcp://127.0.0.1:8080"]).unwrap();
        poll_until(DEADLINE, "the service is told", || {
            tailnet.find(name).unwrap().services == ["svc:web"]
        })
        .unwrap();
        (node, server)
    });
    for name in ["one", "two"] {
        client.meet(name).unwrap();
    }
    for vip in vips {
        reach(&client, vip, 80);
    }
    assert_eq!(tailnet.find("one").unwrap().served.len(), 2);
    servers[0].0.cli(&["serve", "drain", "svc:web"]).unwrap();
    poll_until(DEADLINE, "the other one serves", || tailnet.find("two").unwrap().served.len() == 2)
        .unwrap();
    assert!(tailnet.find("one").unwrap().served.is_empty());
    reach(&client, vips[0], 80);
}

#[test]
fn a_certificate_is_issued_for_a_nodes_name() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let acme = tailnet.start_acme().unwrap();
    assert!(acme.root().starts_with("-----BEGIN CERTIFICATE-----"), "{}", acme.root());
    let node = tailnet.joined("node", &[]).unwrap();
    let file = |name: &str| node.underlay.path().join(name).display().to_string();
    let (certificate, key) = (file("cert.pem"), file("key.pem"));
    node.cli(&[
        "cert",
        &format!("--cert-file={certificate}"),
        &format!("--key-file={key}"),
        "node.tailnet.ts.net",
    ])
    .unwrap_or_else(|error| panic!("{error}: {}", node.log()));
    let chain = std::fs::read_to_string(certificate).unwrap();
    assert!(chain.matches("BEGIN CERTIFICATE").count() >= 2, "{chain}");
    assert!(Path::new(&key).is_file());
    let names: Vec<_> = tailnet.challenges().unwrap().into_keys().collect();
    assert_eq!(names, ["_acme-challenge.node.tailnet.ts.net"]);
}

#[test]
fn a_node_looks_different_to_one_peer_and_works_without_a_device() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let server = tailnet.joined("server", &[]).unwrap();
    let userspace = NodeOptions { userspace: true, ..NodeOptions::default() };
    let client = tailnet.node_with("client", &userspace).unwrap();
    client.up(&tailnet.auth_key(&KeyOptions::default()).unwrap(), &[]).unwrap();
    client.meet("server").unwrap();
    let mask: IpAddr = "100.64.200.1".parse().unwrap();
    let (node, peer) = (tailnet.find("server").unwrap().id, tailnet.find("client").unwrap().id);
    tailnet.set_masks(&[Mask { node, peer, addresses: vec![mask] }]).unwrap();
    client
        .wait_status("the mask", |_| client.wait_peer("server").unwrap().contains(&mask))
        .unwrap();
    server.wait_peer("client").unwrap();
    client.ping(mask).unwrap();
    assert!(!client.underlay.namespace.run("ip", &["link"]).unwrap().contains("tailscale0"));
}

#[test]
fn upstreams_entry_point_forwards_from_a_pod_and_its_processes_end_with_it() {
    if skipped() {
        return;
    }
    let (tailnet, cluster) = (Tailnet::start().unwrap(), Cluster::new().unwrap());
    let _server = TcpServer::new(&cluster.namespace, "[::]:8080").unwrap();
    let client = tailnet.joined("client", &[]).unwrap();
    let mut place = tailnet.underlay("proxy").unwrap();
    cluster.attach(&place.namespace).unwrap();
    let key = tailnet.auth_key(&KeyOptions::default()).unwrap();
    for (name, value) in [
        ("TS_AUTHKEY", key.secret().to_owned()),
        ("TS_EXTRA_ARGS", format!("--login-server={}", tailnet.url())),
        ("TS_HOSTNAME", "proxy".to_owned()),
        ("TS_USERSPACE", "false".to_owned()),
        ("TS_DEST_IP", HOSTS[0][0].to_owned()),
        ("TS_STATE_DIR", place.path().join("state").display().to_string()),
        ("TS_SOCKET", place.path().join("tailscaled.sock").display().to_string()),
    ] {
        place.set(name, value);
    }
    let command = place.pod_command(tailnet.program("containerboot")).unwrap();
    let mut daemon = place.start_pod(command, "containerboot").unwrap();
    let address = client.meet("proxy").unwrap_or_else(|e| panic!("{e} {}", daemon.log()))[0];
    let served = daemon.wait_for(DEADLINE, "the proxy forwards", || {
        Client::connect(&client.underlay.namespace, (address, 8080).into()).is_ok()
    });
    served.unwrap();
    let child = daemon.descendant("tailscaled").unwrap();
    daemon.signal(Signal::SIGTERM).unwrap();
    daemon.wait(DEADLINE * 2).unwrap();
    poll_until(DEADLINE, "its tailscaled is gone", || {
        !Path::new(&format!("/proc/{child}")).exists()
    })
    .unwrap();
}
