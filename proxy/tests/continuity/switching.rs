//! The path changes under load.

use proxy_testbed::traffic::tcp::Client;

use crate::support::*;

/// Flows of the load: TCP, UDP.
const FLOWS: [u64; 2] = [CONNECTIONS as u64, 2];

#[test]
fn ebpf_nftables_ebpf_under_load_loses_nothing_and_counts_all() {
    let world = world_or_skip!();
    let bpffs = bpffs();
    let proxy = world.start(Some(bpffs.path()), &config(EVERY_PATH, 1));
    let load = world.load(CONNECTIONS);
    let mut watch = Watch::default();
    watch.during(&proxy, || {
        load.rounds(2);
        for path in ["nftables", "ebpf", "nftables", "ebpf"] {
            force(&proxy, path);
            load.rounds(2);
        }
    });
    load.whole("ebpf, nftables, ebpf", &proxy);
    world.adds_up(&proxy, FLOWS);
}

#[test]
fn flows_of_ebpf_go_on_beside_user_space_and_are_counted_once() {
    let world = world_or_skip!();
    let bpffs = bpffs();
    let proxy = world.start(Some(bpffs.path()), &config(EVERY_PATH, 1));
    let load = world.load(CONNECTIONS);
    let mut watch = Watch::default();
    watch.during(&proxy, || {
        load.rounds(2);
        for path in ["userspace", "ebpf", "userspace", "nftables", "ebpf"] {
            force(&proxy, path);
            load.rounds(2);
        }
    });
    load.whole("ebpf, user space, nftables, ebpf", &proxy);
    world.adds_up(&proxy, FLOWS);
}

#[test]
fn connections_of_user_space_live_on_beside_every_path() {
    let world = world_or_skip!();
    let proxy = world.start(None, &config(EVERY_PATH, 1));
    for path in ["ebpf", "nftables"] {
        force(&proxy, "userspace");
        let mut clients: Vec<Client> = (0..20)
            .map(|number| {
                Client::connect(&world.topology.tailnet, front(number % 2, FRONT.0)).unwrap()
            })
            .collect();
        let mut watch = Watch::default();
        watch.during(&proxy, || force(&proxy, path));
        for client in &mut clients {
            client.echo(10_000).unwrap_or_else(|error| panic!("{path}: {error}\n{}", proxy.log()));
        }
        watch.look(&proxy);
    }
}

/// Short flows begin at every moment of a switch, each with several packets there and back.
#[test]
fn flows_that_begin_while_the_path_changes_keep_their_backend() {
    let world = world_or_skip!();
    let bpffs = bpffs();
    let proxy = world.start(Some(bpffs.path()), &config(EVERY_PATH, 1));
    let over = std::sync::atomic::AtomicBool::new(false);
    let begun: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let (world, over) = (&world, &over);
                scope.spawn(move || {
                    let mut begun = 0;
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        let to = front(number % 2, FRONT.0);
                        let mut client = Client::connect(&world.topology.tailnet, to)?;
                        for _ in 0..3 {
                            client.echo(100)?;
                        }
                        client.close()?;
                        begun += 1;
                    }
                    Ok::<_, std::io::Error>(begun)
                })
            })
            .collect();
        for path in ["nftables", "ebpf"].into_iter().cycle().take(8) {
            force(&proxy, path);
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        let flows = |client: std::thread::ScopedJoinHandle<'_, _>| client.join().unwrap();
        clients.into_iter().map(|client| flows(client).unwrap()).sum()
    });
    println!("{begun} connections began and ended during 8 switches");
    assert!(begun > 8, "{begun}");
    world.adds_up(&proxy, [begun as u64, 0]);
}
