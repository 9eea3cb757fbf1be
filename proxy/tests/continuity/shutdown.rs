//! The agent is told to end under load.

use proxy_testbed::{DEADLINE, poll_until, traffic::tcp::Client};

use crate::support::*;

#[test]
fn a_draining_agent_serves_until_it_is_quiet_and_leaves_no_trace() {
    let world = world_or_skip!();
    for kind in ["ebpf", "nftables"] {
        let before = world.topology.proxy.traces().unwrap();
        let bpffs = bpffs();
        let proxy = world.start(Some(bpffs.path()), &config(kind, 60));
        let load = world.load(40);
        load.rounds(2);
        proxy.terminate().unwrap();
        poll_until(DEADLINE, "not ready", || proxy.request("GET", "/readyz", "").is_err()).unwrap();
        load.rounds(5);
        let late = Client::connect(&world.topology.tailnet, front(0, FRONT.0));
        late.unwrap().echo(1000).unwrap();
        load.whole(&format!("{kind}, draining"), &proxy);
        let (status, log) = proxy.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains("quiet"), "{log}");
        assert_eq!(world.topology.proxy.traces().unwrap(), before, "{kind}");
        assert!(!bpffs.path().join("sluice").exists(), "{kind}: pins are left");
    }
}

#[test]
fn traffic_that_does_not_end_is_served_until_the_deadline() {
    let world = world_or_skip!();
    let before = world.topology.proxy.traces().unwrap();
    let proxy = world.start(None, &config("ebpf", 2));
    let load = world.load(40);
    load.rounds(2);
    proxy.terminate().unwrap();
    load.rounds(2);
    let (status, log) = proxy.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("the deadline has come"), "{log}");
    assert_eq!(world.topology.proxy.traces().unwrap(), before);
    let broken: usize = load.finish().iter().map(|report| report.broken.len()).sum();
    assert_eq!(broken, 40, "what is still open then is told so, not left hanging");
}
