//! What a node of a tailnet serves, and under which names.

use std::{net::IpAddr, time::Duration};

use proxy::localapi::{
    DnsRecord, ETag, Error, HttpHandler, NodeId, PrefsChange, ServeConfig, TcpPortHandler,
    WebServerConfig, parse,
};
use proxy_testbed::{
    Tailnet,
    tailnet::{Dns, Record},
};

use crate::{PATIENCE, everything, node, skipped, tagged, until};

#[tokio::test(flavor = "multi_thread")]
async fn names_that_the_control_server_adds_are_told_and_read() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (node, api) = node(&tailnet, "names");
    node.up(&tailnet.auth_key(&tagged()).unwrap(), &[]).unwrap();
    let mut bus = api.watch(everything()).await.unwrap();
    bus.next().await.unwrap();
    assert!(api.dns_config().await.unwrap().extra_records.is_empty());
    let record = |value: &str| Record {
        name: "db.example.com".to_owned(),
        r#type: String::new(),
        value: value.to_owned(),
    };
    let records = vec![record("100.64.9.9"), record("fd7a:115c:a1e0::909")];
    tailnet.set_dns(&Dns { records, ..Dns::default() }).unwrap();
    // There is no message of its own for them: the node itself is told anew.
    let config = loop {
        until(&mut bus, "the change", |notify| notify.self_change.is_some()).await;
        let config = api.dns_config().await.unwrap();
        // Else it was something else about the node.
        if !config.extra_records.is_empty() {
            break config;
        }
    };
    let addresses: Vec<_> = config.extra_records.iter().filter_map(DnsRecord::address).collect();
    assert_eq!(
        addresses,
        ["100.64.9.9", "fd7a:115c:a1e0::909"].map(|a| a.parse::<IpAddr>().unwrap())
    );
    assert!(config.extra_records.iter().all(|record| record.name == "db.example.com"));
    assert_eq!(api.status(false).await.unwrap().extra_records, config.extra_records);
    assert_eq!(config.cert_domains, ["names.tailnet.ts.net"]);
    assert_eq!(api.cert_domains().await.unwrap(), config.cert_domains);
    let time = Duration::from_secs(5);
    let error = api.cert_pair("other.tailnet.ts.net", Duration::ZERO, time).await.unwrap_err();
    assert!(matches!(error, Error::Status { code: 500, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serve_configuration_is_set_by_the_tag_of_the_one_before() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (node, api) = node(&tailnet, "serving");
    node.up(&tailnet.auth_key(&tagged()).unwrap(), &[]).unwrap();
    let (_, empty) = api.serve_config().await.unwrap();
    let mut config = ServeConfig::default();
    let forward = TcpPortHandler {
        tcp_forward: "127.0.0.1:5432".to_owned(),
        proxy_protocol: 2,
        ..TcpPortHandler::default()
    };
    config.tcp.insert(5432, forward);
    config.tcp.insert(80, TcpPortHandler { http: true, ..TcpPortHandler::default() });
    let mut web = WebServerConfig::default();
    let text = HttpHandler { text: "hello".to_owned(), ..HttpHandler::default() };
    web.handlers.insert("/".to_owned(), text);
    config.web.insert("serving.tailnet.ts.net:80".to_owned(), web);
    api.set_serve_config(&config, Some(&empty)).await.unwrap();
    let (read, tag) = api.serve_config().await.unwrap();
    assert_eq!(read, config);
    assert_ne!(tag, empty);

    let other = ServeConfig::default();
    let error = api.set_serve_config(&other, Some(&empty)).await.unwrap_err();
    assert!(matches!(error, Error::Changed), "{error}");
    assert_eq!(api.serve_config().await.unwrap(), (config, tag.clone()), "nothing was changed");
    // Without a tag, and with that of the one in force.
    api.set_serve_config(&read, None).await.unwrap();
    api.set_serve_config(&other, Some(&tag)).await.unwrap();
    assert_eq!(api.serve_config().await.unwrap().0, other);
    let never = api.set_serve_config(&other, Some(&ETag("a\nb".to_owned()))).await.unwrap_err();
    assert!(matches!(never, Error::Changed), "{never}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_told_to_its_host_and_to_peers() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let key = tailnet.auth_key(&tagged()).unwrap();
    let ((host, hosting), (client, watching)) = (node(&tailnet, "host"), node(&tailnet, "client"));
    host.up(&key, &[]).unwrap();
    client.up(&key, &[]).unwrap();
    client.wait_peer("host").unwrap();
    let (mut own, mut others) =
        (hosting.watch(everything()).await.unwrap(), watching.watch(everything()).await.unwrap());
    let addresses: [IpAddr; 2] =
        ["100.100.1.1", "fd7a:115c:a1e0::b:1"].map(|text| text.parse().unwrap());
    tailnet.set_service("svc:web", &addresses).unwrap();
    let change = PrefsChange {
        advertise_services: Some(vec!["svc:web".to_owned()]),
        ..PrefsChange::default()
    };
    hosting.edit_prefs(&change).await.unwrap();
    until(&mut own, "the Service", |notify| {
        let Some(node) = &notify.self_change else { return false };
        let services = parse::services(&node.cap_map).unwrap();
        services.get("svc:web").is_some_and(|own| own == &addresses)
    })
    .await;
    let id = NodeId(tailnet.find("host").unwrap().id as i64);
    until(&mut others, "who hosts the Service", |notify| {
        let host = notify.peers_changed.iter().find(|node| node.id == id);
        host.is_some_and(|host| {
            addresses.iter().all(|address| host.allowed_ips.contains(&(*address).into()))
        })
    })
    .await;
    let records = watching.dns_config().await.unwrap().extra_records;
    let named: Vec<_> = records.iter().filter_map(DnsRecord::address).collect();
    assert_eq!(named, addresses, "{records:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_made_once_and_handed_out_with_its_key() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let _acme = tailnet.start_acme().unwrap();
    let (node, api) = node(&tailnet, "certified");
    node.up(&tailnet.auth_key(&tagged()).unwrap(), &[]).unwrap();
    let domain = api.cert_domains().await.unwrap().remove(0);
    assert_eq!(domain, "certified.tailnet.ts.net");
    let hasty = api.cert_pair(&domain, Duration::ZERO, Duration::from_millis(1)).await.unwrap_err();
    assert!(matches!(hasty, Error::Timeout { .. }), "{hasty}");
    let pair = api.cert_pair(&domain, Duration::ZERO, PATIENCE).await.unwrap();
    assert!(pair.key.contains("PRIVATE KEY-----"));
    assert!(pair.chain.matches("-----BEGIN CERTIFICATE-----").count() >= 2, "{}", pair.chain);
    let secret = pair.key.lines().nth(1).unwrap();
    assert!(!format!("{pair:?}").contains(secret));
    let again = api.cert_pair(&domain, Duration::ZERO, PATIENCE).await.unwrap();
    assert!(again == pair, "another one was made");
}
