//! Fixed addresses of replicas, through node ports.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Node, Secret, Service},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use operator::crd::ProxyGroup;
use serde_json::{Value, json};

use crate::{
    bed::{config_of, group, start_replica, wait_told},
    cluster::{Cluster, NAMESPACE, in_cluster},
    cluster_wide::wait_so,
};

async fn node(cluster: &Cluster, name: &str, labels: Value, address: &str) {
    let api: Api<Node> = Api::all(cluster.client.clone());
    let node = serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } }));
    api.create(&PostParams::default(), &node.unwrap()).await.unwrap();
    let status = json!({ "status": { "addresses": [
        { "type": "InternalIP", "address": "10.0.0.1" },
        { "type": "ExternalIP", "address": address },
    ] } });
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

fn class(ports: Option<Value>) -> Value {
    let spec = ports.map_or_else(
        || json!({}),
        |ports| {
            let selector = json!({ "edge": "yes" });
            json!({ "staticEndpoints": { "nodePort": { "ports": ports, "selector": selector } } })
        },
    );
    json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass",
        "metadata": { "name": "fixed" }, "spec": spec })
}

fn endpoints(secret: &Secret) -> Vec<String> {
    serde_json::from_value(config_of(secret)["StaticEndpoints"].clone()).unwrap_or_default()
}

#[test]
fn each_replica_has_a_node_port_at_external_addresses() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(class(Some(json!([{ "port": 30100 }])))).await;
        let spec = json!({ "type": "ingress", "proxyClass": "fixed" });
        cluster.apply(group("pg", spec.clone())).await;
        // What is missing is told, and a change of it is noticed.
        let why = wait_told(cluster, "pg", "False/ProxyGroupCreationFailed").await;
        assert!(why.contains("no node that spec.staticEndpoints.nodePort.selector"), "{why}");
        node(cluster, "a", json!({ "edge": "yes" }), "203.0.113.1").await;
        let few = |group: &ProxyGroup| {
            let conditions = &group.status.as_ref().unwrap().conditions;
            conditions.iter().any(|one| one.message.contains("no port left for replica 1 of 2"))
        };
        wait_so(cluster, "pg", "too few ports", few).await;
        let note = cluster.events("pg", "ProxyGroupCreationFailed").await;
        assert!(note.iter().any(|note| note.contains("add ports")), "{note:?}");
        cluster
            .apply(class(Some(json!([{ "port": 30100 }, { "port": 30200, "endPort": 30201 }]))))
            .await;
        let set = cluster.stateful_set("pg").await;
        let at = |port: u16| vec![format!("203.0.113.1:{port}")];
        for (ordinal, port) in [(0, 30100), (1, 30200)] {
            let name = format!("pg-{ordinal}-config");
            let is_there = |secret: &Secret| endpoints(secret) == at(port);
            cluster.wait((NAMESPACE, &name), "its address", is_there).await;
            let service: Service =
                cluster.api(NAMESPACE).get(&format!("pg-{ordinal}-nodeport")).await.unwrap();
            let spec = service.spec.unwrap();
            let found = &spec.ports.unwrap()[0];
            assert_eq!(
                (found.node_port, found.protocol.as_deref()),
                (Some(port.into()), Some("UDP"))
            );
            let pod = &spec.selector.unwrap()["statefulset.kubernetes.io/pod-name"];
            assert_eq!(*pod, format!("pg-{ordinal}"));
            let env = set.spec.clone().unwrap().template.spec.unwrap().containers[0].env.clone();
            let port = env.unwrap().into_iter().find(|one| one.name == "PORT").unwrap().value;
            assert_eq!(port, Some(found.port.to_string()));
        }
        start_replica(cluster, "pg", 0).await;
        let told = |group: &ProxyGroup| {
            let devices = &group.status.as_ref().unwrap().devices;
            devices.first().is_some_and(|one| one.static_endpoints == at(30100))
        };
        wait_so(cluster, "pg", "it is told", told).await;
        // Another node adds an address; the one that was there stays first. Others are not selected.
        node(cluster, "b", json!({}), "203.0.113.9").await;
        node(cluster, "0", json!({ "edge": "yes" }), "203.0.113.2").await;
        let both = ["203.0.113.1:30100", "203.0.113.2:30100"];
        let is_there = |secret: &Secret| endpoints(secret) == both;
        cluster.wait((NAMESPACE, "pg-0-config"), "both addresses", is_there).await;
        // Without them all of it goes.
        cluster.apply(group("pg", json!({ "type": "ingress" }))).await;
        for ordinal in 0..2 {
            cluster.wait_gone::<Service>(NAMESPACE, &format!("pg-{ordinal}-nodeport")).await;
        }
        let none = |secret: &Secret| endpoints(secret).is_empty();
        cluster.wait((NAMESPACE, "pg-0-config"), "no address", none).await;
        let set: StatefulSet = cluster.api(NAMESPACE).get("pg").await.unwrap();
        assert!(!serde_json::to_string(&set).unwrap().contains("\"PORT\""));
    });
}
