//! What an agent does with less than everything: each outcome is defined, serves traffic where it can, and says why.

use std::{os::unix::fs::chown, path::Path, process::Command};

use proxy_testbed::{
    Bpffs, Namespace, ProxyProcess,
    topology::{HOSTS, PROXY_CLUSTER},
    traffic::tcp::{Client, TcpServer},
};
use serde_json::Value;

use crate::support::*;

const NOBODY: &str = "65534";

/// Runs the proxy as nobody with exactly these capabilities (`+net_admin,+bpf`), after `prepare` in a mount namespace of
/// its own.
fn command(namespace: &Namespace, capabilities: &str, prepare: &str, bpffs: &Path) -> Command {
    let set = format!("-all{capabilities}");
    let script = format!(
        "{prepare}\nexec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --inh-caps={set} --ambient-caps={set} \
         --bounding-set={set} --no-new-privs {} \"$@\"",
        binary().display()
    );
    let mut command = namespace.command("unshare");
    command.args(["--mount", "sh", "-ec", &script, "sluice-proxy"]).env("SLUICE_BPFFS", bpffs);
    command
}

fn data_path(proxy: &ProxyProcess<'_>) -> Value {
    proxy.status().unwrap()["data_path"].clone()
}

/// Why a path was refused.
fn refusal(proxy: &ProxyProcess<'_>, kind: &str) -> String {
    let path = data_path(proxy);
    let refusals = path["refusals"].as_array().unwrap().clone();
    let found = refusals.iter().find(|refusal| refusal["kind"] == kind);
    found.unwrap_or_else(|| panic!("{kind} was not refused: {path}"))["message"].to_string()
}

/// Both families get through, and are counted.
#[track_caller]
fn serves(world: &World, proxy: &ProxyProcess<'_>, kind: &str) {
    assert_eq!(path(proxy), kind, "{}", proxy.log());
    for family in [0, 1] {
        let mut client = Client::connect(&world.topology.tailnet, front(family, FRONT.0))
            .unwrap_or_else(|error| panic!("{kind}: {error}\n{}", proxy.log()));
        client.echo(10_000).unwrap();
    }
    assert_eq!(counts(proxy)[&("web".into(), "tcp".into())][4], 2);
}

const NONE: &str = "/nonexistent";
const ENOUGH: &str = ",+net_admin,+bpf";

#[test]
fn net_admin_and_bpf_are_enough_for_ebpf_and_for_pins_on_an_own_bpffs() {
    let world = world_or_skip!();
    let bpffs = bpffs();
    chown(bpffs.path(), Some(65534), Some(65534)).unwrap();
    let start = || {
        let mut command = command(&world.topology.proxy, ENOUGH, "", bpffs.path());
        world.start_with(&mut command, &config(EVERY_PATH, 1))
    };
    let first = start();
    serves(&world, &first, "ebpf");
    let held = first.status().unwrap()["process"]["capabilities"].to_string();
    assert_eq!(held, r#"["CAP_BPF","CAP_NET_ADMIN"]"#);
    let mut client = Client::connect(&world.topology.tailnet, front(0, FRONT.0)).unwrap();
    first.kill().unwrap();
    client.echo(1000).unwrap();
    let second = start();
    client.echo(1000).unwrap();
    assert_eq!(counts(&second)[&("web".into(), "tcp".into())][4], 3, "{}", second.log());
}

#[test]
fn net_admin_and_bpf_switch_paths_under_load() {
    let world = world_or_skip!();
    let mut command = command(&world.topology.proxy, ENOUGH, "", Path::new(NONE));
    let proxy = world.start_with(&mut command, &config(EVERY_PATH, 1));
    let load = world.load(20);
    for path in ["nftables", "ebpf"] {
        load.rounds(2);
        force(&proxy, path);
    }
    load.rounds(2);
    load.whole("not root", &proxy);
    world.adds_up(&proxy, [20, 2]);
}

#[test]
fn r69_without_bpf_nftables_serves_and_says_why() {
    let world = world_or_skip!();
    let mut command = command(&world.topology.proxy, ",+net_admin", "", Path::new(NONE));
    let proxy = world.start_with(&mut command, &config(EVERY_PATH, 1));
    serves(&world, &proxy, "nftables");
    let why = refusal(&proxy, "ebpf");
    assert!(why.contains("CAP_BPF") && why.contains("securityContext"), "{why}");
}

#[test]
fn without_any_capability_user_space_serves_and_says_why() {
    let world = world_or_skip!();
    let mut command = command(&world.topology.proxy, "", "", Path::new(NONE));
    let proxy = world.start_with(&mut command, &config(EVERY_PATH, 1));
    serves(&world, &proxy, "userspace");
    for kind in ["ebpf", "nftables"] {
        let why = refusal(&proxy, kind);
        assert!(why.contains("CAP_NET_ADMIN") && why.contains("securityContext"), "{why}");
    }
}

#[test]
fn settings_that_cannot_be_written_are_named() {
    let world = world_or_skip!();
    let read_only = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys";
    let mut command = command(&world.topology.proxy, ENOUGH, read_only, Path::new(NONE));
    let proxy = world.start_with(&mut command, &config("nftables, ebpf", 1));
    // What nftables needs, eBPF does without.
    serves(&world, &proxy, "ebpf");
    let why = refusal(&proxy, "nftables");
    assert!(why.contains("net/ipv4/conf/") && why.contains("forwarding"), "{why}");
}

#[test]
fn r69_without_btf_ebpf_serves() {
    let world = world_or_skip!();
    let hide = "mount -t tmpfs none /sys/kernel/btf && test ! -e /sys/kernel/btf/vmlinux";
    let mut command = command(&world.topology.proxy, ENOUGH, hide, Path::new(NONE));
    let proxy = world.start_with(&mut command, &config(EVERY_PATH, 1));
    serves(&world, &proxy, "ebpf");
}

#[test]
fn r69_without_a_writable_bpffs_ebpf_serves_unpinned_and_says_so() {
    let world = world_or_skip!();
    let read_only = Bpffs::new(nix::mount::MsFlags::MS_RDONLY).unwrap();
    let no_bpffs = tempfile::tempdir().unwrap();
    for directory in [read_only.path(), no_bpffs.path(), Path::new(NONE)] {
        let proxy = world.start(Some(directory), &config(EVERY_PATH, 1));
        serves(&world, &proxy, "ebpf");
        let notes = data_path(&proxy)["notes"].to_string();
        let said =
            notes.contains("nothing is pinned") && notes.contains(directory.to_str().unwrap());
        assert!(said, "{notes}");
    }
}

/// The proxy makes no TUN itself: where the device cgroup has denied it to the tailnet's daemon, its device is missing.
#[test]
fn r55_without_a_tun_user_space_serves_what_it_can_and_the_device_is_named() {
    if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
        eprintln!("skipped: SKIP_KERNEL_TESTS=1");
        return;
    }
    let (here, cluster) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    here.link("eth0", &cluster, "eth0", 1500).unwrap();
    here.ip([format!("address add {}/24 dev eth0", PROXY_CLUSTER[0]).as_str()]).unwrap();
    cluster.ip([format!("address add {}/24 dev eth0", HOSTS[0][0]).as_str()]).unwrap();
    let _server = TcpServer::new(&cluster, &format!("{}:8080", HOSTS[0][0])).unwrap();
    let rules = format!(
        "apiVersion: sluice.dev/v1\nkind: ProxyRules\nsettings:\n  interfaces: {{ tailnet: [tailscale0], cluster: \
         [eth0] }}\n  drainSeconds: 1\ningress:\n  - name: web\n    frontends: [{}]\n    ports: [{{ protocol: tcp, \
         port: 8000, targetPort: 8080 }}]\n    backends: [{{ address: {} }}]\n",
        PROXY_CLUSTER[0], HOSTS[0][0]
    );
    let proxy = ProxyProcess::start(&here, &binary(), &rules).unwrap();
    assert_eq!(path(&proxy), "userspace");
    for kind in ["ebpf", "nftables"] {
        let why = refusal(&proxy, kind);
        assert!(why.contains("interface tailscale0 does not exist"), "{why}");
    }
    let to = (PROXY_CLUSTER[0].parse::<std::net::IpAddr>().unwrap(), 8000).into();
    Client::connect(&cluster, to).unwrap().echo(1000).unwrap();
}
