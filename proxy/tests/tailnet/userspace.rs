//! Pods without a TUN device and without any capability: ingress through tailscaled's serve configuration, egress through
//! its SOCKS5 server.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use proxy_testbed::{
    Namespace,
    dns::NameServer,
    tailnet::{Node, Tailnet},
    topology::{HOSTS, PROXY_CLUSTER},
    traffic::{tcp::Client, udp::UdpClient},
};
use serde_json::{Value, json};

use crate::pod::{CHANGE, Place, Pod, Servers, bytes, counted, leads_to, serve_all};

const PATH: &str = "userspace";

/// A place for a pod that may do nothing.
fn place(tailnet: &Tailnet, name: &str) -> Result<Place> {
    Place::new(tailnet, name)?.with("TS_USERSPACE", "true").run_by_nobody(tailnet)
}

/// Tunnels are there in both directions.
fn meet(peer: &Node, name: &str) {
    for address in peer.meet(name).unwrap() {
        peer.ping(address).unwrap();
    }
}

/// What came back of some TCP.
fn talk(from: &Namespace, to: SocketAddr, bytes: usize) -> Result<Client> {
    let mut client = Client::connect(from, to).with_context(|| format!("TCP to {to}"))?;
    client.echo(bytes).with_context(|| format!("TCP to {to}"))?;
    Ok(client)
}

fn log(pod: &Pod) -> impl Fn(anyhow::Error) -> String + '_ {
    |error| format!("{error:#}\n{}", pod.daemon.log())
}

/// R55 beside it: a TUN device is wanted, and cannot be had.
#[test]
fn ingress_to_an_address_without_any_capability() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    for v4 in [true, false] {
        let name = if v4 { "pod4" } else { "pod6" };
        let backend = HOSTS[1][usize::from(!v4)];
        let mut place = place(&tailnet, name).unwrap().with("TS_DEST_IP", backend);
        place = place.with("SLUICE_INGRESS_PORTS", "tcp:80,tcp:8080-8081");
        if v4 {
            place = place.with("TS_USERSPACE", "false");
            place.underlay.private("/dev/net").unwrap();
        }
        let _servers = Servers::new(&place.cluster, backend, 80).unwrap();
        let _more = Servers::new(&place.cluster, backend, 8081).unwrap();
        let pod = place.start("auto").unwrap();
        meet(&peer, name);
        let frontend = SocketAddr::new(pod.address(v4).unwrap(), 80);
        let client = talk(&peer.underlay.namespace, frontend, 300_000).map_err(log(&pod)).unwrap();
        assert_eq!(client.server.ip().to_canonical(), backend.parse::<IpAddr>().unwrap());
        assert_eq!(client.seen_ip(), PROXY_CLUSTER[usize::from(!v4)].parse::<IpAddr>().unwrap());
        let line = format!("{} {}\n", client.server, client.seen).len();
        assert_eq!(counted(&pod, "ingress", "tcp").unwrap().2, 1);
        assert_eq!(bytes(&pod, "ingress").unwrap(), (300_000, 300_000 + line as u64));
        let other = SocketAddr::new(frontend.ip(), 8081);
        talk(&peer.underlay.namespace, other, 1000).map_err(log(&pod)).unwrap();
        // Nobody listens at the backend, no rule is for the family, none for the port.
        let unserved = SocketAddr::new(frontend.ip(), 8080);
        let family = SocketAddr::new(pod.address(!v4).unwrap(), 80);
        let port = SocketAddr::new(frontend.ip(), 81);
        for refused in [unserved, family, port] {
            assert!(Client::connect(&peer.underlay.namespace, refused).is_err(), "{refused}");
        }
        let status = pod.status().unwrap();
        assert_eq!(status["data_path"]["kind"], PATH);
        assert_eq!(status["process"]["capabilities"], json!([]));
        let tun = status["tailnet"]["tun"].as_str().unwrap_or_default();
        assert_eq!(tun.starts_with("TunUnavailable"), v4, "{tun}");
        assert_eq!(status["targets"][0]["installed"], true);
    }
}

/// Peers reach what listens on 127.0.0.1 without a TUN device. Doors and the SOCKS5 server do not listen there.
#[test]
fn a_peer_reaches_neither_doors_nor_the_socks_server() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let place = place(&tailnet, "pod")
        .unwrap()
        .with("TS_DEST_IP", HOSTS[1][0])
        .with("SLUICE_INGRESS_PORTS", "tcp:80");
    let _servers = Servers::new(&place.cluster, HOSTS[1][0], 80).unwrap();
    let pod = place.start(PATH).unwrap();
    meet(&peer, "pod");
    let ip = pod.address(true).unwrap();
    talk(&peer.underlay.namespace, SocketAddr::new(ip, 80), 10).map_err(log(&pod)).unwrap();
    let listening = pod.place.underlay.namespace.enter(|| {
        let text = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        let listening = text.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A"));
        let port = |line: &str| {
            let (ip, port) = line.split_whitespace().nth(1)?.split_once(':')?;
            // In the kernel's order: 127.83.76.x.
            ip.ends_with("4C537F").then(|| u16::from_str_radix(port, 16).unwrap())
        };
        listening.filter_map(port).collect::<Vec<_>>()
    });
    assert_eq!(listening.len(), 2, "a door and the SOCKS5 server: {listening:?}");
    for port in listening {
        let to = SocketAddr::new(ip, port);
        assert!(Client::connect(&peer.underlay.namespace, to).is_err(), "{to} is reached");
    }
}

#[test]
fn without_named_ports_a_target_says_what_it_needs() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let place = place(&tailnet, "pod")
        .unwrap()
        .with("TS_DEST_IP", HOSTS[1][0])
        .with("TS_TAILNET_TARGET_IP", "100.64.0.77");
    let pod = place.launch(PATH).unwrap();
    pod.wait(Duration::from_secs(20), "the targets' troubles", |s| {
        let targets = s["targets"].as_array().into_iter().flatten();
        targets.filter(|target| target["reason"] == "ports-unnamed").count() == 2
    })
    .unwrap();
    let status = pod.status().unwrap();
    assert_eq!(status["ready"], false);
    let said = status["targets"].to_string();
    assert!(
        said.contains("SLUICE_INGRESS_PORTS") && said.contains("SLUICE_EGRESS_PORTS"),
        "{said}"
    );
}

#[test]
fn ingress_to_a_name_uses_all_its_addresses() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let place = place(&tailnet, "pod")
        .unwrap()
        .with("TS_EXPERIMENTAL_DEST_DNS_NAME", "backends.example")
        .with("SLUICE_INGRESS_PORTS", "tcp:80");
    place.write("root/etc/resolv.conf", &format!("nameserver {}\n", HOSTS[0][0])).unwrap();
    let server = NameServer::new(&place.cluster, HOSTS[0][0].parse().unwrap(), 1).unwrap();
    let every: Vec<IpAddr> =
        HOSTS[..3].iter().flatten().map(|text| text.parse().unwrap()).collect();
    server.set("backends.example", &every);
    let _servers = serve_all(&place.cluster, &every, 80).unwrap();
    let pod = place.start(PATH).unwrap();
    meet(&peer, "pod");
    for v4 in [true, false] {
        let frontend = SocketAddr::new(pod.address(v4).unwrap(), 80);
        let reached: BTreeSet<IpAddr> = (0..40)
            .map(|_| talk(&peer.underlay.namespace, frontend, 10).map_err(log(&pod)).unwrap())
            .map(|client| client.server.ip().to_canonical())
            .collect();
        let wanted = every.iter().copied().filter(|address| address.is_ipv4() == v4);
        assert_eq!(reached, wanted.collect());
    }
}

#[test]
fn egress_to_an_address_and_to_a_name() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let target = tailnet.joined("target", &[]).unwrap();
    let addresses = target.addresses().unwrap();
    let _servers = serve_all(&target.underlay.namespace, &addresses, 80).unwrap();
    let address = addresses[0].to_string();
    for (name, variable, value, families) in [
        ("pod0", "TS_TAILNET_TARGET_FQDN", "target.tailnet.ts.net.", &[true, false][..]),
        ("pod1", "TS_TAILNET_TARGET_IP", &address, &[true]),
    ] {
        let place = place(&tailnet, name)
            .unwrap()
            .with(variable, value)
            .with("SLUICE_EGRESS_PORTS", "tcp:8080,udp:8080,tcp:80,udp:80");
        // Ports below 1024 are for whoever may have them, which a pod's runtime says by this.
        place
            .underlay
            .namespace
            .enter(|| std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"))
            .unwrap();
        let pod = place.start(PATH).unwrap();
        meet(&target, name);
        for v4 in families {
            let frontend = SocketAddr::new(PROXY_CLUSTER[usize::from(!v4)].parse().unwrap(), 80);
            let client = talk(&pod.place.cluster, frontend, 300_000).map_err(log(&pod)).unwrap();
            assert!(addresses.contains(&client.server.ip().to_canonical()));
            assert_eq!(client.seen_ip(), pod.address(*v4).unwrap());
            client.close().unwrap();
            let udp = UdpClient::new(&pod.place.cluster, frontend).unwrap();
            let echoed = udp.echo(20, 400).map_err(|e| format!("{e}: {}", pod.daemon.log()));
            assert_eq!(echoed.unwrap(), 20);
        }
        let each = families.len() as u64;
        assert_eq!(counted(&pod, "egress", "tcp").unwrap().2, each);
        assert_eq!(counted(&pod, "egress", "udp").unwrap(), (20 * each, 20 * each, each));
    }
}

#[test]
fn an_egress_groups_ports_are_mapped_for_both_protocols() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let near = tailnet.joined("near", &[]).unwrap();
    let at = near.addresses().unwrap();
    let _servers = serve_all(&near.underlay.namespace, &at, 8080).unwrap();
    let map =
        |protocol: &str| json!({"protocol": protocol, "matchPort": 10_080, "targetPort": 8080});
    let service = json!({
        "healthCheckEndpoint": "", "tailnetTarget": {"ip": "", "fqdn": "near.tailnet.ts.net"},
        "ports": [map("TCP"), map("UDP")],
    });
    let place = place(&tailnet, "group").unwrap();
    let path = place
        .write("egress/egress-services", &json!({"default-near": service}).to_string())
        .unwrap();
    place.write("egress/hep-pings", "0").unwrap();
    let directory = path.parent().unwrap().display().to_string();
    let pod = place.with("TS_EGRESS_PROXIES_CONFIG_PATH", &directory).start(PATH).unwrap();
    meet(&near, "group");
    pod.wait(CHANGE, "in force", |s| leads_to(s, "default-near", &at)).unwrap();
    for family in PROXY_CLUSTER {
        let frontend = SocketAddr::new(family.parse().unwrap(), 10_080);
        let client = talk(&pod.place.cluster, frontend, 100_000).map_err(log(&pod)).unwrap();
        assert_eq!(client.server.port(), 8080);
        let udp = UdpClient::new(&pod.place.cluster, frontend).unwrap();
        assert_eq!(udp.echo(10, 300).unwrap(), 10);
    }
    assert_eq!(counted(&pod, "default-near", "tcp").unwrap().2, 2);
    assert_eq!(counted(&pod, "default-near", "udp").unwrap(), (20, 20, 2));
}

/// A Service's addresses, and beside ours what others have put into the serve configuration.
#[test]
fn an_ingress_group_serves_a_service_and_leaves_what_others_serve() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &["--accept-routes"]).unwrap();
    let vips = ["100.99.0.1", "fd7a:115c:a1e0:99::1"].map(|text| text.parse::<IpAddr>().unwrap());
    tailnet.set_service("svc:web", &vips).unwrap();
    let mapping =
        |family: usize| json!({"TailscaleServiceIP": vips[family], "ClusterIP": HOSTS[2][family]});
    let config = json!({"svc:web": {"IPv4Mapping": mapping(0), "IPv6Mapping": mapping(1)}});
    let more = json!({"AdvertiseServices": ["svc:web"]});
    let place = Place::with_config(&tailnet, "group", &more)
        .unwrap()
        .with("TS_USERSPACE", "true")
        .with("SLUICE_INGRESS_PORTS", "tcp:80")
        .run_by_nobody(&tailnet)
        .unwrap();
    let path = place.write("ingress/ingress-config.json", &config.to_string()).unwrap();
    let _servers: Vec<_> =
        HOSTS[2].iter().map(|at| Servers::new(&place.cluster, at, 80).unwrap()).collect();
    let mut pod = place
        .with("TS_INGRESS_PROXIES_CONFIG_PATH", &path.display().to_string())
        .start(PATH)
        .unwrap();
    meet(&peer, "group");
    for vip in vips {
        talk(&peer.underlay.namespace, SocketAddr::new(vip, 80), 10_000)
            .map_err(log(&pod))
            .unwrap();
    }
    assert_eq!(counted(&pod, "svc:web", "tcp").unwrap().2, 2);
    let serve = |pod: &Pod| -> Value {
        let text = pod.local_api("GET", "/localapi/v0/serve-config", "").unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let mut config = serve(&pod);
    assert_eq!(config["Services"]["svc:web"]["TCP"]["80"]["ProxyProtocol"], 2);
    config["TCP"]["9000"] = json!({"TCPForward": "127.0.0.1:9"});
    pod.local_api("POST", "/localapi/v0/serve-config", &config.to_string()).unwrap();
    // Something else is added of ours: theirs stays. At the end ours goes.
    let other = json!({"svc:web": {"IPv4Mapping": mapping(0)}}).to_string();
    pod.place.write("ingress/ingress-config.json", &other).unwrap();
    pod.wait(CHANGE, "one family", |s| s["targets"].as_array().unwrap().len() == 1).unwrap();
    assert_eq!(serve(&pod)["TCP"]["9000"]["TCPForward"], "127.0.0.1:9");
    assert!(Client::connect(&peer.underlay.namespace, SocketAddr::new(vips[1], 80)).is_err());
    pod.daemon.signal(Signal::SIGTERM).unwrap();
    pod.daemon.wait(Duration::from_secs(15)).unwrap();
    let left = pod.place.stored_serve_config().unwrap();
    assert_eq!(
        left,
        json!({"TCP": {"9000": {"TCPForward": "127.0.0.1:9"}}}),
        "{}",
        pod.daemon.log()
    );
}

/// tailscaled ends a connection whole when one side ends its own direction; what of that we can keep from clients, we do.
#[test]
fn an_egress_client_that_ends_its_direction_gets_its_answer() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let target = tailnet.joined("target", &[]).unwrap();
    let addresses = target.addresses().unwrap();
    let server = target
        .underlay
        .namespace
        .enter(|| std::net::TcpListener::bind(SocketAddr::new(addresses[0], 9000)))
        .unwrap();
    let served = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let mut question = [0; 8];
        stream.read_exact(&mut question).unwrap();
        // The client has ended its direction long before this.
        for _ in 0..10 {
            stream.write_all(&[7; 10_000]).unwrap();
            let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
            let _ = stream.read(&mut [0; 1]);
        }
    });
    let place = place(&tailnet, "pod")
        .unwrap()
        .with("TS_TAILNET_TARGET_FQDN", "target.tailnet.ts.net.")
        .with("SLUICE_EGRESS_PORTS", "tcp:9000");
    let pod = place.start(PATH).unwrap();
    meet(&target, "pod");
    let frontend = SocketAddr::new(PROXY_CLUSTER[0].parse().unwrap(), 9000);
    let mut client = pod.place.cluster.enter(|| std::net::TcpStream::connect(frontend)).unwrap();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), 100_000, "{}", pod.daemon.log());
    served.join().unwrap();
    assert!(
        pod.status().unwrap()["data_path"]["notes"].to_string().contains("ended its direction")
    );
}

/// tailscaled is killed: its node comes back, and both directions work again.
#[test]
fn after_a_kill_of_tailscaled_both_directions_work_again() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let at = peer.addresses().unwrap();
    let _peers = serve_all(&peer.underlay.namespace, &at, 8080).unwrap();
    let place = place(&tailnet, "pod")
        .unwrap()
        .with("TS_DEST_IP", HOSTS[1][0])
        .with("TS_TAILNET_TARGET_IP", &at[0].to_string())
        .with("SLUICE_INGRESS_PORTS", "tcp:80")
        .with("SLUICE_EGRESS_PORTS", "tcp:8080,udp:8080");
    let _servers = Servers::new(&place.cluster, HOSTS[1][0], 80).unwrap();
    let pod = place.start(PATH).unwrap();
    meet(&peer, "pod");
    let ingress = SocketAddr::new(pod.address(true).unwrap(), 80);
    let egress = SocketAddr::new(PROXY_CLUSTER[0].parse().unwrap(), 8080);
    let udp = UdpClient::new(&pod.place.cluster, egress).unwrap();
    assert_eq!(udp.echo(3, 100).unwrap(), 3);
    let _kept = talk(&pod.place.cluster, egress, 10).map_err(log(&pod)).unwrap();
    let tailscaled = crate::faults::children(pod.daemon.id(), "tailscaled");
    assert_eq!(tailscaled.len(), 1);
    kill(Pid::from_raw(tailscaled[0]), Signal::SIGKILL).unwrap();
    pod.wait(Duration::from_secs(20), "ready again", |s| {
        s["ready"] == true && s["tailnet"]["restarts"] == 1
    })
    .unwrap();
    meet(&peer, "pod");
    let started = Instant::now();
    talk(&peer.underlay.namespace, ingress, 1000).map_err(log(&pod)).unwrap();
    talk(&pod.place.cluster, egress, 1000).map_err(log(&pod)).unwrap();
    // The session of before has ended with its relay: the same client has another.
    assert_eq!(udp.echo(3, 100).unwrap(), 3);
    assert!(started.elapsed() < Duration::from_secs(10));
}
