//! Other people's TC programs on our devices.

use proxy_rules::{Protocol, Side, Snat};
use proxy_testbed::{
    Topology,
    classifier::{Classifier, Place},
    topology::{HOSTS, PROXY_CLUSTER, PROXY_TAILNET},
    traffic::udp::{Answer, UdpClient, UdpServer},
};

use crate::{
    driver::{Driver, Make, on_each_path},
    rules::{at, dnat, rule, table},
};

on_each_path!(ebpf = crate::driver::ebpf:
    r67_tc_programs_before_and_after_ours_see_their_packets_whoever_restarts,
);

const ASKED: usize = 10;
/// Datagrams each way of one round and kind, both families.
const ROUND: u64 = 2 * ASKED as u64;

/// Servers behind the rules, and servers of the proxy's host that no rule names.
fn servers(topology: &Topology) -> Vec<UdpServer> {
    let behind = HOSTS[0].map(|host| (&topology.cluster, at(host, 53)));
    let own = [PROXY_TAILNET, PROXY_CLUSTER].concat();
    let own = own.iter().map(|address| (&topology.proxy, at(address, 5300)));
    let all = behind.into_iter().chain(own);
    all.map(|(ns, to)| UdpServer::new(ns, &to.to_string(), Answer::Echo).unwrap()).collect()
}

fn start(topology: &Topology, make: Make) -> Driver {
    let driver = Driver::new(topology, make);
    driver.apply(&table([0, 1].map(|family| {
        let to = dnat(&[HOSTS[0][family]], Snat::Masquerade);
        rule("dns", Side::Tailnet, Protocol::Udp, PROXY_TAILNET[family], 53, to)
    })));
    driver
}

/// Onto each device come [`ROUND`] packets that we carry and [`ROUND`] that we leave to the host; ours counts those that it
/// carries, in both directions, and nobody loses one.
fn ask(topology: &Topology, driver: &Driver) {
    let counted = |driver: &Driver| {
        let series = driver.counters().series;
        series.values().fold([0, 0], |[original, reply], count| {
            [original + count.original_packets, reply + count.reply_packets]
        })
    };
    let before = counted(driver);
    for family in [0, 1] {
        for (from, to, port) in [
            (&topology.tailnet, PROXY_TAILNET, 53),
            (&topology.tailnet, PROXY_TAILNET, 5300),
            (&topology.cluster, PROXY_CLUSTER, 5300),
        ] {
            let client = UdpClient::new(from, at(to[family], port)).unwrap();
            assert_eq!(client.echo(ASKED, 100).unwrap(), ASKED, "{}:{port}", to[family]);
        }
    }
    assert_eq!(counted(driver), before.map(|packets| packets + ROUND), "ours");
}

/// What a program has seen of one more round; neighbour discovery comes on top.
fn seen(others: &[&Classifier], round: impl FnOnce()) -> Vec<u64> {
    let read = || others.iter().map(|other| other.packets().unwrap()).collect::<Vec<_>>();
    let before = read();
    round();
    read().iter().zip(before).map(|(now, before)| now - before).collect()
}

fn r67_tc_programs_before_and_after_ours_see_their_packets_whoever_restarts(make: Make) {
    for device in ["tailscale0", "eth0"] {
        let topology = Topology::new().unwrap();
        let _servers = servers(&topology);
        let attach = |place| Classifier::attach(&topology.proxy, device, place).unwrap();
        let driver = start(&topology, make);
        let (first, last) = (attach(Place::First), attach(Place::Last));
        // What we carry has left before the last one: it sees what we leave.
        let counts = seen(&[&first, &last], || ask(&topology, &driver));
        assert!(counts[0] >= 2 * ROUND && counts[1] >= ROUND, "{device}, all there: {counts:?}");
        assert!(counts[1] < counts[0], "{device}, the last one came before ours: {counts:?}");

        // Gone, we take nobody along; back, we are the last, and both others see everything.
        drop(driver);
        let counts = seen(&[&first, &last], || {
            let client = UdpClient::new(&topology.tailnet, at(PROXY_TAILNET[0], 5300)).unwrap();
            assert_eq!(client.echo(ASKED, 100).unwrap(), ASKED);
            let client = UdpClient::new(&topology.cluster, at(PROXY_CLUSTER[0], 5300)).unwrap();
            assert_eq!(client.echo(ASKED, 100).unwrap(), ASKED);
        });
        assert!(counts.iter().all(|c| *c >= ASKED as u64), "{device}, without ours: {counts:?}");
        let driver = start(&topology, make);
        let counts = seen(&[&first, &last], || ask(&topology, &driver));
        assert!(counts.iter().all(|c| *c >= 2 * ROUND), "{device}, ours restarted: {counts:?}");

        // They restart one after the other, and in the end all are where they began.
        drop(first);
        let counts = seen(&[&last], || ask(&topology, &driver));
        assert!(counts[0] >= 2 * ROUND, "{device}, the first one is gone: {counts:?}");
        let first = attach(Place::First);
        drop(last);
        let counts = seen(&[&first], || ask(&topology, &driver));
        assert!(counts[0] >= 2 * ROUND, "{device}, the last one is gone: {counts:?}");
        let last = attach(Place::Last);
        let counts = seen(&[&first, &last], || ask(&topology, &driver));
        assert!(counts[0] >= 2 * ROUND && counts[1] >= ROUND, "{device}, all back: {counts:?}");
        assert!(counts[1] < counts[0], "{device}, the last one came before ours: {counts:?}");
    }
}
