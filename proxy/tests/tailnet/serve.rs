//! What tailscaled serves: L7 ingress with a certificate, the file followed, Services on several replicas, the way to it
//! from the cluster.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use proxy_testbed::{
    Namespace, poll_until,
    tailnet::{KeyOptions, Node, Settings, Tailnet},
    topology::{HOSTS, PROXY_CLUSTER},
    traffic::tcp::Client,
};
use serde_json::{Value, json};

use crate::{
    faults::children,
    pod::{CHANGE, KERNEL_PATHS, Place, Pod, Servers},
    web::{Answer, Backend, get, trust},
};

const FILE: &str = "serve/serve-config.json";
/// How long a certificate may take: the authority asks the control server's DNS. Pebble hands out a finished authorization once in a
/// hundred times, whatever it is told, which tailscaled takes for a failure: then it is the next attempt's, a minute later.
const ISSUE: Duration = Duration::from_secs(90);

/// A pod that serves what the configuration says.
fn place(tailnet: &Tailnet, name: &str, config: &Value) -> Place {
    let place = Place::new(tailnet, name).unwrap();
    let path = place.write(FILE, &config.to_string()).unwrap();
    place.with("TS_SERVE_CONFIG", &path.display().to_string())
}

/// What upstream's operator makes of an Ingress with two paths and redirection.
fn ingress() -> Value {
    let [first, second] = [HOSTS[1][0], HOSTS[2][0]];
    json!({
        "TCP": {"443": {"HTTPS": true}, "80": {"HTTP": true}},
        "Web": {
            "${TS_CERT_DOMAIN}:443": {"Handlers": {
                "/": {"Proxy": format!("http://{first}:8080/")},
                "/api": {"Proxy": format!("http://{second}:8080/base")},
            }},
            "${TS_CERT_DOMAIN}:80": {"Handlers": {
                "/": {"Redirect": "301:https://${HOST}${REQUEST_URI}"},
            }},
        },
    })
}

/// One that answers with a text.
fn says(text: &str) -> Value {
    json!({"TCP": {"80": {"HTTP": true}},
           "Web": {"${TS_CERT_DOMAIN}:80": {"Handlers": {"/": {"Text": text}}}}})
}

fn at(pod: &Pod, v4: bool, port: u16) -> SocketAddr {
    SocketAddr::new(pod.address(v4).unwrap(), port)
}

fn ask(from: &Node, to: SocketAddr, host: &str) -> anyhow::Result<Answer> {
    get(&from.underlay.namespace, to, None, (host, "/"), &[])
}

/// Whether the node's certificate is there.
fn is_certified(status: &Value) -> bool {
    status["tailnet"]["certificates"][0]["ready"] == true
}

/// Whether one of the configuration's errors contains the words.
fn tells(status: &Value, words: &str) -> bool {
    let errors = status["tailnet"]["config_errors"].as_array().into_iter().flatten();
    errors.filter_map(Value::as_str).any(|error| error.contains(words))
}

#[test]
fn an_ingress_is_served_over_https_with_paths_identity_and_redirection() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let acme = tailnet.start_acme().unwrap();
    let tls = trust(acme.root()).unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let peer_at = peer.addresses().unwrap();
    let from = &peer.underlay.namespace;
    // Upstream's operator runs such proxies without a TUN device.
    let [ebpf, nftables] = KERNEL_PATHS;
    let ways = [(ebpf, "false"), (nftables, "false"), ("userspace", "true")];
    for (index, (data_path, user_space)) in ways.into_iter().enumerate() {
        let name = format!("pod{index}");
        let host = format!("{name}.tailnet.ts.net");
        let place = place(&tailnet, &name, &ingress()).with("TS_USERSPACE", user_space);
        let _first = Backend::new(&place.cluster, &format!("{}:8080", HOSTS[1][0]), "first");
        let _second = Backend::new(&place.cluster, &format!("{}:8080", HOSTS[2][0]), "second");
        let pod = place.start(data_path).unwrap();
        // Before any client has asked for it.
        pod.wait(ISSUE, "the certificate", is_certified).unwrap();
        let status = pod.status().unwrap();
        assert_eq!(status["tailnet"]["certificates"][0]["name"], host);
        assert_eq!(status["tailnet"]["https_endpoint"], host);
        assert_eq!(status["tailnet"]["config_errors"], json!([]));
        peer.meet(&name).unwrap();
        for v4 in [true, false] {
            let forged = [("Tailscale-User-Login", "evil@example.com")];
            let answer =
                get(from, at(&pod, v4, 443), Some(&tls), (&host, "/a?b=c"), &forged).unwrap();
            assert_eq!((answer.code, answer.line()), (200, "first GET /a?b=c HTTP/1.1".to_owned()));
            let own = peer_at[usize::from(!v4)].to_string();
            assert_eq!(answer.asked("x-forwarded-for"), Some(own.as_str()), "{}", answer.body);
            assert_eq!(answer.asked("x-forwarded-proto"), Some("https"));
            assert_eq!(answer.asked("x-forwarded-host"), Some(host.as_str()));
            assert_eq!(answer.asked("host"), Some(host.as_str()));
            let login = answer.asked("tailscale-user-login").unwrap();
            assert!(!login.is_empty() && login != "evil@example.com", "{login}");
            let answer = get(from, at(&pod, v4, 443), Some(&tls), (&host, "/api/x"), &[]).unwrap();
            assert_eq!(answer.line(), "second GET /base/x HTTP/1.1");
            let answer = get(from, at(&pod, v4, 80), None, (&host, "/a?b=c"), &[]).unwrap();
            assert_eq!(answer.code, 301);
            assert_eq!(answer.headers["location"], format!("https://{host}/a?b=c"));
        }
    }
}

#[test]
fn the_file_is_followed_and_a_bad_one_changes_nothing() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let host = "pod.tailnet.ts.net";
    let pod = place(&tailnet, "pod", &says("one")).start("ebpf").unwrap();
    peer.meet("pod").unwrap();
    let to = at(&pod, true, 80);
    let says_now = |text: &str| ask(&peer, to, host).is_ok_and(|answer| answer.body == text);
    poll_until(CHANGE, "it is served", || says_now("one")).unwrap();

    pod.place.write(FILE, &says("two").to_string()).unwrap();
    poll_until(CHANGE, "the new text", || says_now("two"))
        .unwrap_or_else(|error| panic!("{error}\n{}", pod.daemon.log()));

    pod.place.write(FILE, r#"{"TCP": {"80": {"HTTP": "yes"}}}"#).unwrap();
    pod.wait(CHANGE, "what is wrong", |status| tells(status, "TCP")).unwrap();
    assert!(says_now("two"));
    assert_eq!(pod.status().unwrap()["ready"], true);

    // A port that serves another sort of thing: refused by tailscaled if it is asked in one step.
    let forward = json!({"TCP": {"80": {"TCPForward": format!("{}:8080", HOSTS[1][0])}}});
    let _backend = Backend::new(&pod.place.cluster, &format!("{}:8080", HOSTS[1][0]), "plain");
    pod.place.write(FILE, &forward.to_string()).unwrap();
    poll_until(CHANGE, "the backend", || {
        ask(&peer, to, host).is_ok_and(|answer| answer.body.starts_with("plain"))
    })
    .unwrap();
    assert_eq!(pod.status().unwrap()["tailnet"]["config_errors"], json!([]), "it is healed");

    // Somebody else's hand.
    pod.local_api("POST", "/localapi/v0/serve-config", "{}").unwrap();
    assert!(ask(&peer, to, host).is_err());
    poll_until(Duration::from_secs(8), "it is put back", || ask(&peer, to, host).is_ok()).unwrap();

    pod.place.write(FILE, "{}").unwrap();
    poll_until(CHANGE, "nothing is served", || ask(&peer, to, host).is_err()).unwrap();
}

/// Without a TUN device forwarded ports are in the serve configuration as well, by another part's hand.
#[test]
fn the_file_and_forwarded_ports_share_the_configuration() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let host = "pod.tailnet.ts.net";
    let place = place(&tailnet, "pod", &says("one"))
        .with("TS_USERSPACE", "true")
        .with("TS_DEST_IP", HOSTS[1][0])
        .with("SLUICE_INGRESS_PORTS", "tcp:80-81");
    let _servers = Servers::new(&place.cluster, HOSTS[1][0], 81).unwrap();
    let pod = place.start("auto").unwrap();
    peer.meet("pod").unwrap();
    let forwarded = || Client::connect(&peer.underlay.namespace, at(&pod, true, 81));
    for text in ["one", "two"] {
        pod.place.write(FILE, &says(text).to_string()).unwrap();
        poll_until(CHANGE, "the file", || {
            ask(&peer, at(&pod, true, 80), host).is_ok_and(|answer| answer.body == text)
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", pod.daemon.log()));
        poll_until(CHANGE, "the forwarded port", || forwarded().is_ok())
            .unwrap_or_else(|error| panic!("{error}\n{}", pod.daemon.log()));
    }
    assert!(!pod.daemon.log().contains("somebody else"), "{}", pod.daemon.log());
}

#[test]
fn without_certificates_http_is_served_and_told_that_https_is_not() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let acme = tailnet.start_acme().unwrap();
    let tls = trust(acme.root()).unwrap();
    tailnet.configure(Settings { auto_approve: false, https: false }).unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let pod = place(&tailnet, "pod", &ingress()).start("ebpf").unwrap();
    let _first = Backend::new(&pod.place.cluster, &format!("{}:8080", HOSTS[1][0]), "first");
    peer.meet("pod").unwrap();
    pod.wait(CHANGE, "no certificates", |status| tells(status, "gives this node no certificates"))
        .unwrap();
    let host = "pod.tailnet.ts.net";
    let https = || get(&peer.underlay.namespace, at(&pod, true, 443), Some(&tls), (host, "/"), &[]);
    poll_until(CHANGE, "port 80", || ask(&peer, at(&pod, true, 80), host).is_ok()).unwrap();
    assert!(https().is_err());
    tailnet.configure(Settings { auto_approve: false, https: true }).unwrap();
    pod.wait(ISSUE, "the certificate", is_certified).unwrap();
    assert_eq!(https().unwrap().code, 200);
    assert_eq!(pod.status().unwrap()["tailnet"]["config_errors"], json!([]));
}

#[test]
fn a_certificate_that_cannot_be_had_is_told_and_holds_nothing_else_up() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    // No ACME server listens.
    let pod = place(&tailnet, "pod", &ingress()).start("ebpf").unwrap();
    pod.wait(ISSUE, "why there is none", |status| {
        status["tailnet"]["certificates"][0]["reason"] == "unreachable"
    })
    .unwrap();
    let status = pod.status().unwrap();
    let certificate = &status["tailnet"]["certificates"][0];
    assert_eq!((&certificate["ready"], &status["ready"]), (&json!(false), &json!(true)));
    assert!(certificate["message"].as_str().unwrap().ends_with("tried again in 1m"));
    peer.meet("pod").unwrap();
    assert_eq!(ask(&peer, at(&pod, true, 80), "pod.tailnet.ts.net").unwrap().code, 301);
}

#[test]
fn a_tailscaled_that_is_killed_serves_again_and_one_that_forgot_is_told_anew() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    // In memory: a tailscaled that is started anew knows nothing of what it served, and is another node.
    let place = place(&tailnet, "pod", &says("text")).with("TS_STATE_DIR", "");
    let pod = place.start("ebpf").unwrap();
    peer.meet("pod").unwrap();
    let served = |pod: &Pod| {
        let (Ok(address), Ok(status)) = (pod.address(true), pod.status()) else { return false };
        let host = status["tailnet"]["name"].as_str().unwrap_or_default().trim_end_matches('.');
        ask(&peer, SocketAddr::new(address, 80), host).is_ok_and(|answer| answer.body == "text")
    };
    poll_until(CHANGE, "it is served", || served(&pod)).unwrap();
    for id in children(pod.daemon.id(), "tailscaled") {
        kill(Pid::from_raw(id), Signal::SIGKILL).unwrap();
    }
    pod.wait(Duration::from_secs(20), "ready again", |status| {
        status["ready"] == true && status["tailnet"]["restarts"] == 1
    })
    .unwrap();
    poll_until(Duration::from_secs(20), "it is served again", || served(&pod))
        .unwrap_or_else(|error| panic!("{error}\n{}", pod.daemon.log()));
}

#[test]
fn a_service_of_two_replicas_is_served_by_the_other_when_one_goes() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let acme = tailnet.start_acme().unwrap();
    let tls = trust(acme.root()).unwrap();
    let vips: [IpAddr; 2] = ["100.64.99.1", "fd7a:115c:a1e0::99:1"].map(|ip| ip.parse().unwrap());
    tailnet.set_service("svc:web", &vips).unwrap();
    let peer = tailnet.joined("peer", &["--accept-routes"]).unwrap();
    let host = "web.tailnet.ts.net";
    let config = json!({"Services": {"svc:web": {
        "TCP": {"443": {"HTTPS": true}},
        "Web": {format!("{host}:443"): {"Handlers": {"/": {"Proxy": format!("http://{}:8080/", HOSTS[1][0])}}}},
    }}});
    let tags = vec!["tag:k8s".to_owned()];
    let options = KeyOptions { tags, reusable: true, ..KeyOptions::default() };
    let key = tailnet.auth_key(&options).unwrap();
    let replica = |index: usize| {
        let name = ["replica0", "replica1"][index];
        let place = place(&tailnet, name, &config).with("TS_AUTHKEY", key.secret());
        let backend = ["first", "second"][index];
        let backend =
            Backend::new(&place.cluster, &format!("{}:8080", HOSTS[1][0]), backend).unwrap();
        (place.start(KERNEL_PATHS[index]).unwrap(), backend)
    };
    let replicas = [replica(0), replica(1)];
    for (index, (pod, _)) in replicas.iter().enumerate() {
        let name = format!("replica{index}");
        pod.wait(ISSUE, "the certificate", is_certified).unwrap();
        pod.wait(CHANGE, "advertised", |s| s["tailnet"]["services"] == json!(["svc:web"])).unwrap();
        poll_until(CHANGE, "control knows", || {
            tailnet.find(&name).unwrap().services == ["svc:web"]
        })
        .unwrap();
        peer.meet(&name).unwrap();
    }
    let asked = |from: &Namespace, v4: bool| {
        get(from, SocketAddr::new(vips[usize::from(!v4)], 443), Some(&tls), (host, "/"), &[])
    };
    let from = &peer.underlay.namespace;
    let serves = |name: &str| tailnet.find(name).unwrap().served.len() == 2;
    let one = usize::from(!serves("replica0"));
    let names = ["first", "second"];
    for v4 in [true, false] {
        let mut answer = None;
        poll_until(CHANGE * 5, "the Service answers", || {
            answer = asked(from, v4).ok();
            answer.is_some()
        })
        .unwrap();
        assert!(answer.unwrap().body.starts_with(names[one]));
    }
    // Told to end: it offers the Service no more, and clients find the other one.
    let began = Instant::now();
    replicas[one].0.daemon.signal(Signal::SIGTERM).unwrap();
    poll_until(CHANGE, "the other one serves", || serves(["replica1", "replica0"][one])).unwrap();
    poll_until(CHANGE * 5, "the other one answers", || {
        asked(from, true).is_ok_and(|answer| answer.body.starts_with(names[1 - one]))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", replicas[one].0.daemon.log()));
    eprintln!("the other replica answered after {:?}", began.elapsed());
    // A Service that is no longer in the file is no longer offered.
    let left = &replicas[1 - one].0;
    left.place.write(FILE, "{}").unwrap();
    left.wait(CHANGE, "withdrawn", |status| status["tailnet"]["services"] == json!([])).unwrap();
}

/// R60: a name that leads to the pod in the cluster is served there too.
#[test]
fn the_cluster_reaches_through_the_pod_what_the_tailnet_does() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let acme = tailnet.start_acme().unwrap();
    let tls = trust(acme.root()).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let name = format!("pod{index}");
        let host = format!("{name}.tailnet.ts.net");
        let place = place(&tailnet, &name, &ingress())
            .with("EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS", "true");
        let _first = Backend::new(&place.cluster, &format!("{}:8080", HOSTS[1][0]), "first");
        let pod = place.start(data_path).unwrap();
        pod.wait(ISSUE, "the certificate", is_certified).unwrap();
        for address in PROXY_CLUSTER {
            let to = |port| SocketAddr::new(address.parse().unwrap(), port);
            let from = &pod.place.cluster;
            let answer = get(from, to(443), Some(&tls), (&host, "/x"), &[])
                .unwrap_or_else(|error| panic!("{data_path}: {error:?}\n{}", pod.daemon.log()));
            assert_eq!(answer.line(), "first GET /x HTTP/1.1");
            let answer = get(from, to(80), None, (&host, "/x"), &[]).unwrap();
            assert_eq!(answer.headers["location"], format!("https://{host}/x"));
        }
        pod.place.write(FILE, "{}").unwrap();
        let to = SocketAddr::new(PROXY_CLUSTER[0].parse().unwrap(), 443);
        poll_until(CHANGE, "nothing is served", || {
            get(&pod.place.cluster, to, Some(&tls), (&host, "/"), &[]).is_err()
        })
        .unwrap();
    }
}
