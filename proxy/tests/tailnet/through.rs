//! The user-space path behind a real tailscaled without a TUN device: what backends learn of clients.

use std::{
    io::Read as _,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use proxy::data_path::{
    DataPath as _,
    userspace::{UserspacePath, through::Through},
};
use proxy_rules::{
    Action, Affinity, Backend, BackendState, Backends, Match, PortRange, Protocol, Rule, RuleId,
    RuleTable, Settings, Side, Snat,
};
use proxy_testbed::tailnet::{KeyOptions, NodeOptions, Tailnet};
use serde_json::json;

/// One rule: port 80 of this address for this client, with a PROXY protocol header to the backend.
fn rule(frontend: IpAddr, client: IpAddr, backend: SocketAddr) -> Rule {
    Rule {
        id: RuleId::new(format!("web-{frontend}")),
        from: Side::Tailnet,
        matches: Match {
            protocol: Some(Protocol::Tcp),
            dst: frontend.into(),
            ports: PortRange::single(80).unwrap(),
            src: vec![client.into()],
        },
        action: Action::Dnat {
            backends: Backends {
                list: vec![Backend {
                    address: backend.ip(),
                    port: Some(backend.port()),
                    weight: 1,
                    state: BackendState::Ready,
                }],
                affinity: Affinity::ClientIp,
            },
            snat: Snat::Masquerade,
            proxy_protocol: true,
        },
        count_per_port: false,
    }
}

/// The addresses of client and frontend in a header of version 2.
fn addresses(stream: &mut TcpStream) -> (SocketAddr, SocketAddr) {
    let mut start = [0; 16];
    stream.read_exact(&mut start).unwrap();
    let mut rest = vec![0; usize::from(u16::from_be_bytes([start[14], start[15]]))];
    stream.read_exact(&mut rest).unwrap();
    let size = (rest.len() - 4) / 2;
    let ip = |bytes: &[u8]| match <[u8; 4]>::try_from(bytes) {
        Ok(v4) => IpAddr::from(v4),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
    };
    let port = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
    let client = SocketAddr::new(ip(&rest[..size]), port(2 * size));
    (client, SocketAddr::new(ip(&rest[size..2 * size]), port(2 * size + 2)))
}

#[test]
fn the_backend_learns_the_clients_address_and_rules_can_tell_clients_apart() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let stranger = tailnet.joined("stranger", &[]).unwrap();
    let options = NodeOptions { userspace: true, ..NodeOptions::default() };
    let node = tailnet.node_with("node", &options).unwrap();
    node.up(&tailnet.auth_key(&KeyOptions::default()).unwrap(), &[]).unwrap();
    let own = node.addresses().unwrap();
    let clients = peer.addresses().unwrap();
    let through = Arc::new(Through::new("127.0.0.1:1".parse().unwrap()));
    through.set_hosts(vec![own.to_vec()]);
    let (backend, path) = node.underlay.namespace.enter(|| {
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = backend.local_addr().unwrap();
        let rules = own.iter().zip(clients).map(|(own, client)| rule(*own, client, to));
        let mut path = UserspacePath::new().unwrap().through(Arc::clone(&through));
        path.apply(&RuleTable::new(rules.collect(), Settings::default())).unwrap();
        (backend, path)
    });
    for from in [&peer, &stranger] {
        for address in from.meet("node").unwrap() {
            from.ping(address).unwrap();
        }
    }
    let door = through.doors().borrow()[&SocketAddr::new(own[0], 80)];
    for version in [1, 2] {
        let config =
            json!({"TCP": {"80": {"TCPForward": door.to_string(), "ProxyProtocol": version}}});
        node.local_api("POST", "/localapi/v0/serve-config", &config.to_string()).unwrap();
        for (own, client) in own.iter().zip(clients) {
            let frontend = SocketAddr::new(*own, 80);
            let connected = peer.underlay.namespace.enter(|| TcpStream::connect(frontend)).unwrap();
            let (mut stream, _) = backend.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let (said, called) = addresses(&mut stream);
            assert_eq!(said, SocketAddr::new(client, connected.local_addr().unwrap().port()));
            assert_eq!(called, frontend);
            // No rule is for others.
            let mut refused =
                stranger.underlay.namespace.enter(|| TcpStream::connect(frontend)).unwrap();
            refused.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            assert!(!matches!(refused.read(&mut [0; 1]), Ok(1..)), "a stranger is served");
        }
    }
    drop(path);
}
