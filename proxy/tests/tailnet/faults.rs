//! Processes that are killed, servers that are gone, a tailnet in turmoil: traffic that could flow flows, and the status
//! tells the truth.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use proxy_testbed::{poll_until, tailnet::Tailnet, topology::HOSTS, traffic::tcp::Client};

use crate::pod::{KERNEL_PATHS, Place, Servers, exchange, leads_to};

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
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let name = format!("pod{index}");
        let place = Place::new(&tailnet, &name).unwrap().with("TS_DEST_IP", HOSTS[1][0]);
        let _servers = Servers::new(&place.cluster, HOSTS[1][0], 80).unwrap();
        let pod = place.start(data_path).unwrap();
        peer.meet(&name).unwrap();
        let frontend = SocketAddr::new(pod.address(true).unwrap(), 80);
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
/// goes on where the kernel keeps it: the first table of the new process is not one that knows nobody yet.
#[test]
fn an_agent_that_is_killed_leaves_a_node_that_the_next_one_is() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let name = format!("pod{index}");
        let place = Place::new(&tailnet, &name).unwrap().with("TS_DEST_IP", HOSTS[1][0]);
        let _servers = Servers::new(&place.cluster, HOSTS[1][0], 80).unwrap();
        let mut pod = place.start(data_path).unwrap();
        let before = pod.status().unwrap();
        peer.meet(&name).unwrap();
        let frontend = SocketAddr::new(pod.address(true).unwrap(), 80);
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
        // Without pins the eBPF programs end with their process.
        if *data_path == "nftables" {
            spoke.map_err(|error| format!("{data_path}: {error}\n{}", pod.daemon.log())).unwrap();
        }
        let after = pod.status().unwrap();
        for field in ["id", "name", "addresses"] {
            assert_eq!(before["tailnet"][field], after["tailnet"][field]);
        }
        peer.meet(&name).unwrap();
        exchange(&peer.underlay.namespace, frontend).unwrap();
    }
}

/// The control server is gone: what flows goes on, new connections too; and a process that starts meanwhile is not ready.
#[test]
fn without_the_control_server_traffic_flows() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let place = Place::new(&tailnet, "pod").unwrap().with("TS_DEST_IP", HOSTS[1][0]);
    let _servers = Servers::new(&place.cluster, HOSTS[1][0], 80).unwrap();
    let pod = place.start("ebpf").unwrap();
    peer.meet("pod").unwrap();
    let frontend = SocketAddr::new(pod.address(true).unwrap(), 80);
    exchange(&peer.underlay.namespace, frontend).unwrap();
    tailnet.pause().unwrap();
    for _ in 0..5 {
        exchange(&peer.underlay.namespace, frontend).unwrap();
    }
    assert_eq!(pod.status().unwrap()["ready"], true);
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

/// Ten thousand changes of the tailnet a minute: the target stays right, and memory is bounded.
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
    let resident = |pod: &crate::pod::Pod| {
        pod.status().unwrap()["process"]["resident_bytes"].as_u64().unwrap()
    };
    let before = resident(&pod);
    let changes = tailnet.churn(2000, Duration::from_secs(12)).unwrap();
    assert_eq!(changes, 2000);
    assert!(leads_to(&pod.status().unwrap(), "egress", &at));
    let after = resident(&pod);
    assert!(after < before + (8 << 20), "{before} bytes before, {after} after");
}
