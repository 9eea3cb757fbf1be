//! The test tailnet itself: upstream's tailscaled logs in and carries traffic, and sees what tests change.
#![cfg(test)]

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use proxy_testbed::{
    DEADLINE, Tailnet, poll_until,
    tailnet::{AuthKey, Dns, KeyOptions, Login, NodeChange, Record},
    traffic::{
        icmp::Pinger,
        tcp::{Client, TcpServer},
    },
};

#[path = "tailnet/roles.rs"]
mod roles;

/// Whether this machine's tests are told to do without the kernel.
fn skipped() -> bool {
    let skip = std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1");
    if skip {
        eprintln!("skipped: SKIP_KERNEL_TESTS=1");
    }
    skip
}

#[test]
fn two_nodes_log_in_and_carry_tcp_and_icmp_over_both_families() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (left, right) =
        (tailnet.joined("left", &[]).unwrap(), tailnet.joined("right", &[]).unwrap());
    left.wait_peer("right").unwrap();
    right.wait_peer("left").unwrap();
    let _server = TcpServer::new(&right.underlay.namespace, "[::]:8080").unwrap();
    let own = left.addresses().unwrap();
    for (family, address) in right.addresses().unwrap().into_iter().enumerate() {
        assert_eq!(address.is_ipv6(), family == 1);
        left.ping(address).unwrap();
        let mut client = Client::connect(&left.underlay.namespace, (address, 8080).into()).unwrap();
        assert_eq!(client.seen_ip(), own[family]);
        client.echo(1 << 20).unwrap();
        client.close().unwrap();
        let mut ping = Pinger::new(&left.underlay.namespace, address).unwrap();
        assert_eq!(ping.pings(3, 56, DEADLINE).unwrap(), 3);
    }
    assert_eq!(left.addresses().unwrap()[0].to_string(), "100.64.0.1");
    let machine = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    assert!(!machine.contains("100.100.100.100"), "the machine's DNS was rewritten: {machine}");
}

#[test]
fn a_key_lets_in_once_and_tags_and_no_other_key_does() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let tags = vec!["tag:k8s".to_owned()];
    let key = tailnet.auth_key(&KeyOptions { tags, ..KeyOptions::default() }).unwrap();
    assert!(!format!("{key:?}").contains(key.secret()));
    let (first, second) = (tailnet.node("proxy").unwrap(), tailnet.node("proxy").unwrap());
    first.up(&key, &[]).unwrap();
    assert_eq!(tailnet.find("proxy").unwrap().tags, ["tag:k8s"]);
    // A tagged node is its own user, in the state that outlives it too.
    let profile = first.local_api("GET", "/localapi/v0/profiles/current", "").unwrap();
    assert!(profile.contains(r#""LoginName":"proxy.tailnet.ts.net""#), "{profile}");
    let revoked = tailnet.auth_key(&KeyOptions::default()).unwrap();
    tailnet.revoke(&revoked).unwrap();
    for refused in [&key, &revoked, &AuthKey::invented()] {
        let error = format!("{:#}", second.up(refused, &[]).unwrap_err());
        assert!(error.contains("invalid key: API key"), "{error}");
        assert!(!error.contains(refused.secret()), "the key is in the error");
    }
    let key = tailnet.auth_key(&KeyOptions::default()).unwrap();
    // tailscaled may still tell of the key before, which it has tried again meanwhile.
    poll_until(DEADLINE * 2, "a good key lets in", || second.up(&key, &[]).is_ok()).unwrap();
    // The name is taken.
    first.wait_peer("proxy-1").unwrap();
}

#[test]
fn a_node_that_moves_expires_comes_back_or_is_deleted_is_seen_by_the_others_and_by_itself() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (watcher, other) =
        (tailnet.joined("watcher", &[]).unwrap(), tailnet.joined("other", &[]).unwrap());
    watcher.wait_peer("other").unwrap();
    let id = tailnet.find("other").unwrap().id;

    let moved: [IpAddr; 2] = ["100.64.7.7".parse().unwrap(), "fd7a:115c:a1e0::77".parse().unwrap()];
    let change = NodeChange { addresses: Some(moved), ..NodeChange::default() };
    tailnet.change(id, &change).unwrap();
    let seen = Instant::now();
    watcher
        .wait_status("the new addresses", |_| watcher.wait_peer("other").unwrap() == moved)
        .unwrap();
    assert!(seen.elapsed() < Duration::from_secs(2), "took {:?}", seen.elapsed());
    other
        .wait_status("its own new addresses", |_| other.addresses().is_ok_and(|own| own == moved))
        .unwrap();
    let server = TcpServer::new(&other.underlay.namespace, "[::]:8080").unwrap();
    for address in moved {
        watcher.ping(address).unwrap();
        Client::connect(&watcher.underlay.namespace, (address, 8080).into()).unwrap();
    }
    drop(server);

    tailnet.expire(id, true).unwrap();
    other
        .wait_status("its key has expired", |status| status["BackendState"] == "NeedsLogin")
        .unwrap();
    tailnet.expire(id, false).unwrap();
    other
        .wait_status("its key is good again", |status| status["BackendState"] == "Running")
        .unwrap();

    other.kill().unwrap();
    watcher
        .wait_status("the node is gone", |status| {
            status["Peer"].as_object().unwrap().values().all(|peer| peer["Online"] == false)
        })
        .unwrap();
    other.launch().unwrap();
    other.wait_status("it runs again", |status| status["BackendState"] == "Running").unwrap();
    assert_eq!(other.addresses().unwrap(), moved);

    tailnet.delete(id).unwrap();
    watcher.wait_no_peer("other").unwrap();
    other.wait_status("it has to log in", |status| status["BackendState"] == "NeedsLogin").unwrap();
}

#[test]
fn names_are_told_and_ten_thousand_changes_a_minute_arrive() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let node = tailnet.joined("node", &["--accept-dns=true"]).unwrap();
    let record =
        Record { name: "db.example.com".into(), r#type: String::new(), value: "192.0.2.7".into() };
    tailnet.set_dns(&Dns { records: vec![record], ..Dns::default() }).unwrap();
    tailnet.set_service("svc:web", &["100.64.99.1".parse().unwrap()]).unwrap();
    for (name, value) in [
        ("db.example.com", "192.0.2.7"),
        ("web.tailnet.ts.net", "100.64.99.1"),
        ("node.tailnet.ts.net", "100.64.0.1"),
    ] {
        let mut last = String::new();
        poll_until(DEADLINE, name, || {
            last = node.cli(&["dns", "query", name]).unwrap_or_else(|error| error.to_string());
            last.contains(value)
        })
        .unwrap_or_else(|error| panic!("{error}: {last}"));
    }

    tailnet.add_fakes(100, "fake").unwrap();
    node.wait_peer("fake-101").unwrap();
    let start = Instant::now();
    // 1 000 in 6 seconds.
    assert_eq!(tailnet.churn(1000, Duration::from_secs(6)).unwrap(), 1000);
    assert!(start.elapsed() < Duration::from_secs(9), "took {:?}", start.elapsed());
    node.wait_status("the last changes", |status| {
        let peers = status["Peer"].as_object().unwrap();
        let known = |name: &str| peers.values().any(|peer| peer["DNSName"] == format!("{name}."));
        tailnet.nodes().unwrap().iter().filter(|peer| peer.fake).all(|peer| known(&peer.name))
            && peers.len() == 100
    })
    .unwrap();
    tailnet.remove_fakes().unwrap();
    node.wait_status("no peer", |status| {
        status["Peer"].as_object().is_none_or(serde_json::Map::is_empty)
    })
    .unwrap();
}

#[test]
fn a_control_server_that_goes_away_leaves_traffic_alone_and_is_found_again() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (left, right) =
        (tailnet.joined("left", &[]).unwrap(), tailnet.joined("right", &[]).unwrap());
    let address = left.meet("right").unwrap()[0];
    tailnet.pause().unwrap();
    poll_until(DEADLINE, "all are offline", || {
        tailnet.nodes().unwrap().iter().all(|node| !node.online)
    })
    .unwrap();
    let mut ping = Pinger::new(&left.underlay.namespace, address).unwrap();
    assert_eq!(ping.pings(3, 56, DEADLINE).unwrap(), 3);
    tailnet.resume().unwrap();
    poll_until(DEADLINE * 6, "all are online", || {
        tailnet.nodes().unwrap().iter().all(|node| node.online)
    })
    .unwrap();
    assert!(right.id().is_ok());
}

#[test]
fn a_node_without_a_key_waits_for_its_user_and_the_filter_stops_what_it_does_not_name() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (left, right) = (tailnet.joined("left", &[]).unwrap(), tailnet.node("right").unwrap());
    std::thread::scope(|scope| {
        let server = format!("--login-server={}", tailnet.url());
        let right = &right;
        let up = scope.spawn(move || right.cli(&["up", &server, "--hostname=right"]));
        let mut url = String::new();
        right
            .wait_status("a page to visit", |status| {
                url = status["AuthURL"].as_str().unwrap_or_default().to_owned();
                !url.is_empty()
            })
            .unwrap();
        tailnet.log_in(&Login { url, user: "visitor@example.com".into() }).unwrap();
        up.join().unwrap().unwrap();
    });
    let address = left.meet("right").unwrap()[0];
    let status = left.status().unwrap();
    let peer = status["Peer"].as_object().unwrap().values().next().unwrap().clone();
    let user = &status["User"][peer["UserID"].to_string()];
    assert_eq!(user["LoginName"], "visitor@example.com");

    let _server = TcpServer::new(&right.underlay.namespace, "[::]:8080").unwrap();
    let connect = |port| Client::connect(&left.underlay.namespace, (address, port).into()).is_ok();
    assert!(connect(8080));
    let rule = |port: u16| {
        serde_json::json!([{
            "SrcIPs": ["*"],
            "DstPorts": [{ "IP": "*", "Ports": { "First": port, "Last": port } }],
        }])
    };
    tailnet.set_filter(&rule(9090)).unwrap();
    // Refused packets are dropped: each attempt takes its whole time.
    poll_until(DEADLINE * 2, "the filter stops it", || !connect(8080)).unwrap();
    tailnet.set_filter(&rule(8080)).unwrap();
    poll_until(DEADLINE, "the filter lets it through", || connect(8080)).unwrap();
}
