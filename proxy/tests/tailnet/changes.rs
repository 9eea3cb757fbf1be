//! Targets that change: the rules equal the desired state after each step, in less than a second, and no other is touched.

use std::net::{IpAddr, SocketAddr};

use proxy_testbed::{
    Namespace,
    tailnet::{NodeChange, Tailnet},
    topology::PROXY_CLUSTER,
    traffic::tcp::Client,
};
use serde_json::json;

use crate::pod::{CHANGE, KERNEL_PATHS, Place, Pod, leads_to, serve_all};

fn frontend(port: u16) -> SocketAddr {
    SocketAddr::new(PROXY_CLUSTER[0].parse().unwrap(), port)
}

/// R23, R25, R27: a target changes its address, disappears and comes back; another in the same pod never notices.
#[test]
fn a_target_moves_disappears_and_comes_back() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let steady = tailnet.joined("steady", &[]).unwrap();
    let steady_at = steady.addresses().unwrap();
    let _servers = serve_all(&steady.underlay.namespace, &steady_at, 80).unwrap();
    for (index, data_path) in KERNEL_PATHS.iter().enumerate() {
        let name = format!("moving{index}");
        let moving = tailnet.joined(&name, &[]).unwrap();
        let service = |fqdn: &str, port: u16| {
            json!({"tailnetTarget": {"ip": "", "fqdn": fqdn},
                   "ports": [{"protocol": "TCP", "matchPort": port, "targetPort": 80}]})
        };
        let place = Place::new(&tailnet, &format!("pod{index}")).unwrap();
        let file = json!({"moving": service(&format!("{name}.tailnet.ts.net"), 10_080),
                          "steady": service("steady.tailnet.ts.net", 10_081)});
        let path = place.write("egress/egress-services", &file.to_string()).unwrap();
        let directory = path.parent().unwrap().display().to_string();
        let pod = place.with("TS_EGRESS_PROXIES_CONFIG_PATH", &directory).start(data_path).unwrap();
        for node in [&steady, &moving] {
            node.meet(&format!("pod{index}")).unwrap();
        }
        let mut kept = Client::connect(&pod.place.cluster, frontend(10_081)).unwrap();
        let first = moving.addresses().unwrap();
        reaches(&pod, &moving.underlay.namespace, &first);

        let id = tailnet.find(&name).unwrap().id;
        let second: [IpAddr; 2] =
            [format!("100.64.7.{}", index + 1), format!("fd7a:115c:a1e0::7:{}", index + 1)]
                .map(|text| text.parse().unwrap());
        let change = NodeChange { addresses: Some(second), ..NodeChange::default() };
        tailnet.change(id, &change).unwrap();
        pod.wait(CHANGE, "the new address", |s| leads_to(s, "moving", &second)).unwrap();
        moving
            .wait_status("its new address", |status| {
                status
                    .pointer("/Self/TailscaleIPs/0")
                    .is_some_and(|at| *at == second[0].to_string())
            })
            .unwrap();
        reaches(&pod, &moving.underlay.namespace, &second);
        kept.echo(1000).unwrap();

        // Gone: refused at once, told, and the other target serves on.
        tailnet.delete(id).unwrap();
        pod.wait(CHANGE, "no address", |s| leads_to(s, "moving", &[])).unwrap();
        let status = pod.status().unwrap();
        assert_eq!(status["targets"][0]["reason"], "unresolved", "{}", status["targets"]);
        assert_eq!(status["ready"], true, "one target of two is no reason to be unready");
        assert!(Client::connect(&pod.place.cluster, frontend(10_080)).is_err());
        kept.echo(1000).unwrap();

        let again = tailnet.joined(&name, &[]);
        let again = again.or_else(|_| tailnet.joined(&name, &[])).unwrap();
        again.meet(&format!("pod{index}")).unwrap();
        let third = again.addresses().unwrap();
        pod.wait(CHANGE * 2, "it is back", |s| leads_to(s, "moving", &third)).unwrap();
        reaches(&pod, &again.underlay.namespace, &third);
        kept.echo(1000).unwrap();
    }
}

/// Asserts that the moving target's port leads to a server that listens on one of these addresses.
fn reaches(pod: &Pod, target: &Namespace, at: &[IpAddr]) {
    let servers = serve_all(target, at, 80).unwrap();
    let mut client = Client::connect(&pod.place.cluster, frontend(10_080))
        .map_err(|error| format!("{error}\n{}", pod.daemon.log()))
        .unwrap();
    assert!(at.contains(&client.server.ip().to_canonical()), "{} of {at:?}", client.server);
    client.echo(10_000).unwrap();
    drop(servers);
}
