//! Laws about tables: what is in force depends on the last good table alone, and nothing remains of a removed one.

use proxy_rules::{Fragments, Protocol, RuleTable, Settings, Side, Snat};
use proxy_testbed::{
    DEADLINE, Topology,
    topology::{HOSTS, PROXY_CLUSTER, PROXY_TAILNET},
    traffic::udp::{Answer, UdpClient, UdpServer},
};

use crate::{
    count,
    driver::{Driver, Make, on_each_path},
    rules::{at, dnat, rule, settings, table},
};

on_each_path!(
    applying_twice_is_applying_once,
    a_table_means_the_same_after_another_as_from_nothing,
    a_failed_apply_leaves_the_old_table_in_force,
    counters_of_surviving_rules_survive,
    removal_leaves_no_trace,
);

// A table for a device that does not exist is no failure of sockets, which need none: what fails there is a bind, and
// the law about it is `a_failed_bind_changes_nothing` of the user-space tests.
on_each_path!(
    userspace = crate::userspace:
    applying_twice_is_applying_once,
    a_table_means_the_same_after_another_as_from_nothing,
    counters_of_surviving_rules_survive,
    removal_leaves_no_trace,
);

const FRONT: &str = PROXY_TAILNET[0];
const PORTS: [u16; 3] = [53, 54, 55];

/// UDP frontends on these ports, all at the first host's port 5353.
fn on(ports: &[u16]) -> RuleTable {
    let to = || dnat(&[&at(HOSTS[0][0], 5353).to_string()], Snat::Masquerade);
    let rules = ports
        .iter()
        .map(|port| rule(&format!("p{port}"), Side::Tailnet, Protocol::Udp, FRONT, *port, to()));
    table(rules.collect::<Vec<_>>())
}

fn server(topology: &Topology) -> UdpServer {
    UdpServer::new(&topology.cluster, &at(HOSTS[0][0], 5353).to_string(), Answer::Names).unwrap()
}

/// The ports that carry a new flow; a port that does not is refused or silent.
fn carried(topology: &Topology) -> Vec<u16> {
    let silence = std::time::Duration::from_millis(300);
    let works = |port: &u16| {
        let client = UdpClient::new(&topology.tailnet, at(FRONT, *port)).unwrap();
        client.socket.set_read_timeout(Some(silence)).unwrap();
        client.names().is_ok()
    };
    PORTS.into_iter().filter(works).collect()
}

fn packets(driver: &Driver) -> [u64; 3] {
    let snapshot = driver.counters();
    PORTS.map(|port| count(&snapshot, &format!("p{port}")).original_packets)
}

fn applying_twice_is_applying_once(make: Make) {
    let topology = Topology::new().unwrap();
    let _server = server(&topology);
    let driver = Driver::new(&topology, make);
    driver.apply(&on(&[53]));
    let once = topology.proxy.traces().unwrap();
    let client = UdpClient::new(&topology.tailnet, at(FRONT, 53)).unwrap();
    let named = client.names().unwrap();
    driver.apply(&on(&[53]));
    assert_eq!(client.names().unwrap(), named);
    // Counters inside a ruleset's listing have moved with the packet.
    let still = |traces: &str| {
        let kept = traces.lines().filter(|line| !line.contains("packets"));
        kept.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(still(&topology.proxy.traces().unwrap()), still(&once));
    assert_eq!(packets(&driver), [2, 0, 0]);
    assert_eq!(count(&driver.counters(), "p53").flows, 1);
}

fn a_table_means_the_same_after_another_as_from_nothing(make: Make) {
    let topology = Topology::new().unwrap();
    let _server = server(&topology);
    let driver = Driver::new(&topology, make);
    for ports in [&[53, 54][..], &[54, 55], &[], &[53], &[53, 54, 55]] {
        driver.apply(&on(ports));
        assert_eq!(carried(&topology), ports);
    }
}

fn a_failed_apply_leaves_the_old_table_in_force(make: Make) {
    let topology = Topology::new().unwrap();
    let _server = server(&topology);
    let driver = Driver::new(&topology, make);
    driver.apply(&on(&[53]));
    let mut elsewhere = settings();
    elsewhere.interfaces.cluster = vec!["eth7".into()];
    let wrong = RuleTable::new(on(&[54]).rules().to_vec(), elsewhere);
    driver.try_apply(&wrong).unwrap_err();
    assert_eq!(carried(&topology), [53]);
    driver.apply(&on(&[54]));
    assert_eq!(carried(&topology), [54]);
}

fn counters_of_surviving_rules_survive(make: Make) {
    let topology = Topology::new().unwrap();
    let _server = server(&topology);
    let driver = Driver::new(&topology, make);
    driver.apply(&on(&[53, 54]));
    assert_eq!(carried(&topology), [53, 54]);
    driver.apply(&on(&[53]));
    assert_eq!(packets(&driver)[0], 1);
    // New rules that sort before it, and settings that change what is installed.
    let fragments = Fragments::Drop;
    let changed =
        RuleTable::new(on(&[53, 54, 55]).rules().to_vec(), Settings { fragments, ..settings() });
    driver.apply(&changed);
    assert_eq!(packets(&driver)[0], 1);
    assert_eq!(carried(&topology), PORTS);
    assert_eq!(packets(&driver)[0], 2);
}

fn removal_leaves_no_trace(make: Make) {
    let topology = Topology::new().unwrap();
    let _server = server(&topology);
    let before = topology.proxy.traces().unwrap();
    let driver = Driver::new(&topology, make);
    driver.apply(&on(&[53]));
    assert_eq!(carried(&topology), [53]);
    driver.remove();
    assert_eq!(topology.proxy.traces().unwrap(), before);
    assert!(carried(&topology).is_empty());
    // Once more, and after another apply.
    driver.remove();
    driver.apply(&on(&[54]));
    assert_eq!(carried(&topology), [54]);
    driver.remove();
    assert_eq!(topology.proxy.traces().unwrap(), before);
    // The host itself answers as ever.
    let host = PROXY_CLUSTER[0].parse().unwrap();
    let mut ping = proxy_testbed::traffic::icmp::Pinger::new(&topology.cluster, host).unwrap();
    assert!(ping.ping(56, DEADLINE).unwrap().is_some());
}
