//! PeerRelays: what is made, what is told, where relays are reached, and the end.
#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use std::time::Duration;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{Secret, Service, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
    runtime::wait::await_condition,
};
use operator::{
    crd::PeerRelay,
    tailnet_api::{DeviceId, Failure, TailnetApi as _, fake::Call},
};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NAMESPACE, PATIENCE, in_cluster},
    cluster_wide::{ClusterWide, condition, wait, wait_so},
    made::Made,
};

impl ClusterWide for PeerRelay {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }
}

fn relay(spec: Value) -> Value {
    json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "PeerRelay",
        "metadata": { "name": "eu" }, "spec": spec })
}

fn two() -> Value {
    let address = |last: &str| json!({ "allocationID": format!("eipalloc-{last}"), "subnetID": format!("subnet-{last}") });
    let annotations = json!({ "service.beta.kubernetes.io/aws-load-balancer-type": "nlb",
        "service.beta.kubernetes.io/aws-load-balancer-attributes": "own=1", "team": "a" });
    relay(json!({ "replicas": 2, "tags": ["tag:relay"], "hostnamePrefix": "relay",
        "service": { "annotations": annotations },
        "aws": { "elasticIPs": [address("0a"), address("0b")] } }))
}

/// The cluster's load balancer gives a Service what it is reached by.
async fn balance(cluster: &Cluster, service: &str, ingress: Value) {
    cluster
        .apply_status(json!({ "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": service, "namespace": NAMESPACE },
            "status": { "loadBalancer": { "ingress": ingress } } }))
        .await;
}

async fn run_pods(cluster: &Cluster, number: i32) {
    cluster
        .apply_status(json!({ "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": { "name": "peerrelay-eu", "namespace": NAMESPACE },
            "status": { "replicas": number, "readyReplicas": number } }))
        .await;
}

async fn config(cluster: &Cluster, ordinal: usize) -> Value {
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let found = secrets.get(&format!("peerrelay-eu-{ordinal}-config")).await.unwrap();
    serde_json::from_slice(&found.data.unwrap()["cap-142.hujson"].0).unwrap()
}

async fn log_in(cluster: &Cluster, ordinal: usize) -> DeviceId {
    let config = config(cluster, ordinal).await;
    let text = |key: &str| config[key].as_str().unwrap().to_owned();
    let device = cluster.tailnet.log_in(&text("AuthKey"), &text("Hostname")).expect("a good key");
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let told = json!({ "stringData": { "device_id": device.id.to_string(), "profile-1": "{}" } });
    let name = format!("peerrelay-eu-{ordinal}");
    secrets.patch(&name, &PatchParams::default(), &Patch::Merge(told)).await.unwrap();
    device.id
}

async fn endpoints(cluster: &Cluster, wanted: Value) -> PeerRelay {
    let is_so = |found: &PeerRelay| {
        let all = found.status.as_ref().map(|status| &status.endpoints);
        serde_json::to_value(all).unwrap() == wanted
    };
    wait_so(cluster, "eu", &wanted.to_string(), is_so).await
}

async fn delete_and_end(cluster: &Cluster) {
    let api: Api<PeerRelay> = Api::all(cluster.client.clone());
    api.delete("eu", &DeleteParams::default()).await.unwrap();
    cluster.end_pods("peerrelay-eu").await;
    let wait = await_condition(api, "eu", |found: Option<&PeerRelay>| found.is_none());
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "it is still there");
    assert_eq!(cluster.left().await, Vec::<String>::new());
}

#[test]
fn relays_are_made_reached_and_go_with_their_devices() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(two()).await;
        let waits: PeerRelay = wait(cluster, "eu", "False/EndpointsPending@1").await;
        assert!(condition(&waits).1.starts_with("0 of 2 relays"), "{:?}", condition(&waits));
        balance(cluster, "peerrelay-eu-1", json!([{ "ip": "192.0.2.2" }])).await;
        let one = json!({ "replica": 1, "address": "192.0.2.2", "port": 41_641 });
        endpoints(cluster, json!([one])).await;
        let both = json!([{ "ip": "192.0.2.9" }, { "ip": "192.0.2.1" }]);
        balance(cluster, "peerrelay-eu-0", both).await;
        let all = json!([{ "replica": 0, "address": "192.0.2.1", "port": 41_641 },
            { "replica": 0, "address": "192.0.2.9", "port": 41_641 }, one]);
        endpoints(cluster, all).await;
        wait::<PeerRelay>(cluster, "eu", "False/PodsPending@1").await;
        Made::with("tailscale.com/parent-resource-type=peerrelay")
            .add::<ServiceAccount>(cluster)
            .await
            .add::<Role>(cluster)
            .await
            .add::<RoleBinding>(cluster)
            .await
            .add::<Service>(cluster)
            .await
            .add::<Secret>(cluster)
            .await
            .add::<StatefulSet>(cluster)
            .await
            .check("peer_relay.yaml");
        log_in(cluster, 0).await;
        log_in(cluster, 1).await;
        run_pods(cluster, 2).await;
        wait::<PeerRelay>(cluster, "eu", "True/PeerRelayReady@1").await;

        cluster.wait_idle("peerrelay").await;
        // What was used is dropped.
        assert!(config(cluster, 0).await.get("AuthKey").is_none());
        cluster.take_writes();
        for number in 0..10 {
            cluster.touch("peerrelay", &two(), number).await;
        }
        cluster.wait_idle("peerrelay").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());

        let mut one = two();
        one["spec"]["replicas"] = json!(1);
        cluster.apply(one).await;
        for name in ["peerrelay-eu-1", "peerrelay-eu-1-config"] {
            cluster.wait_gone::<Secret>(NAMESPACE, name).await;
        }
        cluster.wait_gone::<Service>(NAMESPACE, "peerrelay-eu-1").await;
        let left = cluster.tailnet.devices().await.unwrap();
        assert_eq!(left.iter().map(|one| one.hostname.as_str()).collect::<Vec<_>>(), ["relay-0"]);
        let broken = Failure::Unavailable { problem: "HTTP 500".into(), retry_after: None };
        let pause = Some(Duration::from_millis(300));
        cluster
            .tailnet
            .fail(Call::DeleteDevice, [broken, Failure::RateLimited { retry_after: pause }]);
        delete_and_end(cluster).await;
        assert!(cluster.tailnet.devices().await.unwrap().is_empty());
    });
}

#[test]
fn what_becomes_of_a_peer_relay_is_told() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(relay(json!({ "proxyClass": "none" }))).await;
        let told = condition(&wait::<PeerRelay>(cluster, "eu", "False/PodsPending@1").await).1;
        assert!(told.contains("ProxyClass `none` does not exist"), "{told}");
        assert_eq!(cluster.wait_event("eu", "PodsPending").await, told);
        cluster
            .apply(json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass",
                "metadata": { "name": "none" }, "spec": { "statefulSet": { "labels": { "team": "a" },
                    "pod": { "tailscaleContainer": { "image": "mine:v1" } } } } }))
            .await;
        wait::<PeerRelay>(cluster, "eu", "False/EndpointsPending@1").await;
        let set =
            cluster.wait((NAMESPACE, "peerrelay-eu"), "it is made", |_: &StatefulSet| true).await;
        let container = &set.spec.unwrap().template.spec.unwrap().containers[0];
        assert_eq!(
            (container.name.as_str(), container.image.as_deref()),
            ("tailscaled", Some("mine:v1"))
        );
        assert_eq!(set.metadata.labels.unwrap()["team"], "a");
        let device = log_in(cluster, 0).await;
        cluster.tailnet.delete_device(&device).await.unwrap();
        delete_and_end(cluster).await;

        cluster.apply(relay(json!({ "tailnet": "other" }))).await;
        let told =
            condition(&wait::<PeerRelay>(cluster, "eu", "False/TailnetUnavailable@1").await).1;
        assert!(told.contains("there is no Tailnet \"other\""), "{told}");
        assert_eq!(cluster.wait_event("eu", "TailnetUnavailable").await, told);
        let api: Api<PeerRelay> = Api::all(cluster.client.clone());
        api.delete("eu", &DeleteParams::default()).await.unwrap();
        let wait = await_condition(api, "eu", |found: Option<&PeerRelay>| found.is_none());
        assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "it is still there");
    });
}

#[test]
fn relays_of_upstream_keep_their_device_and_lose_old_configurations() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let labels = json!({ "tailscale.com/managed": "true", "tailscale.com/parent-resource": "eu",
            "tailscale.com/parent-resource-type": "peerrelay" });
        let old = json!({ "cap-145.hujson": "{\"Version\":\"alpha0\",\"Hostname\":\"old\"}" });
        let state = json!({ "device_id": "n7CNTRL", "profile-1": "{}" });
        for (name, data) in [("peerrelay-eu-0", state), ("peerrelay-eu-0-config", old)] {
            cluster
                .apply(json!({ "apiVersion": "v1", "kind": "Secret", "stringData": data,
                    "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels } }))
                .await;
        }
        let found = async || {
            let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
            secrets.get("peerrelay-eu-0-config").await.unwrap().data.unwrap()
        };
        while cluster.context.cache.secrets.state().len() < 2 {
            tokio::task::yield_now().await;
        }
        cluster.apply(relay(json!({}))).await;
        wait::<PeerRelay>(cluster, "eu", "False/EndpointsPending@1").await;
        cluster.wait_idle("peerrelay").await;
        assert_eq!(found().await.keys().collect::<Vec<_>>(), ["cap-142.hujson"]);
        assert!(config(cluster, 0).await.get("AuthKey").is_none());
        assert!(cluster.tailnet.key_requests().is_empty());
    });
}
