//! What changes around a running agent: devices, settings, an operator's hand.

use std::time::{Duration, Instant};

use proxy_testbed::{DEADLINE, Topology, poll_until, traffic::tcp::Client};

use crate::support::*;

fn is_ready(proxy: &proxy_testbed::ProxyProcess<'_>) -> bool {
    proxy.request("GET", "/readyz", "").is_ok()
}

#[test]
fn cleanup_beside_a_live_agent_is_refused_and_harms_nothing() {
    let world = world_or_skip!();
    let bpffs = bpffs();
    let proxy = world.start(Some(bpffs.path()), &config("ebpf", 1));
    let load = world.load(20);
    let mut cleanup = world.topology.proxy.command(binary());
    let output = cleanup.args(["cleanup", "--bpffs"]).arg(bpffs.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("nothing is removed") && said.contains(&proxy.id().to_string()),
        "{said}"
    );
    load.rounds(2);
    load.whole("cleanup refused", &proxy);
}

#[test]
fn a_setting_that_was_lost_with_its_device_is_made_again() {
    let world = world_or_skip!();
    let proxy = world.start(None, &config("nftables", 1));
    let inside = |arguments: &[&str]| world.topology.proxy.run("sysctl", arguments).unwrap();
    // A device that is deleted and made anew begins so.
    inside(&["-qw", "net.ipv4.conf.eth0.forwarding=0"]);
    let is_set = || inside(&["-n", "net.ipv4.conf.eth0.forwarding"]).trim() == "1";
    poll_until(DEADLINE, "set again", is_set).unwrap_or_else(|e| panic!("{e}\n{}", proxy.log()));
    let load = world.load(10);
    load.rounds(2);
    load.whole("set again", &proxy);
}

#[test]
fn a_missing_device_makes_unready_and_its_return_ready() {
    let world = world_or_skip!();
    for path in ["ebpf", "nftables"] {
        let proxy = world.start(None, &config(path, 1));
        poll_until(DEADLINE, "ready", || is_ready(&proxy)).unwrap();
        world.topology.proxy.ip(["link set eth0 down", "link set eth0 name away"]).unwrap();
        poll_until(DEADLINE, "unready", || !is_ready(&proxy))
            .unwrap_or_else(|error| panic!("{path}: {error}\n{}", proxy.log()));
        let status = proxy.status().unwrap().to_string();
        assert!(status.contains("eth0"), "{path}: {status}");
        world.topology.proxy.ip(["link set away name eth0", "link set eth0 up"]).unwrap();
        poll_until(DEADLINE, "ready again", || is_ready(&proxy))
            .unwrap_or_else(|error| panic!("{path}: {error}\n{}", proxy.log()));
    }
}

#[test]
fn a_backend_with_a_new_ethernet_address_is_reached_at_once() {
    let world = world_or_skip!();
    let Topology { proxy: inside, cluster, tailnet, .. } = &world.topology;
    // It announces itself, and is believed even if it does so twice within a second.
    cluster.run("sysctl", &["-qw", "net.ipv4.conf.eth0.arp_notify=1"]).unwrap();
    cluster.run("sysctl", &["-qw", "net.ipv6.conf.eth0.ndisc_notify=1"]).unwrap();
    inside.run("sysctl", &["-qw", "net.ipv4.neigh.eth0.locktime=0"]).unwrap();
    let proxy = world.start(None, &config("ebpf", 1));
    let mut clients =
        [0, 1].map(|family| Client::connect(tailnet, front(family, FRONT.0)).unwrap());
    for turn in 0..4 {
        cluster.ip([format!("link set eth0 address 02:00:00:00:07:0{turn}").as_str()]).unwrap();
        for client in &mut clients {
            let start = Instant::now();
            client.echo(1000).unwrap();
            // A packet may be lost to the old address; it is sent again after 0.2 s.
            assert!(start.elapsed() < Duration::from_millis(500), "turn {turn}\n{}", proxy.log());
        }
    }
}

/// Longer than the programs look after the other direction of a flow: two of their turns of four ticks.
#[expect(clippy::disallowed_methods, reason = "the silence is what is tested")]
fn silence() {
    std::thread::sleep(Duration::from_secs(9));
}

#[test]
fn silent_connections_follow_a_device_that_was_made_anew() {
    let world = world_or_skip!();
    let bpffs = bpffs();
    for is_killed in [false, true] {
        let mut proxy = world.start(Some(bpffs.path()), &config("ebpf", 1));
        let mut clients = [0, 1].map(|family| {
            Client::connect(&world.topology.tailnet, front(family, FRONT.0)).unwrap()
        });
        for client in &mut clients {
            client.echo(1000).unwrap();
        }
        silence();
        if is_killed {
            proxy.kill().unwrap();
            world.topology.renew_device().unwrap();
            proxy = world.start(Some(bpffs.path()), &config("ebpf", 1));
        } else {
            world.topology.renew_device().unwrap();
            poll_until(DEADLINE, "followed", || proxy.log().contains("flows follow")).unwrap();
        }
        for (family, client) in clients.iter_mut().enumerate() {
            let start = Instant::now();
            client.echo(1000).unwrap();
            let took = start.elapsed();
            assert!(took < Duration::from_millis(500), "{family}: {took:?}\n{}", proxy.log());
        }
    }
}
