//! What translation costs a bulk transfer, beside the kernel's plain forwarding.

use std::{
    io::{Read as _, Write as _},
    time::Instant,
};

use proxy_rules::{Protocol, Side, Snat};
use proxy_testbed::{
    Topology,
    offload::{self, Offload},
    topology::{HOSTS, PROXY_TAILNET},
    traffic::tcp::{Client, TcpServer},
};

use crate::{
    driver::{Driver, Make, on_each_path},
    rules::{at, dnat, rule, table},
};

on_each_path!(ebpf = crate::driver::ebpf:
    r15_a_hundred_megabytes_take_little_longer_than_without_translation,
);

const BYTES: usize = 100_000_000;
const PIECE: usize = 100_000;
/// Of the rate without translation.
const LEAST: f64 = 0.8;

/// The usual topology with every offload on, and a server behind it.
fn offloading() -> (Topology, TcpServer) {
    let topology = Topology::new().unwrap();
    for namespace in [&topology.proxy, &topology.cluster] {
        for switch in [Offload::Tso, Offload::Gso, Offload::Gro] {
            offload::set(namespace, "eth0", switch, true).unwrap();
        }
    }
    let server = TcpServer::new(&topology.cluster, "[::]:8080").unwrap();
    (topology, server)
}

/// Bytes a second there and back again.
fn rate(client: &mut Client) -> f64 {
    let mut writer = client.stream.try_clone().unwrap();
    let mut buffer = vec![0; PIECE];
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let sent = vec![7; PIECE];
            for _ in 0..BYTES / PIECE {
                writer.write_all(&sent).unwrap();
            }
        });
        for _ in 0..BYTES / PIECE {
            client.stream.read_exact(&mut buffer).unwrap();
        }
    });
    BYTES as f64 / started.elapsed().as_secs_f64()
}

fn r15_a_hundred_megabytes_take_little_longer_than_without_translation(make: Make) {
    let (forwarding, _server) = offloading();
    for family in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        forwarding.proxy.sysctl(&format!("net/{family}"), "1").unwrap();
    }
    let (translating, _other) = offloading();
    let driver = Driver::new(&translating, make);
    driver.apply(&table([0, 1].map(|family| {
        let to = dnat(&[&at(HOSTS[0][family], 8080).to_string()], Snat::Masquerade);
        rule("web", Side::Tailnet, Protocol::Tcp, PROXY_TAILNET[family], 80, to)
    })));
    for family in [0, 1] {
        // Other tests share the processors: what slows one of a pair alone does not slow the same one thrice.
        let mut pairs = (0..3).map(|_| {
            let connect = |topology: &Topology, to| Client::connect(&topology.tailnet, to).unwrap();
            let mut plain = connect(&forwarding, at(HOSTS[0][family], 8080));
            let mut translated = connect(&translating, at(PROXY_TAILNET[family], 80));
            [rate(&mut plain), rate(&mut translated)]
        });
        let mut seen = Vec::new();
        let fast = pairs.any(|[plain, translated]| {
            println!("{:.0} and {:.0} megabytes a second", plain / 1e6, translated / 1e6);
            seen.push(translated / plain);
            translated >= LEAST * plain
        });
        assert!(fast, "family {family}: {seen:.2?} of the rate without translation");
    }
}
