//! Tables that change, processes that end, and what is left behind.

use proxy::data_path::{
    DataPath, Stance,
    ebpf::{EbpfOptions, EbpfPath},
    nftables::NftPath,
};
use proxy_rules::{Protocol, Snat};

use crate::{carry::apply, support::*};

#[test]
fn a_flow_survives_its_tables_and_is_reset_when_its_backend_goes() {
    let rig = rig_or_skip!();
    echo_server(&rig.backend, "198.51.100.2:8080");
    echo_server(&rig.backend, "198.51.100.3:8080");
    let web = |to: &[&str]| {
        table(vec![rule(
            "web",
            TAILNET,
            Protocol::Tcp,
            "100.64.0.1/32",
            80,
            dnat(to, Snat::Masquerade),
        )])
    };
    let mut path = apply(&rig, &web(&["198.51.100.2:8080"]));
    let (mut stream, _) = connect(&rig.client, "100.64.0.1:80").unwrap();
    echo(&mut stream, b"one").unwrap();
    rig.proxy.enter(|| path.apply(&web(&["198.51.100.2:8080", "198.51.100.3:8080"])).unwrap());
    echo(&mut stream, b"two").unwrap();
    let before = count(&path.counters().unwrap(), "web");
    rig.proxy.enter(|| path.apply(&web(&["198.51.100.3:8080"])).unwrap());
    let reset = echo(&mut stream, b"three").unwrap_err();
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    let (mut stream, _) = connect(&rig.client, "100.64.0.1:80").unwrap();
    echo(&mut stream, b"four").unwrap();
    let after = count(&path.counters().unwrap(), "web");
    assert!(after.original_packets > before.original_packets && after.flows == 2, "{after:?}");
}

#[test]
fn live_connections_move_to_nftables_and_back() {
    let rig = rig_or_skip!();
    echo_server(&rig.backend, "198.51.100.2:8080");
    let web = table(vec![rule(
        "web",
        TAILNET,
        Protocol::Tcp,
        "100.64.0.1/32",
        80,
        dnat(&["198.51.100.2:8080"], Snat::Masquerade),
    )]);
    let mut ebpf = apply(&rig, &web);
    let (mut stream, _) = connect(&rig.client, "100.64.0.1:80").unwrap();
    echo(&mut stream, b"on ebpf").unwrap();
    let mut nft = NftPath::new();
    rig.proxy.enter(|| {
        nft.apply(&web).unwrap();
        ebpf.set_stance(Stance::KnownFlows).unwrap();
        assert_eq!(nft.adopt(&ebpf.flows().unwrap()).unwrap(), 1);
        ebpf.remove().unwrap();
    });
    echo(&mut stream, b"on nftables").unwrap();
    rig.proxy.enter(|| {
        ebpf.set_stance(Stance::KnownFlows).unwrap();
        ebpf.apply(&web).unwrap();
        assert_eq!(ebpf.adopt(&nft.flows().unwrap()).unwrap(), 1);
        ebpf.set_stance(Stance::All).unwrap();
        nft.remove().unwrap();
    });
    echo(&mut stream, b"on ebpf again").unwrap();
}

#[test]
fn a_new_agent_takes_over_pinned_maps_and_loses_no_flow() {
    let rig = rig_or_skip!();
    echo_server(&rig.backend, "198.51.100.2:8080");
    let bpffs = tempfile::tempdir().unwrap();
    nix::mount::mount(
        Some("bpf"),
        bpffs.path(),
        Some("bpf"),
        nix::mount::MsFlags::empty(),
        None::<&str>,
    )
    .unwrap();
    let options = EbpfOptions { bpffs: Some(bpffs.path().to_owned()), ..EbpfOptions::default() };
    let web = table(vec![rule(
        "web",
        TAILNET,
        Protocol::Tcp,
        "100.64.0.1/32",
        80,
        dnat(&["198.51.100.2:8080"], Snat::Masquerade),
    )]);
    let mut first = EbpfPath::new(options.clone());
    rig.proxy.enter(|| first.apply(&web).unwrap());
    let (mut stream, _) = connect(&rig.client, "100.64.0.1:80").unwrap();
    echo(&mut stream, b"first").unwrap();
    let counted = count(&first.counters().unwrap(), "web");
    drop(first);
    echo(&mut stream, b"nobody").unwrap();
    let mut second = EbpfPath::new(options);
    rig.proxy.enter(|| second.apply(&web).unwrap());
    echo(&mut stream, b"second").unwrap();
    let after = count(&second.counters().unwrap(), "web");
    assert!(
        after.flows == 1 && after.original_packets >= counted.original_packets + 4,
        "{after:?}"
    );
    rig.proxy.enter(|| second.remove().unwrap());
    let left = bpffs.path().join("sluice").exists();
    nix::mount::umount(bpffs.path()).unwrap();
    assert!(!left, "pins are left behind");
}

#[test]
fn removal_leaves_no_trace() {
    let rig = rig_or_skip!();
    let qdiscs = || rig.proxy.exec("ip", &["-d", "link", "show"]);
    let before = (qdiscs(), rig.proxy.traces());
    let web = table(vec![rule(
        "web",
        TAILNET,
        Protocol::Tcp,
        "100.64.0.1/32",
        80,
        dnat(&["198.51.100.2:8080"], Snat::Masquerade),
    )]);
    let mut path = apply(&rig, &web);
    rig.proxy.enter(|| {
        path.maintain().unwrap();
        path.remove().unwrap();
    });
    assert_eq!((qdiscs(), rig.proxy.traces()), before);
}
