//! What users ran into, on a real tailnet; named by the catalogue of cases.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use proxy_testbed::{
    poll_until,
    tailnet::{NodeChange, Tailnet},
    topology::{HOSTS, PROXY_CLUSTER},
    traffic::tcp::{Client, TcpServer},
};
use serde_json::json;

use crate::pod::{CHANGE, KERNEL_PATHS, Place, Servers, exchange, leads_to, serve_all};

/// A cluster whose pods have addresses out of 100.64.0.0/10, as some clouds hand them out.
const OURS: &str = "100.64.8.1";
const THEIRS: &str = "100.64.8.10";

/// R16: a session that the pod itself has begun stays its own when everything that comes to the pod is led elsewhere.
#[test]
fn r16_the_pods_own_sessions_are_not_led_away() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let target = tailnet.joined("target", &[]).unwrap();
    let at = target.addresses().unwrap();
    let _servers = serve_all(&target.underlay.namespace, &at, 80).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let place = Place::new(&tailnet, &format!("pod{index}"))
            .unwrap()
            .with("TS_TAILNET_TARGET_FQDN", "target.tailnet.ts.net");
        let _controllers = HOSTS[3].map(|at| {
            let at = SocketAddr::new(at.parse().unwrap(), 6443).to_string();
            TcpServer::new(&place.cluster, &at).unwrap()
        });
        let controllers = HOSTS[3].map(|at| SocketAddr::new(at.parse().unwrap(), 6443));
        let mut before =
            controllers.map(|at| Client::connect(&place.underlay.namespace, at).unwrap());
        let pod = place.start(data_path).unwrap();
        target.meet(&format!("pod{index}")).unwrap();
        for (controller, before) in controllers.iter().zip(&mut before) {
            before.echo(100_000).map_err(|error| format!("{data_path}: {error}")).unwrap();
            let mut after = Client::connect(&pod.place.underlay.namespace, *controller).unwrap();
            after.echo(100_000).map_err(|error| format!("{data_path}: {error}")).unwrap();
        }
        for at in PROXY_CLUSTER {
            exchange(&pod.place.cluster, SocketAddr::new(at.parse().unwrap(), 80)).unwrap();
        }
        for before in &mut before {
            before.echo(1000).unwrap();
        }
    }
}

/// R36: two replicas of a running group; another Service is added: both serve it, and neither was started anew.
#[test]
fn r36_every_replica_of_a_group_serves_a_service_that_is_added() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let target = tailnet.joined("target", &[]).unwrap();
    let at = target.addresses().unwrap();
    let _servers = serve_all(&target.underlay.namespace, &at, 80).unwrap();
    let service = |port: u16| {
        json!({"tailnetTarget": {"ip": "", "fqdn": "target.tailnet.ts.net"},
               "ports": [{"protocol": "TCP", "matchPort": port, "targetPort": 80}]})
    };
    let one = json!({"default-one": service(10_080)}).to_string();
    let two = json!({"default-one": service(10_080), "default-two": service(10_081)}).to_string();
    let replicas: Vec<_> = ["group-0", "group-1"]
        .map(|name| {
            let place = Place::new(&tailnet, name).unwrap();
            let path = place.write("egress/egress-services", &one).unwrap();
            let directory = path.parent().unwrap().display().to_string();
            place.with("TS_EGRESS_PROXIES_CONFIG_PATH", &directory).start("ebpf").unwrap()
        })
        .into();
    let ids: Vec<_> = replicas.iter().map(|pod| pod.daemon.id()).collect();
    for name in ["group-0", "group-1"] {
        target.meet(name).unwrap();
    }
    for pod in &replicas {
        pod.place.write("egress/egress-services", &two).unwrap();
    }
    for pod in &replicas {
        pod.wait(CHANGE, "the Service is in force", |s| leads_to(s, "default-two", &at)).unwrap();
        for (at, port) in PROXY_CLUSTER.iter().flat_map(|at| [(at, 10_080), (at, 10_081)]) {
            let frontend = SocketAddr::new(at.parse().unwrap(), port);
            Client::connect(&pod.place.cluster, frontend).unwrap().echo(1000).unwrap();
        }
        assert_eq!(pod.status().unwrap()["tailnet"]["restarts"], 0);
    }
    assert_eq!(ids, replicas.iter().map(|pod| pod.daemon.id()).collect::<Vec<_>>());
}

/// R42, as far as the device goes: a pod that has lost its state finds its name taken by the device that it was, and says so;
/// when that is deleted, so is the complaint.
#[test]
fn r42_a_name_that_another_device_has_is_told() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let before = Place::new(&tailnet, "app").unwrap().with("TS_DEST_IP", HOSTS[1][0]);
    let mut before = before.start("ebpf").unwrap();
    let old = tailnet.find("app").unwrap().id;
    assert!(before.status().unwrap()["tailnet"]["name_conflict"].is_null());
    before.daemon.kill().unwrap();
    let again = Place::new(&tailnet, "app").unwrap().with("TS_DEST_IP", HOSTS[1][0]);
    let pod = again.start("ebpf").unwrap();
    let told = pod.status().unwrap()["tailnet"]["name_conflict"].clone();
    assert!(told.as_str().is_some_and(|text| text.contains("app-1")), "{told}");
    tailnet.delete(old).unwrap();
    let id = tailnet.find("app-1").unwrap().id;
    let name = NodeChange { name: Some("app".into()), ..NodeChange::default() };
    tailnet.change(id, &name).unwrap();
    let is_well = |status: &serde_json::Value| status["tailnet"]["name_conflict"].is_null();
    pod.wait(CHANGE * 5, "the name is its own", is_well).unwrap();
}

/// R53: pods in 100.64.8.0/22: what the pod asks a resolver there is answered, clients there are served; but whoever claims
/// to be a device of the tailnet is not.
#[test]
fn r53_a_cluster_within_the_tailnets_range_works_and_forged_devices_do_not() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let target = tailnet.joined("target", &[]).unwrap();
    let at = target.addresses().unwrap();
    let _servers = serve_all(&target.underlay.namespace, &at, 80).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let place = Place::new(&tailnet, &format!("pod{index}"))
            .unwrap()
            .with("POD_IPS", OURS)
            .with("TS_TAILNET_TARGET_IP", &at[0].to_string());
        place.underlay.namespace.ip([format!("address add {OURS}/22 dev eth0").as_str()]).unwrap();
        place
            .cluster
            .ip([
                format!("address add {THEIRS}/22 dev eth0").as_str(),
                &format!("address add {}/32 dev lo", at[0]),
            ])
            .unwrap();
        let _resolver = Servers::new(&place.cluster, THEIRS, 53).unwrap();
        let pod = place.start(data_path).unwrap();
        target.meet(&format!("pod{index}")).unwrap();
        let own = &pod.place.underlay.namespace;
        exchange(own, SocketAddr::new(THEIRS.parse().unwrap(), 53))
            .map_err(|error| format!("{data_path}: {error:#}"))
            .unwrap();
        let frontend = SocketAddr::new(OURS.parse::<IpAddr>().unwrap(), 80);
        exchange(&pod.place.cluster, frontend)
            .map_err(|error| format!("{data_path}: {error:#}\n{}", pod.daemon.log()))
            .unwrap();
        let dropped = || pod.status().unwrap()["drops"]["spoofed_source"].as_u64().unwrap_or(0);
        let before = dropped();
        let forged = pod.place.cluster.enter(|| UdpSocket::bind((at[0], 4000))).unwrap();
        poll_until(Duration::from_secs(3), "the forged source is dropped", || {
            forged.send_to(b"I am a device", frontend).unwrap();
            dropped() > before
        })
        .map_err(|error| format!("{data_path}: {error}"))
        .unwrap();
    }
}
