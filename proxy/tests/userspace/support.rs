//! Addresses, rules, servers and clients.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use proxy::data_path::{DataPath, userspace::UserspacePath};
use proxy_rules::{
    Action, Affinity, Backend, BackendState, Backends, Count, DropReason, Match, PortRange,
    Protocol, Rule, RuleId, RuleTable, Settings, Side, Snat,
};

/// How long anything may take before a test fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A loopback address that no other test of this or another running process uses.
pub(crate) fn local() -> IpAddr {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let process = (std::process::id() % 200) as u8 + 20;
    IpAddr::V4(Ipv4Addr::new(127, process, high, low.max(1)))
}

/// A frontend for tests.
pub(crate) fn frontend() -> SocketAddr {
    SocketAddr::new(local(), 8080)
}

/// An address and port of ::1 that no other test of this process gets, and that no system hands out by itself.
pub(crate) fn frontend6() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let process = (std::process::id() % 200) as u16;
    let port = 10_000 + process * 100 + NEXT.fetch_add(1, Ordering::Relaxed);
    (Ipv6Addr::LOCALHOST, port).into()
}

/// A DNAT rule from one address and port to ready backends of weight 1.
pub(crate) fn rule(protocol: Protocol, frontend: SocketAddr, backends: &[SocketAddr]) -> Rule {
    let backend = |to: &SocketAddr| Backend {
        address: to.ip(),
        port: Some(to.port()),
        weight: 1,
        state: BackendState::Ready,
    };
    Rule {
        id: RuleId::new(format!("{protocol}-{frontend}")),
        from: Side::Cluster,
        matches: Match {
            protocol: Some(protocol),
            dst: frontend.ip().into(),
            ports: PortRange::single(frontend.port()).unwrap(),
            src: Vec::new(),
        },
        action: Action::Dnat {
            backends: Backends {
                list: backends.iter().map(backend).collect(),
                affinity: Affinity::Flow,
            },
            snat: Snat::Masquerade,
            proxy_protocol: false,
        },
        count_per_port: false,
    }
}

/// The backends of a DNAT rule.
pub(crate) fn backends(rule: &mut Rule) -> &mut Backends {
    match &mut rule.action {
        Action::Dnat { backends, .. } => backends,
        other => panic!("{other:?} has no backends"),
    }
}

pub(crate) fn table(rules: impl IntoIterator<Item = Rule>) -> RuleTable {
    RuleTable::new(rules.into_iter().collect(), Settings::default())
}

/// A path with these rules in force.
pub(crate) fn path(rules: impl IntoIterator<Item = Rule>) -> UserspacePath {
    let mut path = UserspacePath::new().unwrap();
    let table = table(rules);
    path.supports(&table).unwrap();
    path.apply(&table).unwrap();
    path
}

/// What one rule has counted.
pub(crate) fn count(path: &UserspacePath, rule: &Rule) -> Count {
    let snapshot = path.counters().unwrap();
    let of_rule = snapshot.series.iter().filter(|(series, _)| series.rule == rule.id);
    of_rule.fold(Count::default(), |sum, (_, count)| sum.plus(*count))
}

pub(crate) fn drops(path: &UserspacePath, reason: DropReason) -> u64 {
    path.counters().unwrap().drops.get(&reason).copied().unwrap_or_default()
}

/// Waits for something that has no event to wait for, such as a counter.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        thread::park_timeout(Duration::from_millis(2));
    }
}

/// A TCP connection whose reads fail instead of hanging.
pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, DEADLINE).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// A connection is reset: before `connect` returns, on a busy machine, or after.
pub(crate) fn assert_refused(to: SocketAddr) {
    match TcpStream::connect_timeout(&to, DEADLINE) {
        Ok(mut stream) => {
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            assert_reset(&mut stream);
        }
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
    }
}

/// A TCP connection from a given address.
pub(crate) fn connect_from(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::STREAM, None)
            .unwrap();
    socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket.into()
}

/// Closes with a reset.
pub(crate) fn abort(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// Sends and expects the same bytes back.
pub(crate) fn echoes(stream: &mut TcpStream, payload: &[u8]) {
    stream.write_all(payload).unwrap();
    let mut back = vec![0; payload.len()];
    stream.read_exact(&mut back).unwrap();
    assert!(back == payload, "other bytes came back");
}

/// What a read of a connection that should have been reset gives.
pub(crate) fn assert_reset(stream: &mut TcpStream) {
    match stream.read(&mut [0; 16]) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        other => panic!("expected a reset, got {other:?}"),
    }
}

/// A listener whose accepts the test does itself.
pub(crate) fn listener(ip: IpAddr) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// A TCP backend that returns what it gets, and counts its connections.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Echo {
    pub(crate) fn tcp(ip: IpAddr) -> Self {
        let (listener, address) = listener(ip);
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        thread::spawn(move || {
            for stream in listener.incoming() {
                // A test may leave no descriptor, for its backend neither.
                let Ok(stream) = stream else {
                    thread::park_timeout(Duration::from_millis(5));
                    continue;
                };
                count.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    // Ends by itself when the client ends or is reset.
                    let _copied = io::copy(&mut &stream, &mut &stream);
                    let _gone = stream.shutdown(std::net::Shutdown::Write);
                });
            }
        });
        Self { address, accepted }
    }

    /// Returns datagrams with the tag before them.
    pub(crate) fn udp(ip: IpAddr, tag: &'static [u8]) -> Self {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).unwrap();
                socket.send_to(&[tag, &buffer[..length]].concat(), from).unwrap();
            }
        });
        Self { address, accepted: Arc::default() }
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// A UDP client that only hears the frontend.
pub(crate) fn udp_client(to: SocketAddr) -> UdpSocket {
    let any: SocketAddr = match to.ip() {
        IpAddr::V4(_) => (Ipv4Addr::LOCALHOST, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::LOCALHOST, 0).into(),
    };
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

pub(crate) fn ask(client: &UdpSocket, payload: &[u8]) -> Vec<u8> {
    client.send(payload).unwrap();
    let mut buffer = vec![0; 1 << 16];
    let length = client.recv(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}
