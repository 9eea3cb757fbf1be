use proptest::{prelude::*, sample::subsequence};
use serde_json::json;

use super::*;
use crate::localapi::parse;

fn notify(value: &serde_json::Value) -> Notify {
    parse::notify(value.to_string().as_bytes()).unwrap()
}

fn node(id: i64, name: &str, addresses: &[&str], more: &[&str]) -> serde_json::Value {
    let whole = |at: &&str| format!("{at}/{}", if at.contains(':') { 128 } else { 32 });
    let own: Vec<_> = addresses.iter().map(whole).collect();
    let allowed: Vec<_> = own.iter().cloned().chain(more.iter().map(ToString::to_string)).collect();
    json!({"ID": id, "StableID": format!("n{id}"), "Name": format!("{name}."), "Addresses": own,
           "AllowedIPs": allowed})
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A view with this node and two peers.
fn view() -> View {
    let mut view = View::default();
    let changed = view.apply(&notify(&json!({
        "SelfChange": node(1, "pod.tailnet.ts.net", &["100.64.0.1", "fd7a::1"], &[]),
        "PeersChanged": [
            node(2, "DB.tailnet.ts.net", &["100.64.0.2", "fd7a::2"], &["10.0.0.0/8"]),
            node(3, "web.tailnet.ts.net", &["100.64.0.3"],
                 &["100.99.0.9/32", "fd7a:115c:a1e0:b1a:0:7:a01:200/120"]),
        ],
    })));
    assert_eq!(changed, Changed { rules: true, dns: true });
    view
}

#[test]
fn a_devices_name_is_resolved_in_any_case_with_and_without_the_final_dot() {
    let view = view();
    for name in ["db.tailnet.ts.net", "DB.Tailnet.ts.net."] {
        assert_eq!(view.resolve(name).unwrap(), ips(&["100.64.0.2", "fd7a::2"]));
    }
    assert_eq!(view.resolve("db").unwrap_err(), Unresolved::NoSuchName("db".into()));
}

#[test]
fn a_record_is_resolved_while_a_peer_takes_packets_for_it() {
    let mut view = view();
    let record = |name: &str, value: &str| crate::localapi::DnsRecord {
        name: name.into(),
        kind: String::new(),
        value: value.into(),
    };
    let dns = DnsConfig {
        extra_records: vec![
            record("svc.tailnet.ts.net", "100.99.0.9"),
            record("svc.tailnet.ts.net.", "100.99.0.9"),
            record("lan.example.com", "10.1.2.3"),
            record("else.example.com", "192.0.2.1"),
        ],
        ..DnsConfig::default()
    };
    assert!(view.set_dns(&dns));
    assert!(!view.set_dns(&dns), "nothing new");
    assert_eq!(view.resolve("svc.tailnet.ts.net").unwrap(), ips(&["100.99.0.9"]));
    assert_eq!(view.resolve("lan.example.com").unwrap(), ips(&["10.1.2.3"]));
    let nobody = Unresolved::NotServed("else.example.com".into());
    assert_eq!(view.resolve("else.example.com").unwrap_err(), nobody);
    view.apply(&notify(&json!({"PeersRemoved": [3]})));
    assert!(view.resolve("svc.tailnet.ts.net").is_err());
}

#[test]
fn a_4via6_name_stands_for_an_address_that_a_peer_must_route() {
    let view = view();
    let stand_in = ips(&["fd7a:115c:a1e0:b1a:0:7:a01:203"]);
    for name in ["10-1-2-3-via-7.tailnet.ts.net.", "10-1-2-3-via-7", "10-1-2-3-via-0x7"] {
        assert_eq!(view.resolve(name).unwrap(), stand_in);
    }
    for name in ["10-1-2-3-via-8", "10-1-3-3-via-7.tailnet.ts.net"] {
        assert!(matches!(view.resolve(name).unwrap_err(), Unresolved::NoRouter(..)), "{name}");
    }
    for name in ["10-1-2-via-7", "via-7", "10-1-2-3-via-", "1-2-3-4-via-4294967296"] {
        assert!(matches!(view.resolve(name).unwrap_err(), Unresolved::NoSuchName(_)), "{name}");
    }
}

/// Control sends a whole map without saying who is missing: whoever is not in it is gone.
#[test]
fn a_whole_map_removes_those_that_are_not_in_it() {
    let mut view = view();
    view.apply(&notify(&json!({
        "SelfChange": node(1, "pod.tailnet.ts.net", &["100.64.0.1"], &[]),
        "PeersChanged": [node(3, "web.tailnet.ts.net", &["100.64.0.3"], &[])],
    })));
    assert!(view.resolve("db.tailnet.ts.net").is_err());
    assert!(view.resolve("web.tailnet.ts.net").is_ok());
    assert_eq!(
        view.assigned().collect::<BTreeSet<_>>(),
        ips(&["100.64.0.1", "100.64.0.3"]).into_iter().collect()
    );
}

/// While tailscaled starts it knows no peers; what was known stays the best guess until it runs.
#[test]
fn a_tailscaled_that_starts_takes_nothing_away() {
    let mut view = view();
    view.apply(&notify(
        &json!({"InitialStatus": {"BackendState": "Starting", "Peer": null, "Self": null}}),
    ));
    assert!(view.resolve("db.tailnet.ts.net").is_ok());
    assert!(view.own.is_some());
    view.apply(&notify(&json!({"InitialStatus": {"BackendState": "Running", "Peer": {}}})));
    assert!(view.resolve("db.tailnet.ts.net").is_err());
}

#[test]
fn the_services_of_this_host_are_read_from_its_capabilities() {
    let mut own = node(1, "pod.tailnet.ts.net", &["100.64.0.1"], &[]);
    own["CapMap"] = json!({"service-host": [{"svc:web": ["fd7a::9", "100.99.0.9"]}]});
    let mut view = View::default();
    view.apply(&notify(&json!({"SelfChange": own})));
    let hosted = &view.own.as_ref().unwrap().hosted;
    assert_eq!(hosted["svc:web"], ips(&["100.99.0.9", "fd7a::9"]));
}

#[test]
fn a_name_with_a_number_that_was_not_asked_for_is_another_devices() {
    let called = |asked: &str, name: &str| {
        let mut view = View::default();
        let own = node(1, name, &["100.64.0.1"], &[]);
        view.apply(&notify(&json!({"SelfChange": own, "Prefs": {"Hostname": asked}})));
        view.other_name().map(str::to_owned)
    };
    assert_eq!(called("App", "app-1.ts.net"), Some("app-1".to_owned()));
    for (asked, name) in [
        ("app", "app.ts.net"),
        ("app-1", "app-1.ts.net"),
        ("app", "app-x.ts.net"),
        ("", "a-1.ts.net"),
    ] {
        assert_eq!(called(asked, name), None, "{asked} {name}");
    }
}

proptest! {
    /// R23: after any sequence of changes the view is that of the peers that are left, as if it had never known others.
    #[test]
    fn any_sequence_of_changes_leaves_what_the_last_of_each_says(
        steps in prop::collection::vec((1_i64..6, prop::option::of(0_u8..4), subsequence(vec!["10.0.0.0/8", "100.99.0.9/32", "fd7a:2::/64"], 0..3)), 0..40)
    ) {
        let mut view = View::default();
        let mut left = BTreeMap::new();
        for (id, address, routes) in steps {
            if let Some(last) = address {
                let peer = node(id, &format!("peer{last}.ts.net"), &[&format!("100.64.{id}.{last}")], &routes);
                view.apply(&notify(&json!({"PeersChanged": [peer]})));
                left.insert(id, peer);
            } else {
                view.apply(&notify(&json!({"PeersRemoved": [id]})));
                left.remove(&id);
            }
        }
        let mut fresh = View::default();
        fresh.apply(&notify(&json!({"PeersChanged": left.values().collect::<Vec<_>>()})));
        prop_assert_eq!(&view.peers, &fresh.peers);
        prop_assert_eq!(&view.by_name, &fresh.by_name);
        prop_assert_eq!(&view.allowed, &fresh.allowed);
    }
}
