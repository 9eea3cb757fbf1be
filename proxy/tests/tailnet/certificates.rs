//! A certificate that the replicas of a group share: the first one issues it into a Secret, the others serve it.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use nix::sys::signal::Signal;
use proxy_testbed::{
    ApiServer,
    kubernetes::rule,
    poll_until,
    tailnet::{DOMAIN, KeyOptions, Tailnet},
    topology::HOSTS,
};
use serde_json::{Value, json};

use crate::{
    pod::{CHANGE, Place},
    web::{Backend, get, trust},
};

const NAMESPACE: &str = "tailscale";
/// How long a certificate may take: the authority asks the control server's DNS. Pebble hands out a finished authorization once in a
/// hundred times, whatever it is told, which tailscaled takes for a failure: then it is the next attempt's, a minute later.
const ISSUE: Duration = Duration::from_secs(90);
/// Until a replica that does not issue has looked for it again.
const LOOK: Duration = Duration::from_mins(1);

fn certificate(status: &Value) -> &Value {
    &status["tailnet"]["certificates"][0]
}

#[test]
fn the_first_replica_issues_and_the_others_serve_what_it_has_issued() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let acme = tailnet.start_acme().unwrap();
    let tls = trust(acme.root()).unwrap();
    let server = tailnet.start_api_server().unwrap();
    let vips: [IpAddr; 2] = ["100.64.99.1", "fd7a:115c:a1e0::99:1"].map(|ip| ip.parse().unwrap());
    tailnet.set_service("svc:web", &vips).unwrap();
    let peer = tailnet.joined("peer", &["--accept-routes"]).unwrap();
    let host = format!("web.{DOMAIN}");
    // As the operator does: no proxy may make a Secret.
    server.account(NAMESPACE, "pg-0").unwrap();
    server.make_secret(NAMESPACE, &host, &[]).unwrap();

    let (second, _second_backend) = replica(&tailnet, &server, "pg-1", &host);
    let second = second.start("nftables").unwrap();
    second
        .wait(ISSUE, "it has none and may not issue", |status| {
            certificate(status)["reason"] == "not-issued"
        })
        .unwrap();
    assert_eq!(certificate(&second.status().unwrap())["ready"], false);

    let (first, _first_backend) = replica(&tailnet, &server, "pg-0", &host);
    let first = first.start("ebpf").unwrap();
    first.wait(ISSUE, "the certificate", |status| certificate(status)["ready"] == true).unwrap();
    let shared = server.secret(NAMESPACE, &host).unwrap().unwrap();
    assert!(shared.text("tls.crt").contains("BEGIN CERTIFICATE"), "{shared:?}");
    let endpoint = format!("pg-0.{DOMAIN}");
    server
        .wait_secret((NAMESPACE, "pg-0"), ISSUE, "the endpoint", |content| {
            content.text("https_endpoint") == endpoint
        })
        .unwrap();
    second.wait(LOOK, "it is found", |status| certificate(status)["ready"] == true).unwrap();

    for name in ["pg-0", "pg-1"] {
        peer.meet(name).unwrap();
    }
    let asked = || {
        let to = SocketAddr::new(vips[0], 443);
        get(&peer.underlay.namespace, to, Some(&tls), (&host, "/"), &[])
    };
    first.daemon.signal(Signal::SIGTERM).unwrap();
    poll_until(CHANGE * 5, "the second one serves it", || {
        asked().is_ok_and(|answer| answer.body.starts_with("pg-1"))
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", asked(), second.daemon.log()));
    let after = server.secret(NAMESPACE, &host).unwrap().unwrap();
    assert_eq!(after.text("tls.crt"), shared.text("tls.crt"), "it was issued once");
}

/// A replica, and what it leads to.
fn replica(
    tailnet: &Tailnet,
    server: &ApiServer,
    name: &'static str,
    host: &str,
) -> (Place, Backend) {
    let account = server.account(NAMESPACE, name).unwrap();
    let verbs = ["get", "list", "patch", "update", "watch"];
    let events = rule("events", &[], &["create", "patch", "get"]);
    server.allow(&account, &[rule("secrets", &[name, host], &verbs), events]).unwrap();
    server.make_secret(NAMESPACE, name, &[]).unwrap();
    let mut place = Place::new(tailnet, name).unwrap();
    server.furnish(&mut place.underlay, &account, &format!("uid-of-{name}")).unwrap();
    let backend = format!("{}:8080", HOSTS[1][0]);
    let config = json!({"Services": {"svc:web": {
        "TCP": {"443": {"HTTPS": true}},
        "Web": {format!("{host}:443"): {"Handlers": {"/": {"Proxy": format!("http://{backend}/")}}}},
    }}});
    let path = place.write("serve/serve-config.json", &config.to_string()).unwrap();
    let tags = vec!["tag:k8s".to_owned()];
    let key = tailnet.auth_key(&KeyOptions { tags, ..KeyOptions::default() }).unwrap();
    let backend = Backend::new(&place.cluster, &backend, name).unwrap();
    let place = place
        .with("TS_KUBE_SECRET", name)
        .with("TS_AUTHKEY", key.secret())
        .with("TS_EXPERIMENTAL_CERT_SHARE", "true")
        .with("TS_SERVE_CONFIG", &path.display().to_string());
    (place, backend)
}
