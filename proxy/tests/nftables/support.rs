//! Three network namespaces in a row, and small clients and servers in them.
//!
//! ```text
//! client 100.64.0.2 -- tun0 100.64.0.1 [proxy] eth0 198.51.100.1 -- backend 198.51.100.2 and .3
//! ```
//! and the same with 2001:db8:64:: and 2001:db8:1::.

use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, setns};
use proxy_rules::{
    Action, Affinity, Backend, BackendState, Backends, Count, Interfaces, Match, PortRange,
    Protocol, Rule, RuleId, RuleTable, Settings, Side, Snapshot, Snat,
};

/// No event that a test waits for takes longer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);
/// How long a test waits to see that nothing comes.
pub(crate) const SILENCE: Duration = Duration::from_millis(300);

/// The side of the client.
pub(crate) const TAILNET: Side = Side::Tailnet;
/// The side of the backend.
pub(crate) const CLUSTER: Side = Side::Cluster;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A network namespace, deleted when dropped.
pub(crate) struct Namespace(String);

impl Namespace {
    fn new(role: &str, number: u32) -> Self {
        let namespace = Self(format!("sl-nft-{}-{number}-{role}", std::process::id()));
        run("ip", &["netns", "add", &namespace.0]);
        namespace.ip("link set lo up");
        // While an address waits for duplicate detection the kernel asks for no neighbour.
        namespace.exec("sysctl", &["-qw", "net.ipv6.conf.default.accept_dad=0"]);
        namespace
    }

    /// Runs a closure in the namespace, on a thread of its own.
    pub(crate) fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/var/run/netns/{}", self.0)).unwrap();
        std::thread::scope(|scope| {
            let work = scope.spawn(move || {
                setns(file, CloneFlags::CLONE_NEWNET).unwrap();
                f()
            });
            work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `ip` in the namespace.
    pub(crate) fn ip(&self, args: &str) {
        let mut all = vec!["-n", &self.0];
        all.extend(args.split(' '));
        run("ip", &all);
    }

    /// Runs a program in the namespace.
    pub(crate) fn exec(&self, program: &str, args: &[&str]) -> String {
        self.enter(|| run(program, args))
    }

    /// Installs an nft script that has nothing to do with ours.
    pub(crate) fn nft(&self, script: &str) {
        self.enter(|| {
            let mut nft =
                Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
            nft.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
            assert!(nft.wait().unwrap().success());
        });
    }

    /// Packets and bytes of a named counter of a foreign table `inet wire`.
    pub(crate) fn wire(&self, counter: &str) -> (u64, u64) {
        let text = self.exec("nft", &["list", "counter", "inet", "wire", counter]);
        let mut words = text.split_whitespace();
        let mut after =
            |word| words.find(|w| *w == word).and_then(|_| words.next()).unwrap().parse();
        (after("packets").unwrap(), after("bytes").unwrap())
    }

    /// Everything that a path may leave behind: the ruleset and the network's kernel settings.
    pub(crate) fn traces(&self) -> String {
        let ruleset = self.exec("nft", &["list", "ruleset"]);
        let sysctls = self
            .exec("sysctl", &["-a", "--pattern", "forward|rp_filter|accept_ra|nf_conntrack_max"]);
        format!("{ruleset}\n{sysctls}")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Client, proxy, backend.
pub(crate) struct Rig {
    pub(crate) client: Namespace,
    pub(crate) proxy: Namespace,
    pub(crate) backend: Namespace,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let [client, proxy, backend] =
            ["client", "proxy", "backend"].map(|role| Namespace::new(role, number));
        let connect = |from: &Namespace, device: &str, to: &Namespace| {
            from.ip(&format!("link add {device} type veth peer name link0 netns {}", to.0));
        };
        connect(&proxy, "tun0", &client);
        connect(&proxy, "eth0", &backend);
        for (namespace, device, addresses) in [
            (&proxy, "tun0", &["100.64.0.1/24", "2001:db8:64::1/64"][..]),
            (&client, "link0", &["100.64.0.2/24", "2001:db8:64::2/64"]),
            (&proxy, "eth0", &["198.51.100.1/24", "2001:db8:1::1/64"]),
            (
                &backend,
                "link0",
                &["198.51.100.2/24", "198.51.100.3/24", "2001:db8:1::2/64", "2001:db8:1::3/64"],
            ),
        ] {
            for address in addresses {
                let nodad = if address.contains(':') { " nodad" } else { "" };
                namespace.ip(&format!("address add {address} dev {device}{nodad}"));
            }
            namespace.ip(&format!("link set {device} up"));
        }
        for (namespace, v4, v6) in
            [(&client, "100.64.0.1", "2001:db8:64::1"), (&backend, "198.51.100.1", "2001:db8:1::1")]
        {
            namespace.ip(&format!("route add default via {v4}"));
            namespace.ip(&format!("route add default via {v6}"));
        }
        Self { client, proxy, backend }
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        interfaces: Interfaces { tailnet: vec!["tun0".into()], cluster: vec!["eth0".into()] },
        ..Settings::default()
    }
}

pub(crate) fn table(rules: Vec<Rule>) -> RuleTable {
    RuleTable::new(rules, settings())
}

/// A rule with a single port (0 = any).
pub(crate) fn rule(
    id: &str,
    from: Side,
    protocol: Protocol,
    dst: &str,
    port: u16,
    action: Action,
) -> Rule {
    Rule {
        id: RuleId::new(id),
        from,
        matches: Match {
            protocol: Some(protocol),
            dst: dst.parse().unwrap(),
            ports: PortRange::single(port).unwrap_or(PortRange::ANY),
            src: Vec::new(),
        },
        action,
        count_per_port: false,
    }
}

pub(crate) fn dnat(to: &[&str], snat: Snat) -> Action {
    let list = to
        .iter()
        .map(|to| {
            let (address, port) = match to.parse::<SocketAddr>() {
                Ok(to) => (to.ip(), Some(to.port())),
                Err(_) => (to.parse::<IpAddr>().unwrap(), None),
            };
            Backend { address, port, weight: 1, state: BackendState::Ready }
        })
        .collect();
    let backends = Backends { list, affinity: Affinity::Flow };
    Action::Dnat { backends, snat, proxy_protocol: false }
}

/// The sum of a rule's counts.
pub(crate) fn count(snapshot: &Snapshot, id: &str) -> Count {
    let of_rule = snapshot.series.iter().filter(|(series, _)| series.rule.as_str() == id);
    of_rule.fold(Count::default(), |sum, (_, count)| sum.plus(*count))
}

/// A TCP server that answers each connection with its peer's address and then echoes, one connection at a time.
pub(crate) fn echo_server(namespace: &Namespace, address: &str) {
    let listener = namespace.enter(|| TcpListener::bind(address).unwrap());
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                if stream.write_all(format!("{}\n", peer.ip()).as_bytes()).is_err() {
                    return;
                }
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Connects; returns the connection and the address under which the server sees it.
pub(crate) fn connect(namespace: &Namespace, to: &str) -> std::io::Result<(TcpStream, IpAddr)> {
    let to: SocketAddr = to.parse().unwrap();
    let mut stream = namespace.enter(|| TcpStream::connect_timeout(&to, DEADLINE))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let mut line = Vec::new();
    let mut byte = [0];
    while byte != *b"\n" {
        stream.read_exact(&mut byte)?;
        line.extend(byte);
    }
    Ok((stream, String::from_utf8(line).unwrap().trim().parse().unwrap()))
}

/// Sends and reads back.
pub(crate) fn echo(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<()> {
    stream.write_all(text)?;
    let mut back = vec![0; text.len()];
    stream.read_exact(&mut back)?;
    assert_eq!(back, text);
    Ok(())
}

/// A UDP socket with the tests' deadline.
pub(crate) fn udp(namespace: &Namespace, address: &str) -> UdpSocket {
    let socket = namespace.enter(|| UdpSocket::bind(address).unwrap());
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

/// A UDP server that answers every datagram with its own address and port, and the sender's.
pub(crate) fn udp_server(namespace: &Namespace, address: &str) {
    let socket = namespace.enter(|| UdpSocket::bind(address).unwrap());
    let own = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(format!("{own} {}", peer.ip()).as_bytes(), peer);
        }
    });
}

/// Sends a datagram and returns the answer, if there is one in time.
pub(crate) fn ask(socket: &UdpSocket, to: &str, payload: &[u8]) -> Option<String> {
    socket.send_to(payload, to).unwrap();
    let mut buffer = [0; 2048];
    let received = loop {
        match socket.recv_from(&mut buffer) {
            // With a time limit on the socket the kernel does not restart the call by itself.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => break other,
        }
    };
    match received {
        Ok((length, from)) => {
            assert_eq!(from, to.parse().unwrap());
            Some(String::from_utf8(buffer[..length].to_vec()).unwrap())
        }
        Err(error)
            if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) =>
        {
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Sends one echo request with 56 bytes; whether the answer came.
pub(crate) fn ping(namespace: &Namespace, to: &str) -> bool {
    use socket2::{Domain, Protocol, Socket, Type};
    let to: IpAddr = to.parse().unwrap();
    let (domain, protocol, request, answer) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8, 0),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128, 129),
    };
    let socket = namespace.enter(|| Socket::new(domain, Type::RAW, Some(protocol)).unwrap());
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut packet = vec![request, 0, 0, 0, 0x12, 0x34, 0, 1];
    packet.resize(64, 0x55);
    if to.is_ipv4() {
        // RFC 792; for ICMPv6 the kernel fills it in.
        let words = packet.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let sum = words.sum::<u32>();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    socket.send_to(&packet, &SocketAddr::new(to, 0).into()).unwrap();
    let mut socket = socket;
    let mut buffer = [0; 2048];
    loop {
        let length = match socket.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return false,
        };
        let message = if to.is_ipv4() { &buffer[20..length] } else { &buffer[..length] };
        if message[0] == answer && message[4..8] == packet[4..8] {
            return true;
        }
    }
}

/// Polls a condition that the kernel will bring about, each time after a moment of rest.
pub(crate) fn wait_until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    let (_keep, rest) = std::sync::mpsc::channel::<()>();
    while !done() {
        assert!(Instant::now() < deadline, "the condition did not come true in time");
        let _ = rest.recv_timeout(Duration::from_millis(10));
    }
}
