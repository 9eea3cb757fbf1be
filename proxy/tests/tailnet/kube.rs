//! A pod whose state is in a Secret at a real API server: what the operator reads there, who the node is after a restart or
//! after upstream's entry point, and what goes on while the server is away.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use proxy_testbed::{
    ApiServer, DEADLINE,
    kubernetes::{Account, Content, PolicyRule, rule},
    poll_until,
    tailnet::{DOMAIN, NodeChange, Tailnet},
    topology::{HOSTS, PROXY_CLUSTER},
    traffic::tcp::Client,
};
use serde_json::{Value, json};

use crate::{
    faults::{outage, pace},
    pod::{CHANGE, Place, Pod, START, Servers, exchange},
};

const NAMESPACE: &str = "tailscale";
const DATA_PATH: &str = "nftables";
/// Our attempts are some seconds apart by the time the server is back.
const SETTLES: Duration = Duration::from_secs(90);

/// What the operator's Role allows a proxy.
fn rights(name: &str) -> [PolicyRule; 2] {
    let verbs = ["get", "list", "patch", "update", "watch"];
    [rule("secrets", &[name], &verbs), rule("events", &[], &["create", "patch", "get"])]
}

/// A place for a pod that may do with its Secret what the operator's Role allows.
fn place(tailnet: &Tailnet, server: &ApiServer, name: &str) -> (Place, Account) {
    let account = server.account(NAMESPACE, name).unwrap();
    server.allow(&account, &rights(name)).unwrap();
    server.make_secret(NAMESPACE, name, &[]).unwrap();
    let mut place = Place::new(tailnet, name).unwrap();
    server.furnish(&mut place.underlay, &account, &format!("uid-of-{name}")).unwrap();
    (place.with("TS_KUBE_SECRET", name).with("TS_DEST_IP", HOSTS[1][0]), account)
}

/// Waits until the Secret tells of a whole device and all of `more`.
fn told(server: &ApiServer, name: &str, more: &[&str]) -> Content {
    let device = ["device_id", "device_fqdn", "device_ips", "pod_uid", "tailscale_capver"];
    let keys = [&device, more].concat();
    let whole = |content: &Content| keys.iter().all(|key| !content.text(key).is_empty());
    server.wait_secret((NAMESPACE, name), START, &format!("{keys:?}"), whole).unwrap()
}

/// Whom the status calls this node: ID, name, addresses.
fn identity(status: &Value) -> [Value; 3] {
    ["id", "name", "addresses"].map(|field| status["tailnet"][field].clone())
}

/// The same from the Secret.
fn written(content: &Content) -> [Value; 3] {
    let addresses = serde_json::from_str(content.text("device_ips")).unwrap();
    [
        content.text("device_id").into(),
        content.text("device_fqdn").trim_end_matches('.').into(),
        addresses,
    ]
}

/// What [`identity`] tells, in the words of the Secret.
fn plain([id, name, addresses]: [Value; 3]) -> [Value; 3] {
    [id, name.as_str().unwrap_or_default().trim_end_matches('.').into(), addresses]
}

fn frontend(pod: &Pod) -> SocketAddr {
    SocketAddr::new(pod.address(true).unwrap(), 80)
}

#[test]
fn state_and_device_are_in_the_secret_and_a_restart_is_the_same_node() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let server = tailnet.start_api_server().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let (place, _) = place(&tailnet, &server, "pod-0");
    let _servers = Servers::new(&place.cluster, HOSTS[1][0], 80).unwrap();
    let mut pod = place.start(DATA_PATH).unwrap();
    peer.meet("pod-0").unwrap();
    exchange(&peer.underlay.namespace, frontend(&pod)).unwrap();

    let state = ["_machinekey", "_profiles", "_current-profile"];
    let before = told(&server, "pod-0", &state);
    let status = pod.status().unwrap();
    assert_eq!(written(&before), plain(identity(&status)), "{status}");
    assert_eq!(before.text("device_fqdn"), format!("pod-0.{DOMAIN}."));
    assert_eq!(before.text("pod_uid"), "uid-of-pod-0");
    assert!(before.text("tailscale_capver").parse::<u32>().unwrap() > 100, "{before:?}");
    assert_eq!(status["tailnet"]["secret_error"], Value::Null);
    let file = pod.place.underlay.path().join("state/tailscaled.state");
    assert!(!file.exists(), "the state is in {} as well", file.display());

    pod.daemon.kill().unwrap();
    pod.restart(DATA_PATH).unwrap();
    assert_eq!(identity(&pod.status().unwrap()), identity(&status));
    peer.ping(frontend(&pod).ip()).unwrap();
    exchange(&peer.underlay.namespace, frontend(&pod)).unwrap();
    assert_eq!(tailnet.nodes().unwrap().len(), 2, "a node too many");
}

#[test]
fn an_egress_group_tells_in_the_secret_what_it_has_installed() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let server = tailnet.start_api_server().unwrap();
    let near = tailnet.joined("near", &[]).unwrap();
    let (place, _) = place(&tailnet, &server, "egress-0");
    let service = json!({ "default-near": {
        "healthCheckEndpoint": "",
        "tailnetTarget": { "ip": "", "fqdn": format!("near.{DOMAIN}") },
        "ports": [{ "protocol": "TCP", "matchPort": 10_080, "targetPort": 8080 }],
    }});
    let path = place.write("egress/egress-services", &service.to_string()).unwrap();
    place.write("egress/hep-pings", "0").unwrap();
    let directory = path.parent().unwrap().display().to_string();
    let place = place.with("TS_DEST_IP", "").with("TS_EGRESS_PROXIES_CONFIG_PATH", &directory);
    let _pod = place.start(DATA_PATH).unwrap();
    let content = told(&server, "egress-0", &["egress-services"]);
    let installed: Value = serde_json::from_str(content.text("egress-services")).unwrap();
    // What the operator compares: its Services, the pod's addresses that it asked for, where the target is.
    assert_eq!(installed["podIPv4"], PROXY_CLUSTER[0], "{installed}");
    let told = &installed["services"]["default-near"];
    assert_eq!(told["ports"], service["default-near"]["ports"], "{installed}");
    assert_eq!(told["tailnetTarget"], service["default-near"]["tailnetTarget"], "{installed}");
    let addresses: Vec<std::net::IpAddr> =
        serde_json::from_value(told["tailnetTargetIPs"].clone()).unwrap();
    assert!(addresses.contains(&near.addresses().unwrap()[0]), "{installed}");
}

#[test]
fn an_api_server_that_is_away_stops_no_traffic_and_is_told() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let server = tailnet.start_api_server().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let (place, account) = place(&tailnet, &server, "pod-0");
    let _servers = Servers::new(&place.cluster, HOSTS[1][0], 80).unwrap();
    let pod = place.start(DATA_PATH).unwrap();
    peer.meet("pod-0").unwrap();
    told(&server, "pod-0", &[]);
    let at = frontend(&pod);
    let mut kept = Client::connect(&peer.underlay.namespace, at).unwrap();

    // Gone: connections old and new go on, and what has to be written meanwhile is told to be missing.
    server.kill().unwrap();
    let end = Instant::now() + outage();
    while Instant::now() < end {
        kept.echo(10_000).unwrap();
        exchange(&peer.underlay.namespace, at).unwrap();
        pace();
    }
    let id = tailnet.find("pod-0").unwrap().id;
    let moved: [std::net::IpAddr; 2] =
        ["100.64.99.1".parse().unwrap(), "fd7a:115c:a1e0::9901".parse().unwrap()];
    tailnet.change(id, &NodeChange { addresses: Some(moved), ..NodeChange::default() }).unwrap();
    pod.wait(START, "the failure is told", |status| {
        let error = status["tailnet"]["secret_error"].as_str();
        error.is_some_and(|error| error.contains("tailscale/pod-0"))
    })
    .unwrap();
    let is_moved = || pod.address(true).is_ok_and(|address| address == moved[0]);
    poll_until(DEADLINE, "the pod is told its address", is_moved).unwrap();
    peer.ping(moved[0]).unwrap();
    exchange(&peer.underlay.namespace, SocketAddr::new(moved[0], 80)).unwrap();

    // Back: what was missing is written, and told no more.
    server.launch().unwrap();
    let told_moved = |content: &Content| content.text("device_ips").contains("100.64.99.1");
    server
        .wait_secret((NAMESPACE, "pod-0"), SETTLES, "the new address", told_moved)
        .map_err(|error| format!("{error:#}\n{}", pod.daemon.log()))
        .unwrap();
    let is_well = |status: &Value| status["tailnet"]["secret_error"].is_null();
    pod.wait(SETTLES, "the failure is over", is_well).unwrap();

    // Rights that are taken away stop nothing either.
    server.allow(&account, &[]).unwrap();
    exchange(&peer.underlay.namespace, SocketAddr::new(moved[0], 80)).unwrap();
    assert_eq!(pod.status().unwrap()["ready"], true);
}

/// tailscaled cannot read its state then, and ends at once, again and again.
#[test]
fn a_pod_that_starts_without_the_server_comes_up_when_that_is_there() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let server = tailnet.start_api_server().unwrap();
    let (place, _) = place(&tailnet, &server, "pod-0");
    server.kill().unwrap();
    let pod = place.launch(DATA_PATH).unwrap();
    pod.wait(START, "the failure is told", |status| {
        let error = status["tailnet"]["secret_error"].as_str();
        error.is_some_and(|error| error.contains("tailscale/pod-0")) && status["ready"] == false
    })
    .unwrap();
    server.launch().unwrap();
    pod.wait(SETTLES, "the pod is ready", |status| status["ready"] == true).unwrap();
    let content = told(&server, "pod-0", &["_machinekey", "_profiles", "_current-profile"]);
    assert_eq!(written(&content), plain(identity(&pod.status().unwrap())));
}

/// tailscaled goes on without a state then, and refuses to log in until it is started anew: so it was for a pod that asked an API
/// server which had only just started, and knew no roles yet.
#[test]
fn a_pod_that_may_not_read_its_state_yet_comes_up_as_soon_as_it_may() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let server = tailnet.start_api_server().unwrap();
    let (place, account) = place(&tailnet, &server, "pod-0");
    server.allow(&account, &[]).unwrap();
    let pod = place.launch(DATA_PATH).unwrap();
    pod.wait(START, "tailscaled has no state", |status| {
        let warning = status["tailnet"]["warnings"]["state-store-health"].as_str();
        warning.is_some_and(|warning| warning.contains("pod-0")) && status["ready"] == false
    })
    .unwrap();
    server.allow(&account, &rights("pod-0")).unwrap();
    pod.wait(SETTLES, "the pod is ready", |status| status["ready"] == true).unwrap();
    let content = told(&server, "pod-0", &["_machinekey", "_profiles", "_current-profile"]);
    assert_eq!(written(&content), plain(identity(&pod.status().unwrap())));
    assert_eq!(tailnet.nodes().unwrap().len(), 1, "a node too many");
}

/// A node that upstream's entry point has logged in, its state in the Secret, is taken over: nobody in the tailnet sees more
/// than a short absence.
#[test]
fn a_node_of_upstreams_entry_point_is_taken_over_from_its_secret() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let server = tailnet.start_api_server().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let (place, _) = place(&tailnet, &server, "pod-0");
    let _servers = Servers::new(&place.cluster, HOSTS[1][0], 80).unwrap();

    let command = place.underlay.pod_command(tailnet.program("containerboot")).unwrap();
    let mut upstream = place.underlay.start_pod(command, "containerboot").unwrap();
    let addresses = peer.meet("pod-0").unwrap_or_else(|e| panic!("{e} {}", upstream.log()));
    let theirs = told(&server, "pod-0", &["_machinekey", "_profiles", "_current-profile"]);
    let at = SocketAddr::new(addresses[0], 80);
    let reached = || Client::connect(&peer.underlay.namespace, at).is_ok();
    upstream.wait_for(START, "upstream's entry point forwards", reached).unwrap();
    upstream.signal(Signal::SIGTERM).unwrap();
    upstream.wait(START).unwrap();

    // Without a key: nothing but the Secret can make it that node.
    let pod = place.with("TS_AUTHKEY", "").start(DATA_PATH).unwrap();
    let status = pod.status().unwrap();
    assert_eq!(plain(identity(&status)), written(&theirs), "{status}");
    peer.ping(addresses[0]).unwrap();
    exchange(&peer.underlay.namespace, at).unwrap();
    let ours = told(&server, "pod-0", &[]);
    for key in ["_machinekey", "_current-profile", "device_id", "device_fqdn", "device_ips"] {
        // Not the values: keys are no business of a log.
        assert!(ours.text(key) == theirs.text(key), "{key} has changed");
    }
    assert_eq!(tailnet.nodes().unwrap().len(), 2, "a node too many");
}

/// Rules of the form that a ConfigMap of ours holds: the node's address to one backend.
fn rules(backend: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1\nkind: ProxyRules\ningress:\n- name: default/web\n  frontends: [tailnet]\n  \
         ports: [{{protocol: tcp, port: 80}}, {{protocol: udp, port: 80}}, {{protocol: icmp}}]\n  \
         backends: [{{address: {backend}}}]\n"
    )
}

/// Rules in a ConfigMap: a change is in force within a second, whoever may read that ConfigMap only can follow it, and neither its
/// end nor the API server's takes anything out of force. A pod that starts meanwhile begins with the mounted copy.
#[test]
fn rules_of_a_config_map_are_followed_and_outlive_it() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let server = tailnet.start_api_server().unwrap();
    let peer = tailnet.joined("peer", &[]).unwrap();
    let write = |rules: &str| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"rules.yaml": rules},
            "metadata": {"name": "pod-0-rules", "namespace": NAMESPACE}});
        server.apply(&map).unwrap();
    };
    let leads_only_to = |host: usize| {
        move |status: &Value| {
            status["targets"].as_array().is_some_and(|targets| {
                let is_ours = |target: &&Value| target["rule"] == "default/web";
                let ours: Vec<_> = targets.iter().filter(is_ours).collect();
                matches!(ours.as_slice(), [one] if one["target"] == HOSTS[host][0] && one["installed"] == true)
            })
        }
    };
    let (place, account) = place(&tailnet, &server, "pod-0");
    let read = rule("configmaps", &["pod-0-rules"], &["get", "list", "watch"]);
    let [secret, events] = rights("pod-0");
    server.allow(&account, &[secret, events, read]).unwrap();
    let _servers = [1, 2, 3].map(|host| Servers::new(&place.cluster, HOSTS[host][0], 80).unwrap());
    write(&rules(HOSTS[1][0]));
    let mounted = place.write("mounted/rules.yaml", &rules(HOSTS[3][0])).unwrap();
    let mut pod = place
        .with("TS_DEST_IP", "")
        .with("SLUICE_CONFIG_MAP", "pod-0-rules")
        .with("SLUICE_CONFIG", &mounted.display().to_string())
        .start(DATA_PATH)
        .unwrap();
    pod.wait(CHANGE * 5, "the ConfigMap's rules", leads_only_to(1)).unwrap();
    peer.meet("pod-0").unwrap();
    exchange(&peer.underlay.namespace, frontend(&pod)).unwrap();
    write(&rules(HOSTS[2][0]));
    pod.wait(CHANGE, "the change is in force", leads_only_to(2)).unwrap();
    exchange(&peer.underlay.namespace, frontend(&pod)).unwrap();

    write("kind: nonsense");
    let tells = |what: &'static str| {
        move |status: &Value| {
            let errors = status["tailnet"]["config_errors"].to_string();
            errors.contains(what) && errors.contains("tailscale/pod-0-rules")
        }
    };
    pod.wait(CHANGE, "what is wrong with it is told", tells("nonsense")).unwrap();
    assert!(leads_only_to(2)(&pod.status().unwrap()), "a bad change must change nothing");
    server.delete_config_map(NAMESPACE, "pod-0-rules").unwrap();
    pod.wait(CHANGE, "its end is told", tells("does not exist")).unwrap();
    exchange(&peer.underlay.namespace, frontend(&pod)).unwrap();

    // The server is gone, too. What starts now has the mounted copy, until the server is back.
    server.kill().unwrap();
    exchange(&peer.underlay.namespace, frontend(&pod)).unwrap();
    pod.daemon.kill().unwrap();
    pod.place.underlay.set("TS_KUBE_SECRET", String::new());
    pod.restart(DATA_PATH).unwrap();
    pod.wait(CHANGE * 5, "the mounted rules", leads_only_to(3)).unwrap();
    server.launch().unwrap();
    write(&rules(HOSTS[1][0]));
    pod.wait(SETTLES, "the ConfigMap's rules again", leads_only_to(1)).unwrap();
}
