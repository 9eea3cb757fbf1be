use std::net::IpAddr;

use super::*;
use crate::localapi::{DnsRecord, NetfilterMode, NodeId, State};

const NODE: &str = r#"{"ID":7,"StableID":"n7","Name":"a.tailnet.ts.net.","User":1,"Key":"nodekey:aa","Addresses":["100.64.0.7/32","fd7a:115c:a1e0::7/128"]"#;

fn node(rest: &str) -> crate::localapi::Node {
    let line = format!(r#"{{"Version":"1","SelfChange":{NODE}{rest}}}}}"#);
    notify(line.as_bytes()).unwrap().self_change.unwrap()
}

#[test]
fn routes_that_are_left_out_are_the_addresses() {
    for same in ["", r#","AllowedIPs":null"#] {
        let node = node(same);
        assert_eq!(node.allowed_ips, node.addresses);
        assert_eq!(
            node.ips().collect::<Vec<_>>(),
            ["100.64.0.7", "fd7a:115c:a1e0::7"].map(|a| a.parse::<IpAddr>().unwrap())
        );
    }
    assert!(node(r#","AllowedIPs":[]"#).allowed_ips.is_empty(), "none is not the same as unsaid");
    assert_eq!(
        node(r#","AllowedIPs":["192.0.2.0/24"]"#).allowed_ips,
        ["192.0.2.0/24".parse().unwrap()]
    );
}

#[test]
fn a_node_says_what_it_may_and_when_it_ends() {
    let node = node(
        r#","CapMap":{"service-host":[{"svc:a":["100.100.1.1"]}],"https":null},"Capabilities":["old","https"],"KeyExpiry":"0001-01-01T00:00:00Z","Online":false,"SelfNodeV4MasqAddrForThisPeer":"100.99.0.1","Hostinfo":{"Hostname":"h"},"Tags":["tag:a"],"Expired":true"#,
    );
    assert!(
        node.has_capability("https") && node.has_capability("old") && !node.has_capability("x")
    );
    assert_eq!(node.cap_map["service-host"][0]["svc:a"][0], "100.100.1.1");
    assert_eq!((node.key_expiry, node.online, node.expired), (None, Some(false), true));
    assert_eq!(node.masquerade4, Some("100.99.0.1".parse().unwrap()));
    assert_eq!((node.host_name.as_str(), node.tags), ("h", vec!["tag:a".to_owned()]));
}

#[test]
fn services_that_a_node_may_host_have_addresses() {
    let read = |caps: &str| services(&node(&format!(r#","CapMap":{caps}"#)).cap_map);
    let all = read(r#"{"service-host":[{"svc:a":["100.100.1.1","fd7a::1"],"svc:b":null},{"svc:b":["100.100.1.2"]}]}"#).unwrap();
    assert_eq!(all["svc:a"].len(), 2);
    assert_eq!(all["svc:b"], ["100.100.1.2".parse::<IpAddr>().unwrap()]);
    assert!(read("{}").unwrap().is_empty() && read(r#"{"service-host":null}"#).unwrap().is_empty());
    let error = read(r#"{"service-host":[{},{"svc:a":["100.100.1.1","x"]}]}"#).unwrap_err();
    assert_eq!(error.path, "CapMap.service-host[1].svc:a[1]");
}

#[test]
fn a_message_says_what_changed() {
    let line = br#"{"Version":"1.102","State":6,"LoginFinished":{},"PeersChanged":[{"ID":3,"Name":"b.","Addresses":null},null],
        "PeersRemoved":[4,5],"Health":{"Warnings":{"login-state":{"Severity":"medium","Title":"t","Text":"x"},"gone":null}},
        "BrowseToURL":"","NetMap":{"huge":[1,2]},"Engine":null,"Prefs":null,"DriveShares":null}"#;
    let notify = notify(line).unwrap();
    assert_eq!((notify.state, notify.login_finished), (Some(State::Running), true));
    assert_eq!(notify.peers_changed.iter().map(|node| node.id).collect::<Vec<_>>(), [NodeId(3)]);
    assert_eq!(notify.peers_removed, [NodeId(4), NodeId(5)]);
    let health = notify.health.unwrap();
    assert_eq!(health.warnings.keys().collect::<Vec<_>>(), ["login-state"]);
    assert_eq!((notify.browse_to_url, notify.prefs, notify.error), (None, None, None));
}

#[test]
fn states_have_numbers_on_the_bus_and_names_in_a_status() {
    for number in 0..=7 {
        let state = notify(format!(r#"{{"State":{number}}}"#).as_bytes()).unwrap().state.unwrap();
        match state {
            State::Unknown(unknown) => assert_eq!(unknown, 7),
            known => assert_eq!(State::named(&known.to_string()), Some(known)),
        }
    }
    assert_eq!(State::named("Flying"), None);
    let status = status(br#"{"BackendState":"NeedsLogin","Self":null,"Peer":null}"#).unwrap();
    assert_eq!(status.state(), Some(State::NeedsLogin));
}

#[test]
fn preferences_are_read_without_the_keys_beside_them() {
    let prefs = prefs(
        br#"{"Hostname":"h","AdvertiseRoutes":null,"ExitNodeIP":"","NetfilterMode":2,"NoStatefulFiltering":null,
        "AppConnector":{"Advertise":true},"Config":{"PrivateNodeKey":"privkey:5ec2e7"}}"#,
    )
    .unwrap();
    assert_eq!((prefs.netfilter_mode, prefs.app_connector.advertise), (NetfilterMode::On, true));
    assert_eq!((prefs.exit_node_address(), prefs.no_stateful_filtering), (None, None));
    assert!(!format!("{prefs:?}").contains("5ec2e7"));
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let place = |bytes: &[u8]| notify(bytes).unwrap_err().path;
    assert_eq!(
        place(br#"{"PeersChanged":[{},{"Addresses":["100.64.0.1/33"]}]}"#),
        "PeersChanged[1].Addresses[0]"
    );
    assert_eq!(
        place(br#"{"InitialStatus":{"Peer":{"nodekey:a":{"TailscaleIPs":["x"]}}}}"#),
        "InitialStatus.Peer.nodekey:a.TailscaleIPs[0]"
    );
    assert_eq!(place(br#"{"State":1.5}"#), "State");
    assert_eq!(place(b"{} {}"), ".");
    assert_eq!(place(b"\xff"), ".");
    assert!(notify(b"").is_err());
}

#[test]
fn no_depth_and_no_length_is_too_much() {
    let deep = format!(r#"{{"X":{}"#, "[".repeat(1 << 20));
    assert!(notify(deep.as_bytes()).is_err());
    let long = format!(r#"{{"State":"{}"}}"#, "a".repeat(1 << 20));
    let error = notify(long.as_bytes()).unwrap_err();
    assert!(error.to_string().len() < 2 * MAX_TEXT, "{}", error.to_string().len());
}

#[test]
fn nothing_served_is_an_empty_configuration() {
    assert_eq!(serve_config(b"null"), Ok(ServeConfig::default()));
    assert_eq!(cert_domains(b"null\n"), Ok(Vec::new()));
    assert_eq!(cert_domains(br#"["a.ts.net"]"#), Ok(vec!["a.ts.net".to_owned()]));
    assert!(dns_config(b"{}").unwrap().extra_records.is_empty());
}

#[test]
fn extra_records_hold_addresses_or_something_else() {
    let config = dns_config(
        br#"{"Proxied":true,"ExtraRecords":[{"Name":"a.","Value":"100.64.0.1"},{"Name":"t.","Type":"TXT","Value":"100.64.0.2"}]}"#,
    )
    .unwrap();
    let addresses: Vec<_> = config.extra_records.iter().map(DnsRecord::address).collect();
    assert_eq!(addresses, [Some("100.64.0.1".parse().unwrap()), None]);
}

#[test]
fn a_certificate_comes_behind_its_key() {
    let key = "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n";
    let chain = "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nCCCC\n-----END CERTIFICATE-----\n";
    let pair = cert_pair(format!("{key}{chain}").as_bytes()).unwrap();
    assert_eq!((pair.key.as_str(), pair.chain.as_str()), (key, chain));
    for wrong in [
        format!("{chain}{key}"),
        key.to_owned(),
        chain.to_owned(),
        String::new(),
        format!("AAAA{chain}"),
    ] {
        let error = cert_pair(wrong.as_bytes()).unwrap_err();
        assert!(!error.to_string().contains("AAAA"), "an error shows the key: {error}");
    }
    assert!(cert_pair(&[0xff, 0xfe]).is_err());
}

#[test]
fn the_text_of_an_error_is_what_it_says() {
    assert_eq!(error_text(br#"{"error":"updating config: x"}"#), "updating config: x");
    assert_eq!(error_text(br#"{"Error":"y"}"#), "y");
    assert_eq!(error_text(b"no netmap\n"), "no netmap");
    assert_eq!(
        error_text(b"a\r\nb\x1b[31m\xff"),
        "a  b [31m\u{fffd}",
        "one line, whatever is in it"
    );
    assert_eq!(error_text("ä".repeat(5000).as_bytes()).chars().count(), MAX_TEXT + 1);
}

#[test]
fn when_to_come_back_is_a_number_or_a_date() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_700);
    let after = |value| retry_after(value, now).map(|after| after.as_secs());
    assert_eq!(after(" 120 "), Some(120));
    assert_eq!(after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(77));
    assert_eq!(after("Tue, 06 Nov 1990 08:49:37 GMT"), Some(0), "in the past");
    for wrong in ["", "-1", "soon", "1e9"] {
        assert_eq!(after(wrong), None, "{wrong}");
    }
}

#[test]
fn a_reload_that_failed_says_nothing_and_means_it() {
    assert_eq!(
        reload(br#"{"Reloaded":true,"Err":""}"#).unwrap(),
        Reload { reloaded: true, error: String::new() }
    );
    assert!(!reload(b"").unwrap().error.is_empty());
    assert_eq!(warning(br#"{"Warning":"no"}"#).unwrap(), "no");
    assert_eq!(warning(br#"{"Warning":null}"#).unwrap(), "");
}

/// What tailscaled 1.102.5 said in the test tailnet, of which the fuzzer makes its mutants.
macro_rules! recorded {
    ($name:literal) => {
        include_bytes!(concat!("../../../../fuzz/corpus/localapi/", $name))
    };
}

#[test]
fn the_bus_of_a_real_tailscaled_is_read() {
    let first = notify(recorded!("bus-first")).unwrap();
    assert!(first.session_id.is_some() && first.prefs.is_some());
    assert_eq!(first.state, Some(State::NeedsLogin));
    assert_eq!(first.initial_status.unwrap().state(), Some(State::NeedsLogin));
    assert!(first.health.unwrap().warnings.contains_key("wantrunning-false"));
    let node = notify(recorded!("bus-self")).unwrap().self_change.unwrap();
    assert_eq!(
        (node.name.as_str(), &*node.tags),
        ("ts.tailnet.ts.net.", &["tag:a".to_owned()][..])
    );
    assert_eq!((node.host_name.as_str(), node.ips().count()), ("ts", 2));
    let peer = notify(recorded!("bus-peer")).unwrap().peers_changed.remove(0);
    let service = "100.100.9.9/32".parse().unwrap();
    assert!(peer.allowed_ips.contains(&service) && peer.primary_routes.contains(&service));
    assert!(!peer.addresses.contains(&service) && peer.online == Some(true));
    assert_eq!(notify(recorded!("bus-removed")).unwrap().peers_removed, [NodeId(2)]);
    assert!(notify(recorded!("bus-finished")).unwrap().login_finished);
    let health = notify(recorded!("bus-health")).unwrap().health.unwrap();
    assert!(health.warnings["tls-cert-pending"].text.contains("ts.tailnet.ts.net"));
}

#[test]
fn the_answers_of_a_real_tailscaled_are_read() {
    let status = status(recorded!("status")).unwrap();
    assert_eq!((status.state(), status.tun), (Some(State::Running), false));
    assert_eq!(status.magic_dns_suffix, "tailnet.ts.net");
    assert_eq!(status.extra_records[0].address(), Some("100.100.9.9".parse().unwrap()));
    let (key, peer) = status.peers.first_key_value().unwrap();
    assert_eq!((key, peer.dns_name.as_str()), (&peer.public_key, "ts2.tailnet.ts.net."));
    assert_eq!((peer.id, peer.tailscale_ips.len(), peer.allowed_ips.len()), (NodeId(2), 2, 5));
    assert_eq!(peer.last_seen, None);
    assert_eq!(
        super::status(recorded!("status-fresh")).unwrap().tailscale_ips,
        Vec::<IpAddr>::new()
    );
    let prefs = prefs(recorded!("prefs-fresh")).unwrap();
    assert_eq!((prefs.logged_out, prefs.netfilter_mode), (true, NetfilterMode::On));
    let dns = dns_config(recorded!("dns-config")).unwrap();
    assert_eq!((dns.cert_domains, dns.extra_records.len()), (status.cert_domains, 3));
    let whois = whois(recorded!("whois")).unwrap();
    assert_eq!((whois.node.id, whois.user_profile.id), (NodeId(2), whois.node.user));
    let config = serve_config(recorded!("serve-config")).unwrap();
    assert_eq!(config.tcp[&5432].proxy_protocol, 2);
    assert_eq!(config.services["svc:db"].web["db.tailnet.ts.net:80"].handlers["/"].text, "hi");
    assert!(cert_pair(recorded!("cert")).is_ok());
}
