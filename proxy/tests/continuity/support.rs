//! One world: two servers of either family behind the proxy, load through it, and a second opinion on what was carried.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use proxy_testbed::{
    Bpffs, DEADLINE, ProxyProcess, Topology, poll_until,
    topology::{HOSTS, PROXY_TAILNET},
    traffic::{
        steady::{Report, Steady},
        tcp::TcpServer,
        udp::{Answer, UdpServer},
    },
};
use serde_json::Value;

/// Ports of the frontends, TCP and UDP: not privileged, for agents that are not root.
pub(crate) const FRONT: (u16, u16) = (8000, 5300);
/// Ports of the servers.
const BACK: (u16, u16) = (8080, 5353);
/// Load: TCP connections, half of either family.
pub(crate) const CONNECTIONS: usize = 200;

pub(crate) fn binary() -> PathBuf {
    env!("CARGO_BIN_EXE_sluice-proxy").into()
}

/// Ends the test where the machine's tests are told to do without the kernel.
macro_rules! world_or_skip {
    () => {
        if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
            eprintln!("skipped: SKIP_KERNEL_TESTS=1");
            return;
        } else {
            crate::support::World::new()
        }
    };
}
pub(crate) use world_or_skip;

/// What the proxy has counted: packets and bytes of the original direction, then of the reply, flows.
pub(crate) type Counts = BTreeMap<(String, String), [u64; 5]>;

/// One world at a time: the load of two would be more than two processors can bear.
static ALONE: Mutex<()> = Mutex::new(());

pub(crate) struct World {
    pub(crate) topology: Topology,
    _servers: (Vec<TcpServer>, Vec<UdpServer>),
    _alone: MutexGuard<'static, ()>,
}

impl World {
    pub(crate) fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // A thousand flows are two thousand sockets here.
        let (_, hard) =
            nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, hard, hard)
            .unwrap();
        let topology = Topology::new().unwrap();
        // The second opinion: what the servers' device has seen.
        let rules = "table inet witness {\n counter tcp_in {}\n counter tcp_out {}\n counter udp_in {}\n counter \
                     udp_out {}\n chain in { type filter hook input priority 0; tcp dport 8080 counter name tcp_in\n \
                     udp dport 5353 counter name udp_in\n }\n chain out { type filter hook output priority 0; tcp \
                     sport 8080 counter name tcp_out\n udp sport 5353 counter name udp_out\n }\n}\n";
        topology.cluster.feed("nft", &["-f", "-"], rules).unwrap();
        let mut servers = (Vec::new(), Vec::new());
        for host in HOSTS[..2].iter().flatten() {
            let at = |port| SocketAddr::new(host.parse().unwrap(), port).to_string();
            servers.0.push(TcpServer::new(&topology.cluster, &at(BACK.0)).unwrap());
            servers.1.push(UdpServer::new(&topology.cluster, &at(BACK.1), Answer::Echo).unwrap());
        }
        Self { topology, _servers: servers, _alone: alone }
    }

    /// Starts the proxy; pins go below `bpffs`.
    pub(crate) fn start(&self, bpffs: Option<&Path>, config: &str) -> ProxyProcess<'_> {
        let mut command = self.topology.proxy.command(binary());
        // Without one it must not find the machine's.
        command.env("SLUICE_BPFFS", bpffs.unwrap_or(Path::new("/nonexistent")));
        self.start_with(&mut command, config)
    }

    pub(crate) fn start_with(&self, command: &mut Command, config: &str) -> ProxyProcess<'_> {
        ProxyProcess::start_with(&self.topology.proxy, command, config).unwrap()
    }

    /// Connections and datagrams of both families through the frontends.
    pub(crate) fn load(&self, connections: usize) -> Load {
        let start = |family| {
            let (tcp, udp) = (front(family, FRONT.0), front(family, FRONT.1));
            Steady::start(&self.topology.tailnet, connections / 2, &[tcp], Some(udp)).unwrap()
        };
        Load([start(0), start(1)])
    }

    /// What arrived at the servers and left them, as the proxy should have counted it.
    fn witness(&self) -> BTreeMap<&'static str, [u64; 4]> {
        let text = self.topology.cluster.run("nft", &["-j", "list", "counters"]).unwrap();
        let listing: Value = serde_json::from_str(&text).unwrap();
        let read = |name: &str| {
            let objects = listing["nftables"].as_array().unwrap();
            let found = objects.iter().find(|object| object["counter"]["name"] == name).unwrap();
            ["packets", "bytes"].map(|field| found["counter"][field].as_u64().unwrap())
        };
        let both = |inward, outward| {
            let ([packets, bytes], [replies, reply_bytes]) = (read(inward), read(outward));
            [packets, bytes, replies, reply_bytes]
        };
        [("tcp", both("tcp_in", "tcp_out")), ("udp", both("udp_in", "udp_out"))].into()
    }

    /// Asserts that the proxy has counted exactly what the servers have seen, and these flows.
    #[track_caller]
    pub(crate) fn adds_up(&self, proxy: &ProxyProcess<'_>, flows: [u64; 2]) {
        let differ = || {
            let counts = counts(proxy);
            let counted = |protocol: &str| counts[&("web".to_owned(), protocol.to_owned())];
            let seen = self.witness().into_iter().zip(flows);
            let seen =
                seen.map(|((protocol, [a, b, c, d]), flows)| (protocol, [a, b, c, d, flows]));
            seen.map(|(protocol, seen)| (protocol, counted(protocol), seen))
                .find(|(_, counted, seen)| counted != seen)
        };
        // The last acknowledgements may be under way.
        let equal = poll_until(DEADLINE, "equal", || differ().is_none());
        assert!(equal.is_ok(), "counted, seen: {:?}\n{}", differ(), proxy.log());
    }
}

pub(crate) fn front(family: usize, port: u16) -> SocketAddr {
    SocketAddr::new(PROXY_TAILNET[family].parse().unwrap(), port)
}

/// The rules, for these data paths.
pub(crate) fn config(paths: &str, drain: u32) -> String {
    let [f4, f6] = PROXY_TAILNET;
    let hosts: Vec<String> =
        HOSTS[..2].iter().flatten().map(|host| format!("{{ address: \"{host}\" }}")).collect();
    format!(
        "apiVersion: sluice.dev/v1\nkind: ProxyRules\nsettings:\n  interfaces: {{ tailnet: [tailscale0], cluster: \
         [eth0] }}\n  dataPath: [{paths}]\n  drainSeconds: {drain}\ningress:\n  - name: web\n    frontends: [{f4}, \
         \"{f6}\"]\n    ports:\n      - {{ protocol: tcp, port: {}, targetPort: {} }}\n      - {{ protocol: udp, \
         port: {}, targetPort: {} }}\n    backends: [{}]\n",
        FRONT.0,
        BACK.0,
        FRONT.1,
        BACK.1,
        hosts.join(", ")
    )
}

pub(crate) const EVERY_PATH: &str = "ebpf, nftables, userspace";

pub(crate) fn counts(proxy: &ProxyProcess<'_>) -> Counts {
    let status = proxy.status().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let names = ["original_packets", "original_bytes", "reply_packets", "reply_bytes", "flows"];
    let port = |port: &Value| {
        let counts = names.map(|name| port[name].as_u64().unwrap());
        ((text(&port["rule"]), text(&port["protocol"])), counts)
    };
    status["ports"].as_array().unwrap().iter().map(port).collect()
}

/// Watches that no counter ever goes back, from one agent to the next.
#[derive(Default)]
pub(crate) struct Watch {
    last: Counts,
    readings: usize,
}

impl Watch {
    #[track_caller]
    pub(crate) fn look(&mut self, proxy: &ProxyProcess<'_>) {
        let now = counts(proxy);
        for (series, before) in &self.last {
            let after = now.get(series).unwrap_or_else(|| panic!("{series:?} is gone"));
            let back = before.iter().zip(after).any(|(before, after)| before > after);
            assert!(!back, "{series:?} went back: {before:?} -> {after:?}\n{}", proxy.log());
        }
        self.last = now;
        self.readings += 1;
    }

    /// Looks all the while that `work` takes.
    pub(crate) fn during(&mut self, proxy: &ProxyProcess<'_>, work: impl FnOnce()) {
        let over = AtomicBool::new(false);
        let before = self.readings;
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    self.look(proxy);
                    std::thread::park_timeout(Duration::from_millis(10));
                }
                self.readings
            });
            work();
            over.store(true, Ordering::Relaxed);
            let readings = watching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            assert!(readings > before + 1, "nobody looked");
        });
    }
}

/// Traffic of both families.
pub(crate) struct Load([Steady; 2]);

impl Load {
    /// Waits until each connection has gone so many times there and back.
    pub(crate) fn rounds(&self, rounds: u64) {
        self.0.iter().for_each(|steady| steady.await_rounds(rounds).unwrap());
    }

    pub(crate) fn finish(self) -> [Report; 2] {
        self.0.map(|steady| steady.finish().unwrap())
    }

    /// Ends it and asserts that nothing at all was lost; returns the longest silence of the UDP streams.
    #[track_caller]
    pub(crate) fn whole(self, what: &str, proxy: &ProxyProcess<'_>) -> Duration {
        let mut silence = Duration::ZERO;
        for report in self.finish() {
            let Report { blocks, broken, datagrams, lost, missing, silence: gap } = report;
            println!(
                "{what}: {blocks} blocks, {datagrams} datagrams, {lost} lost, longest silence {gap:?}"
            );
            assert!(broken.is_empty(), "{what}: {broken:?}\n{}", proxy.log());
            assert_eq!(lost, 0, "{what}: {missing:?} of {datagrams} datagrams\n{}", proxy.log());
            assert!(blocks > 0 && datagrams > 0);
            silence = silence.max(gap);
        }
        silence
    }
}

/// Makes the proxy use one path and no other.
#[track_caller]
pub(crate) fn force(proxy: &ProxyProcess<'_>, kind: &str) {
    let answer = proxy.request("POST", "/v1/data-path", &format!("{{\"kind\":\"{kind}\"}}"));
    assert!(answer.is_ok(), "{kind}: {answer:?}\n{}", proxy.log());
    assert_eq!(path(proxy), kind, "{}", proxy.log());
}

pub(crate) fn path(proxy: &ProxyProcess<'_>) -> String {
    proxy.status().unwrap()["data_path"]["kind"].as_str().unwrap_or_default().to_owned()
}

pub(crate) fn bpffs() -> Bpffs {
    Bpffs::new(nix::mount::MsFlags::empty()).unwrap()
}
