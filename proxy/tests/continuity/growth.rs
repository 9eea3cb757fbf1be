//! Rules that outgrow the maps: larger ones take their place under load, and nobody notices.

use std::fmt::Write as _;

use proxy_testbed::{DEADLINE, poll_until, topology::HOSTS};

use crate::support::*;

const FLOWS: [u64; 2] = [CONNECTIONS as u64, 2];
/// More than the maps hold from the start.
const PORTS: u16 = 3000;

/// The rules of every test here, and so many ports more.
fn grown() -> String {
    let mut text = config("ebpf", 1);
    text += "  - name: many\n    frontends: [100.64.7.7]\n    ports:\n";
    for port in 10_000..10_000 + PORTS {
        writeln!(text, "      - {{ protocol: tcp, port: {port} }}").unwrap();
    }
    writeln!(text, "    backends: [{{ address: {} }}]", HOSTS[0][0]).unwrap();
    text
}

fn outgrow(world: &World, bpffs: Option<&std::path::Path>) {
    let first = world.start(bpffs, &config("ebpf", 1));
    let load = world.load(CONNECTIONS);
    let mut watch = Watch::default();
    watch.during(&first, || {
        load.rounds(2);
        first.configure(&grown()).unwrap();
        let in_force = || counts(&first).contains_key(&("many".into(), "tcp".into()));
        poll_until(DEADLINE, "in force", in_force).unwrap();
        load.rounds(2);
    });
    let log = first.log();
    assert!(log.contains("replaced by larger ones"), "the maps were large enough:\n{log}");
    if bpffs.is_none() {
        load.whole("grown", &first);
        world.adds_up(&first, FLOWS);
        return;
    }
    // What was pinned anew is what the next agent needs.
    first.kill().unwrap();
    load.rounds(2);
    let second = world.start(bpffs, &grown());
    load.rounds(2);
    assert!(second.log().contains("taking over pinned maps"), "{}", second.log());
    load.whole("grown, killed, taken over", &second);
    watch.look(&second);
}

#[test]
fn maps_are_replaced_by_larger_ones_under_load() {
    let world = world_or_skip!();
    outgrow(&world, None);
}

#[test]
fn larger_maps_are_pinned_as_the_smaller_were() {
    let world = world_or_skip!();
    let bpffs = bpffs();
    outgrow(&world, Some(bpffs.path()));
}
