//! A tailscaled that has not logged in, and one that is killed.

use std::time::Duration;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use proxy::localapi::{
    AppConnector, ETag, Error, NetfilterMode, PrefsChange, ServeConfig, State, Watch,
};
use proxy_testbed::{Tailnet, poll_until};

use crate::{PATIENCE, everything, node, skipped, until};

#[tokio::test(flavor = "multi_thread")]
async fn before_the_log_in_everything_is_answered() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (_node, api) = node(&tailnet, "fresh");
    for peers in [false, true] {
        let status = api.status(peers).await.unwrap();
        assert_eq!((status.state(), status.tun), (Some(State::NeedsLogin), false));
        assert!(status.version.starts_with("1."), "{}", status.version);
        assert!(status.peers.is_empty() && status.tailscale_ips.is_empty());
    }
    let prefs = api.prefs().await.unwrap();
    assert!(prefs.logged_out && !prefs.want_running && prefs.advertise_routes.is_empty());
    assert!(api.cert_domains().await.unwrap().is_empty());
    assert!(!api.reload_config().await.unwrap(), "there is no configuration file");
    let metrics = api.user_metrics().await.unwrap();
    assert!(metrics.contains("# TYPE tailscaled_inbound_packets_total counter"), "{metrics}");
    for address in ["100.64.0.9:80", "[fd7a:115c:a1e0::9]:80"] {
        assert_eq!(api.whois(address.parse().unwrap()).await.unwrap(), None);
    }
    // What it cannot do yet, or not like this, it says.
    let error = api.dns_config().await.unwrap_err();
    assert!(matches!(error, Error::Status { code: 503, .. }), "{error}");
    let error = api.set_udp_gro_forwarding().await.unwrap_err();
    assert!(matches!(&error, Error::Refused { text, .. } if text.contains("userspace")), "{error}");
    let (config, tag) = api.serve_config().await.unwrap();
    assert_eq!(config, ServeConfig::default());
    assert_ne!(tag, ETag::default(), "also nothing has a tag");
    let error = api.set_serve_config(&config, Some(&tag)).await.unwrap_err();
    assert!(matches!(&error, Error::Status { text, .. } if text.contains("netMap")), "{error}");
    let time = Duration::from_secs(5);
    let error = api.cert_pair("a.tailnet.ts.net", Duration::ZERO, time).await.unwrap_err();
    assert!(matches!(error, Error::Status { code: 500, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_preferences_is_in_force_and_on_the_bus() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (_node, api) = node(&tailnet, "prefs");
    let mut bus = api.watch(everything()).await.unwrap();
    let first = bus.next().await.unwrap().unwrap();
    assert_eq!(first.state, Some(State::NeedsLogin));
    assert_eq!(first.prefs, Some(api.prefs().await.unwrap()));
    assert_eq!(first.initial_status.unwrap().state(), Some(State::NeedsLogin));
    assert!(first.session_id.is_some() && first.health.is_some());

    let change = PrefsChange {
        hostname: Some("other".to_owned()),
        route_all: Some(true),
        corp_dns: Some(false),
        exit_node_allow_lan_access: Some(true),
        advertise_routes: Some(vec![
            "192.0.2.0/24".parse().unwrap(),
            "2001:db8:1::/48".parse().unwrap(),
        ]),
        advertise_services: Some(vec!["svc:a".to_owned()]),
        advertise_tags: Some(vec!["tag:a".to_owned()]),
        app_connector: Some(AppConnector { advertise: true }),
        shields_up: Some(true),
        no_snat: Some(true),
        no_stateful_filtering: Some(false),
        netfilter_mode: Some(NetfilterMode::NoDivert),
        netfilter_kind: Some("nftables".to_owned()),
        ..PrefsChange::default()
    };
    let before = api.prefs().await.unwrap();
    let after = api.edit_prefs(&change).await.unwrap();
    assert_eq!(after.hostname, "other");
    assert!(after.route_all && !after.corp_dns && after.exit_node_allow_lan_access);
    assert_eq!(Some(&after.advertise_routes), change.advertise_routes.as_ref());
    assert_eq!(after.advertise_services, ["svc:a"]);
    assert_eq!(after.advertise_tags, ["tag:a"]);
    assert!(after.app_connector.advertise && after.shields_up && after.no_snat);
    assert_eq!(after.no_stateful_filtering, Some(false));
    assert_eq!(after.netfilter_mode, NetfilterMode::NoDivert);
    assert_eq!(after.netfilter_kind, "nftables");
    assert_eq!((after.want_running, after.run_ssh), (before.want_running, before.run_ssh));
    let seen = until(&mut bus, "the change", |notify| notify.prefs.is_some()).await;
    assert_eq!(seen.prefs, Some(after));

    // Empty is not the same as unsaid.
    let nothing = PrefsChange {
        advertise_routes: Some(Vec::new()),
        advertise_services: Some(Vec::new()),
        ..PrefsChange::default()
    };
    let after = api.edit_prefs(&nothing).await.unwrap();
    assert!(after.advertise_routes.is_empty() && after.advertise_services.is_empty());
    assert_eq!(
        (after.hostname.as_str(), &*after.advertise_tags),
        ("other", &["tag:a".to_owned()][..])
    );
}

/// The states of a process's threads, as /proc has them.
fn threads(process: Pid) -> impl Iterator<Item = String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        Some(stat.rsplit_once(") ")?.1.split(' ').next()?.to_owned())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_tailscaled_keeps_nobody_waiting_and_goes_on_where_it_was() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (node, api) = node(&tailnet, "stopped");
    let mut bus = api.watch(Watch::INITIAL_STATE).await.unwrap();
    bus.next().await.unwrap();
    let process = Pid::from_raw(node.id().unwrap() as i32);
    kill(process, Signal::SIGSTOP).unwrap();
    // Each thread stops when it next runs; until then it may still answer.
    poll_until(PATIENCE, "all threads stop", || threads(process).all(|state| state == "T"))
        .unwrap();
    let hasty = api.clone().with_patience(Duration::from_millis(100));
    let error = hasty.prefs().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    kill(process, Signal::SIGCONT).unwrap();
    let change = PrefsChange { hostname: Some("again".to_owned()), ..PrefsChange::default() };
    api.edit_prefs(&change).await.unwrap();
    let seen = until(&mut bus, "the change", |notify| notify.prefs.is_some()).await;
    assert_eq!(seen.prefs.unwrap().hostname, "again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_tailscaled_ends_the_watch_and_a_new_one_is_reached_by_the_same_client() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (node, api) = node(&tailnet, "killed");
    let mut bus = api.watch(Watch::INITIAL_STATE).await.unwrap();
    assert!(bus.next().await.unwrap().is_some());
    node.kill().unwrap();
    // What was under way may still come.
    let end = async { while bus.next().await.unwrap().is_some() {} };
    tokio::time::timeout(PATIENCE, end).await.expect("the watch ends");
    for error in [api.prefs().await.map(drop), api.watch(Watch::INITIAL_STATE).await.map(drop)] {
        assert!(matches!(error, Err(Error::Absent { .. })), "{error:?}");
    }
    node.launch().unwrap();
    let mut bus = api.watch(Watch::INITIAL_STATE).await.unwrap();
    assert!(bus.next().await.unwrap().unwrap().state.is_some());
    api.prefs().await.unwrap();
}
