//! When pods of an egress ProxyGroup count as ready: found out by asking through the Services.

use std::{
    net::{IpAddr, SocketAddr},
    process::Command,
    sync::{Arc, Mutex},
};

use axum::{Router, http::HeaderMap, routing};
use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice};
use kube::ResourceExt as _;
use serde_json::json;

use crate::{
    bed::{group, start_replica},
    cluster::{NAMESPACE, in_cluster},
    egress_bed::{carry, child, egress, wait_told},
};

/// As if the cluster led clients of this address to the pod with that address.
async fn lead(to: Arc<Mutex<String>>, address: IpAddr) {
    let address_and_length = format!("{address}/32");
    let mut add = Command::new("ip");
    add.args(["address", "add", &address_and_length, "dev", "lo"]);
    assert!(add.status().unwrap().success());
    let answer = move || {
        let to = to.lock().unwrap().clone();
        async move { (HeaderMap::from_iter([("pod-ipv4".parse().unwrap(), to.parse().unwrap())]), "ok") }
    };
    let router = Router::new().route("/healthz", routing::get(answer));
    let listener = tokio::net::TcpListener::bind(SocketAddr::new(address, 9002)).await.unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
}

fn is_open(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut all = conditions.into_iter().flatten();
    all.any(|one| one.type_ == "tailscale.com/egress-services" && one.status == "True")
}

#[test]
fn a_pod_is_ready_once_clients_of_its_services_are_led_to_it() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(group("out", json!({ "type": "egress", "replicas": 2 }))).await;
        cluster.stateful_set("out").await;
        // Without Services there is nothing to wait for.
        start_replica(cluster, "out", 0).await;
        cluster.wait((NAMESPACE, "out-0"), "it is ready", is_open).await;
        let ports = json!([{ "port": 80, "protocol": "TCP" }]);
        cluster.apply(egress("web", "out", "100.64.0.9", ports.clone())).await;
        cluster.apply(egress("gone", "out", "gone.tail1.ts.net", ports)).await;
        for name in ["web", "gone"] {
            wait_told(cluster, name, "Configured", "True/").await;
        }
        carry(cluster, "out", 0, Some(&["shop-web"])).await;
        let web = child(cluster, "web").await;
        let address = web.spec.as_ref().unwrap().cluster_ip.as_ref().unwrap().parse().unwrap();
        let answers = Arc::new(Mutex::new("10.244.0.10".to_owned()));
        lead(Arc::clone(&answers), address).await;

        // Another pod answers, and goes on answering for a while: this one waits.
        start_replica(cluster, "out", 1).await;
        carry(cluster, "out", 1, Some(&["shop-web"])).await;
        let name = format!("{}-ipv4", web.name_any());
        let both = |slice: &EndpointSlice| slice.endpoints.len() == 2;
        cluster.wait((NAMESPACE, &name), "both serve", both).await;
        cluster.wait_idle("proxygroup").await;
        let pod: Pod = cluster.api(NAMESPACE).get("out-1").await.unwrap();
        assert!(!is_open(&pod), "nobody is led to it yet");
        "10.244.0.11".clone_into(&mut answers.lock().unwrap());
        // The target that is gone keeps no pod from being ready.
        cluster.wait((NAMESPACE, "out-1"), "it is ready", is_open).await;
        cluster.wait_idle("proxygroup").await;
        cluster.take_writes();
        cluster
            .touch("proxygroup", &group("out", json!({ "type": "egress", "replicas": 2 })), 1)
            .await;
        cluster.wait_idle("proxygroup").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new(), "it is told once");
    });
}
