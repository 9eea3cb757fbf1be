//! The agent is killed under load, and another one is started.

use std::{io::ErrorKind, path::Path, process::Stdio, time::Instant};

use proxy_testbed::{
    ProxyProcess, poll_until,
    traffic::{tcp::Client, udp::UdpClient},
};

use crate::support::*;

/// The TCP and UDP flows of the load.
const FLOWS: [u64; 2] = [CONNECTIONS as u64, 2];

#[test]
fn with_pins_a_killed_agent_loses_no_packet_no_flow_and_no_count() {
    let world = world_or_skip!();
    let bpffs = bpffs();
    let first = world.start(Some(bpffs.path()), &config(EVERY_PATH, 1));
    let load = world.load(CONNECTIONS);
    let mut watch = Watch::default();
    watch.during(&first, || load.rounds(3));
    first.kill().unwrap();
    load.rounds(3);
    let started = Instant::now();
    let second = world.start(Some(bpffs.path()), &config(EVERY_PATH, 1));
    println!("the second agent is ready after {:?}", started.elapsed());
    assert_eq!(path(&second), "ebpf");
    watch.during(&second, || load.rounds(3));
    second.kill().unwrap();
    let third = world.start(Some(bpffs.path()), &config(EVERY_PATH, 1));
    watch.during(&third, || load.rounds(3));
    load.whole("killed twice, pinned", &third);
    world.adds_up(&third, FLOWS);
}

#[test]
fn what_a_killed_agent_has_left_on_one_path_moves_to_the_next_agents_path() {
    let world = world_or_skip!();
    let bpffs = bpffs();
    let start = |paths| world.start(Some(bpffs.path()), &config(paths, 1));
    let first = start("nftables");
    let load = world.load(CONNECTIONS);
    let mut watch = Watch::default();
    watch.during(&first, || load.rounds(2));
    first.kill().unwrap();
    load.rounds(2);
    let second = start("ebpf");
    assert_eq!(path(&second), "ebpf");
    assert!(!world.topology.proxy.traces().unwrap().contains("sluice"), "nftables is gone");
    watch.during(&second, || load.rounds(2));
    second.kill().unwrap();
    load.rounds(2);
    let third = start("nftables");
    assert_eq!(path(&third), "nftables");
    assert!(!bpffs.path().join("sluice").exists(), "the pins are gone");
    load.whole("nftables, killed, eBPF, killed, nftables", &third);
}

#[test]
fn without_pins_tcp_is_reset_and_udp_goes_on_with_the_next_agent() {
    let world = world_or_skip!();
    let first = world.start(None, &config("ebpf", 1));
    let notes = first.status().unwrap()["data_path"]["notes"].to_string();
    assert!(notes.contains("traffic stops when the agent is killed"), "{notes}");
    let tailnet = &world.topology.tailnet;
    let mut clients =
        [0, 1].map(|family| Client::connect(tailnet, front(family, FRONT.0)).unwrap());
    let datagrams = [0, 1].map(|family| UdpClient::new(tailnet, front(family, FRONT.1)).unwrap());
    for family in [0, 1] {
        clients[family].echo(1000).unwrap();
        datagrams[family].echo(1, 100).unwrap();
    }
    first.kill().unwrap();
    // The kernel has no such connection and no such port: it says so at once.
    for (client, datagram) in clients.iter_mut().zip(&datagrams) {
        // Whether the reader or the writer is told of the reset, the other one meets the end.
        let error = client.echo(1000).unwrap_err();
        let gone = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::UnexpectedEof];
        assert!(gone.contains(&error.kind()), "{error}");
        let error = datagram.echo(1, 100).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
    let started = Instant::now();
    let second = world.start(None, &config("ebpf", 1));
    println!("without pins, the second agent is ready after {:?}", started.elapsed());
    for family in [0, 1] {
        assert_eq!(datagrams[family].echo(3, 100).unwrap(), 3, "the same socket goes on");
        Client::connect(tailnet, front(family, FRONT.0)).unwrap().echo(1000).unwrap();
    }
    assert_eq!(counts(&second)[&("web".into(), "tcp".into())][4], 2, "counts begin anew");
}

#[test]
fn r65_a_thousand_flows_outlive_the_agent() {
    let world = world_or_skip!();
    let bpffs = bpffs();
    let first = world.start(Some(bpffs.path()), &config("ebpf", 1));
    let connect = |number: usize| {
        Client::connect(&world.topology.tailnet, front(number % 2, FRONT.0))
            .unwrap_or_else(|error| panic!("{number}: {error}\n{}", first.log()))
    };
    let mut clients: Vec<Client> = (0..1000).map(connect).collect();
    let before = counts(&first);
    first.kill().unwrap();
    for client in &mut clients {
        client.echo(200).unwrap();
    }
    let second = world.start(Some(bpffs.path()), &config("ebpf", 1));
    for client in &mut clients {
        client.echo(200).unwrap();
    }
    let mut watch = Watch::default();
    watch.look(&second);
    world.adds_up(&second, [1000, 0]);
    let web = ("web".to_owned(), "tcp".to_owned());
    assert!(counts(&second)[&web][0] >= before[&web][0] + 2000);
    assert!(clients.iter().all(|client| client.info().is_ok_and(|info| info.retransmits == 0)));
}

/// Starts a second agent beside a live one; `arguments` make its interfaces differ.
fn beside(world: &World, config: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = world.topology.proxy.command(binary());
    command.args(["run", "--config"]).arg(config).args(arguments).stdin(Stdio::null());
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn a_second_agent_beside_a_live_one_is_refused_by_name_and_harms_nothing() {
    let world = world_or_skip!();
    let bpffs = bpffs();
    let directory = tempfile::tempdir().unwrap();
    let (rules, socket) = (directory.path().join("rules.yaml"), directory.path().join("socket"));
    std::fs::write(&rules, config(EVERY_PATH, 1)).unwrap();
    let first = world.start(Some(bpffs.path()), &config(EVERY_PATH, 1));
    let load = world.load(20);
    load.rounds(2);
    let pins = bpffs.path().to_str().unwrap();
    let others = ["--bpffs", pins, "--admin", "127.0.0.1:9003", "--socket"];
    let (code, said) = beside(&world, &rules, &[&others[..], &[socket.to_str().unwrap()]].concat());
    assert_eq!(code, Some(1), "{said}");
    let named = format!("another sluice-proxy (process {})", first.id());
    assert!(said.contains(&named) && said.contains("stop it first"), "{said}");
    load.rounds(2);
    load.whole("beside a second agent", &first);
    world.adds_up(&first, [20, 2]);
    first.kill().unwrap();
    // A dead one's name is free at once.
    let next: ProxyProcess<'_> = world.start(Some(bpffs.path()), &config(EVERY_PATH, 1));
    poll_until(proxy_testbed::DEADLINE, "ready", || path(&next) == "ebpf").unwrap();
}
