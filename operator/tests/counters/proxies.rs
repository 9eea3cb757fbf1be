//! Proxies that tell what they are told to tell, and what belongs to them in the cluster.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

use axum::{Json, Router, routing::get};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, TypeMeta},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::bed::NAMESPACE;

/// What a real proxy has told.
const TOLD: &str = include_str!("status.json");

/// A proxy's pod, and who answers there.
pub(crate) struct Proxy {
    told: Arc<Mutex<Value>>,
    serving: JoinHandle<()>,
}

impl Proxy {
    /// One that runs, for this Connector.
    pub(crate) async fn start(client: &Client, connector: &str, ordinal: u8) -> Self {
        let address = Ipv4Addr::new(127, 0, 1, ordinal + 1);
        let told = Arc::new(Mutex::new(serde_json::from_str::<Value>(TOLD).unwrap()));
        let tell = Arc::clone(&told);
        let answer = get(move || {
            let document: Value = tell.lock().unwrap().clone();
            async move { Json(document) }
        });
        let listener = tokio::net::TcpListener::bind((address, 9002)).await.unwrap();
        let router = Router::new().route("/v1/status", answer);
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let name = format!("{connector}-{ordinal}");
        run_pod(client, &name, &labels(connector), &address.to_string()).await;
        Self { told, serving }
    }

    /// Changes what it tells.
    pub(crate) fn tell(&self, pointer: &str, value: Value) {
        *self.told.lock().unwrap().pointer_mut(pointer).unwrap() = value;
    }

    /// What the document of a proxy without a tailnet has not.
    pub(crate) fn tell_targets(&self, targets: Value) {
        self.told.lock().unwrap()["targets"] = targets;
    }

    /// Changes how many packets it has carried.
    pub(crate) fn carried(&self, packets: u64) {
        self.tell("/ports/0/original_packets", json!(packets));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn labels(connector: &str) -> Value {
    json!({ "tailscale.com/managed": "true", "tailscale.com/parent-resource": connector,
        "tailscale.com/parent-resource-ns": "", "tailscale.com/parent-resource-type": "connector" })
}

/// A Connector, and the StatefulSet of its proxies.
pub(crate) async fn make_connector(client: &Client, name: &str) {
    apply(
        client,
        &json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "Connector",
        "metadata": { "name": name }, "spec": { "exitNode": true } }),
    )
    .await;
    let pod = json!({ "metadata": { "labels": { "app": name } },
        "spec": { "containers": [{ "name": "tailscale", "image": "sluice-proxy" }] } });
    apply(client, &json!({ "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels(name) },
        "spec": { "serviceName": name, "selector": { "matchLabels": { "app": name } }, "template": pod } }))
    .await;
}

fn find(client: &Client, object: &Value) -> (Api<DynamicObject>, String) {
    let types: TypeMeta = serde_json::from_value(object.clone()).unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    let api = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    (api, name)
}

async fn apply(client: &Client, object: &Value) {
    let (api, name) = find(client, object);
    api.patch(&name, &PatchParams::apply("user"), &Patch::Apply(object)).await.unwrap();
}

/// A pod that runs at an address, as a kubelet tells.
pub(crate) async fn run_pod(client: &Client, name: &str, labels: &Value, ip: &str) {
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    let object = |part: &str, value: Value| json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, part: value });
    // The only account that there is in a cluster without controllers.
    let mut pod = object(
        "spec",
        json!({ "serviceAccountName": "operator", "automountServiceAccountToken": false,
        "containers": [{ "name": "c", "image": "sluice" }] }),
    );
    pod["metadata"]["labels"] = labels.clone();
    apply(client, &pod).await;
    let running = json!({ "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] });
    let running = object("status", running);
    let (api, name) = find(client, &running);
    let params = PatchParams::apply("kubelet").force();
    api.patch_status(&name, &params, &Patch::Apply(running)).await.unwrap();
}
