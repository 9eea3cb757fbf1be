//! Processes that are killed, servers that are gone, a tailnet in turmoil: traffic that could flow flows, and the status
//! tells the truth.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use nix::{
    mount::MsFlags,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use proxy_testbed::{Bpffs, poll_until, tailnet::Tailnet, topology::HOSTS, traffic::tcp::Client};

use crate::pod::{KERNEL_PATHS, Place, Pod, Servers, exchange, leads_to};

/// The families, as the places of their addresses.
const FAMILIES: [usize; 2] = [0, 1];

/// Every kernel data path with either family, and a name for its pod.
fn combinations() -> impl Iterator<Item = (&'static str, usize, String)> {
    let of = |path| FAMILIES.map(|family| (path, family, format!("{path}{family}")));
    KERNEL_PATHS.into_iter().flat_map(of)
}

/// A place for a pod that leads to a server of that family, and the server.
fn served(tailnet: &Tailnet, name: &str, family: usize) -> (Place, Servers) {
    let backend = HOSTS[1][family];
    let place = Place::new(tailnet, name).unwrap().with("TS_DEST_IP", backend);
    let servers = Servers::new(&place.cluster, backend, 80).unwrap();
    (place, servers)
}

fn frontend(pod: &Pod, family: usize) -> SocketAddr {
    SocketAddr::new(pod.address(family == 0).unwrap(), 80)
}

/// The process ids of the children of a process that run a program.
pub(crate) fn children(parent: u32, program: &str) -> Vec<i32> {
    let ids = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_ours = |id: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let rest = stat.rsplit(')').next().unwrap_or_default();
        let parent_of = rest.split_whitespace().nth(1).and_then(|text| text.parse::<u32>().ok());
        parent_of == Some(parent) && stat.contains(&format!("({program})"))
    };
    ids.filter(is_ours).collect()
}

/// tailscaled is killed: it is started again, the same node with the same address, and connections go on.
#[test]
fn a_tailscaled_that_is_killed_comes_back_and_connections_go_on() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    for (data_path, family, name) in combinations() {
        let (place, _servers) = served(&tailnet, &name, family);
        let pod = place.start(data_path).unwrap();
        peer.meet(&name).unwrap();
        let frontend = frontend(&pod, family);
        let mut kept = Client::connect(&peer.underlay.namespace, frontend).unwrap();
        let before = pod.status().unwrap();
        let tailscaled = children(pod.daemon.id(), "tailscaled");
        assert_eq!(tailscaled.len(), 1);
        kill(Pid::from_raw(tailscaled[0]), Signal::SIGKILL).unwrap();
        pod.wait(Duration::from_secs(2), "not ready", |s| {
            s["tailnet"]["restarts"] == 1 || s["ready"] == false
        })
        .unwrap();
        pod.wait(Duration::from_secs(20), "ready again", |s| {
            s["ready"] == true && s["tailnet"]["restarts"] == 1
        })
        .unwrap();
        let after = pod.status().unwrap();
        for field in ["id", "name", "addresses"] {
            assert_eq!(before["tailnet"][field], after["tailnet"][field]);
        }
        peer.ping(frontend.ip()).unwrap();
        poll_until(Duration::from_secs(15), "the connection goes on", || kept.echo(1000).is_ok())
            .map_err(|error| format!("{data_path}: {error}\n{}", pod.daemon.log()))
            .unwrap();
        exchange(&peer.underlay.namespace, frontend).unwrap();
    }
}

/// The agent is killed, and tailscaled with it: a new one has the same node, and serves. A connection that speaks meanwhile
/// goes on. The first table of the new process is not one that knows nobody yet.
#[test]
fn an_agent_that_is_killed_leaves_a_node_that_the_next_one_is() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let bpffs = Bpffs::new(MsFlags::empty()).unwrap();
    for (data_path, family, name) in combinations() {
        let (place, _servers) = served(&tailnet, &name, family);
        let place = place.with("SLUICE_BPFFS", &bpffs.path().display().to_string());
        let mut pod = place.start(data_path).unwrap();
        let before = pod.status().unwrap();
        peer.meet(&name).unwrap();
        let frontend = frontend(&pod, family);
        let mut kept = Client::connect(&peer.underlay.namespace, frontend).unwrap();
        kept.stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        let tailscaled = children(pod.daemon.id(), "tailscaled");
        let stop = AtomicBool::new(false);
        let spoke = std::thread::scope(|scope| {
            let speaking = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    kept.echo(100)?;
                }
                kept.echo(100)
            });
            pod.daemon.kill().unwrap();
            poll_until(Duration::from_secs(3), "tailscaled ends with its agent", || {
                let is_gone = |id: &i32| !std::path::Path::new(&format!("/proc/{id}")).exists();
                tailscaled.iter().all(is_gone)
            })
            .unwrap();
            pod.restart(data_path).unwrap();
            stop.store(true, Ordering::Relaxed);
            speaking.join().unwrap()
        });
        spoke.map_err(|error| format!("{name}: {error}\n{}", pod.daemon.log())).unwrap();
        let after = pod.status().unwrap();
        for field in ["id", "name", "addresses"] {
            assert_eq!(before["tailnet"][field], after["tailnet"][field]);
        }
        peer.meet(&name).unwrap();
        exchange(&peer.underlay.namespace, frontend).unwrap();
    }
}

/// Between two rounds of traffic meanwhile.
#[expect(clippy::disallowed_methods, reason = "the pace of the traffic; nothing is waited for")]
pub(crate) fn pace() {
    std::thread::sleep(Duration::from_millis(500));
}

/// How long servers are gone: some seconds, or what `SLUICE_OUTAGE_SECONDS` says (ten minutes were seen to hold).
pub(crate) fn outage() -> Duration {
    let told = std::env::var("SLUICE_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(told.unwrap_or(5))
}

/// The control server is gone: what flows goes on, new connections too; and a process that starts meanwhile is not ready.
#[test]
fn without_the_control_server_traffic_flows() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let pods: Vec<_> = FAMILIES
        .into_iter()
        .map(|family| {
            let name = format!("pod{family}");
            let (place, servers) = served(&tailnet, &name, family);
            let pod = place.start("ebpf").unwrap();
            peer.meet(&name).unwrap();
            let at = frontend(&pod, family);
            exchange(&peer.underlay.namespace, at).unwrap();
            (pod, servers, at)
        })
        .collect();
    let connect = |at| Client::connect(&peer.underlay.namespace, at).unwrap();
    let mut kept: Vec<_> = pods.iter().map(|(_, _, at)| connect(*at)).collect();
    tailnet.pause().unwrap();
    let end = Instant::now() + outage();
    while Instant::now() < end {
        for ((pod, _, at), kept) in pods.iter().zip(&mut kept) {
            let told = |error| panic!("{error:#}\n{}", pod.daemon.log());
            exchange(&peer.underlay.namespace, *at).unwrap_or_else(told);
            kept.echo(10_000).unwrap();
        }
        pace();
    }
    for (pod, _, _) in &pods {
        assert_eq!(pod.status().unwrap()["ready"], true);
    }
    let orphan = Place::new(&tailnet, "orphan")
        .unwrap()
        .with("TS_DEST_IP", HOSTS[1][0])
        .launch("ebpf")
        .unwrap();
    orphan
        .wait(Duration::from_secs(10), "it tells", |s| s["latches"]["logged-in"] == false)
        .unwrap();
    tailnet.resume().unwrap();
    orphan.wait(Duration::from_secs(40), "it is ready", |s| s["ready"] == true).unwrap();
}

/// R49: the node's key is invalid: not ready in less than a minute, and well again when it is.
#[test]
fn an_expired_key_is_told_and_healed() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let place = Place::new(&tailnet, "pod").unwrap().with("TS_DEST_IP", HOSTS[1][0]);
    let pod = place.start("ebpf").unwrap();
    let id = tailnet.find("pod").unwrap().id;
    tailnet.expire(id, true).unwrap();
    pod.wait(Duration::from_secs(30), "not ready", |s| s["ready"] == false).unwrap();
    pod.wait(Duration::from_mins(1), "ready again", |s| s["ready"] == true).unwrap();
}

/// Ten thousand changes of the tailnet in half a minute: the target stays right, and memory is bounded.
#[test]
fn a_tailnet_in_turmoil_changes_nothing_and_costs_little() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let target = tailnet.joined("target", &[]).unwrap();
    let at = target.addresses().unwrap();
    let place = Place::new(&tailnet, "pod")
        .unwrap()
        .with("TS_TAILNET_TARGET_FQDN", "target.tailnet.ts.net");
    let pod = place.start("ebpf").unwrap();
    tailnet.add_fakes(200, "fake").unwrap();
    pod.wait(Duration::from_secs(10), "all peers", |s| s["tailnet"]["peers"] == 201).unwrap();
    let resident = |pod: &Pod| pod.status().unwrap()["process"]["resident_bytes"].as_u64().unwrap();
    let before = resident(&pod);
    let changes = tailnet.churn(10_000, Duration::from_secs(30)).unwrap();
    assert_eq!(changes, 10_000);
    assert!(leads_to(&pod.status().unwrap(), "egress", &at));
    let after = resident(&pod);
    assert!(after < before + (8 << 20), "{before} bytes before, {after} after");
}
