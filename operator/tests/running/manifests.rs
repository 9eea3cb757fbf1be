//! Everything that users may apply is taken by a real API server as it is: what the chart renders, the manifests made of
//! it, and every example.

use std::path::{Path, PathBuf};

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, TypeMeta},
    core::GroupVersionKind,
    discovery,
};
use serde_json::{Value, json};

use crate::bed::{NAMESPACE, in_cluster};

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The objects of every file of a folder, with the file's name.
fn objects(path: &str) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder(path)).unwrap() {
        let file = entry.unwrap().path();
        let text = std::fs::read_to_string(&file).unwrap();
        let name = format!("{path}/{}", file.file_name().unwrap().to_str().unwrap());
        let found: Vec<Value> =
            serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        all.extend(found.into_iter().filter(|object| !object.is_null()).map(|o| (name.clone(), o)));
    }
    all
}

/// Has it checked, with unknown fields as errors, and keeps nothing.
async fn check(client: &Client, object: &Value) -> Result<(), kube::Error> {
    let types: TypeMeta = serde_json::from_value(object.clone()).unwrap();
    let kind = GroupVersionKind::try_from(&types).unwrap();
    let (resource, capabilities) = discovery::pinned_kind(client, &kind).await?;
    let api = api(client, object, &resource, capabilities.scope == discovery::Scope::Cluster);
    let mut params = PatchParams::apply("user").dry_run().force();
    params.field_validation = Some(kube::api::ValidationDirective::Strict);
    let name = object["metadata"]["name"].as_str().unwrap();
    api.patch(name, &params, &Patch::Apply(object)).await.map(drop)
}

fn api(
    client: &Client,
    object: &Value,
    resource: &ApiResource,
    is_whole: bool,
) -> Api<DynamicObject> {
    if is_whole {
        return Api::all_with(client.clone(), resource);
    }
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    Api::namespaced_with(client.clone(), namespace, resource)
}

/// A definition of a kind of somebody else's.
fn service_monitors() -> Value {
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "servicemonitors.monitoring.coreos.com" },
        "spec": { "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": { "kind": "ServiceMonitor", "plural": "servicemonitors" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": {
                "openAPIV3Schema": { "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true } } }] } })
}

#[test]
fn the_api_server_takes_whatever_is_there_to_be_applied() {
    kernel_or_skip!();
    in_cluster(async |bed| {
        bed.server.apply(&service_monitors()).unwrap();
        let mut all = objects("deploy/manifests");
        all.extend(objects("xtask/tests/chart/golden"));
        all.extend(objects("deploy/examples/operator"));
        assert!(all.len() > 80, "{}", all.len());
        let kinds = [
            "Connector",
            "DNSConfig",
            "PeerRelay",
            "ProxyClass",
            "ProxyGroup",
            "ProxyGroupPolicy",
            "Recorder",
            "Tailnet",
        ];
        for kind in kinds {
            assert!(all.iter().any(|(_, object)| object["kind"] == kind), "no example of {kind}");
        }
        let mut refused = Vec::new();
        for (file, object) in &all {
            let mut answer = check(&bed.client, object).await;
            // A definition is served a moment after it was made.
            let deadline = std::time::Instant::now() + proxy_testbed::DEADLINE;
            while matches!(&answer, Err(kube::Error::Api(status)) if status.code == 404)
                && std::time::Instant::now() < deadline
            {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                answer = check(&bed.client, object).await;
            }
            if let Err(error) = answer {
                refused.push(format!(
                    "{file}: {} {}: {error}",
                    object["kind"], object["metadata"]["name"]
                ));
            }
        }
        assert!(refused.is_empty(), "{}", refused.join("\n"));
        assert_eq!(NAMESPACE, "tailscale", "where the manifests are");
    });
}
