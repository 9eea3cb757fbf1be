//! Objects as files, without what differs from run to run.

use std::path::Path;

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Secret, Service, ServiceAccount},
        discovery::v1::EndpointSlice,
        rbac::v1::{Role, RoleBinding},
    },
};
use kube::{Api, Resource, ResourceExt as _, api::ListParams};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE};

/// Compares everything that was made for a parent with a file, or writes the file.
pub(crate) async fn check(cluster: &Cluster, parent: &str, file: &str) {
    let base = cluster.stateful_set(parent).await.name_any();
    let suffix = base.rsplit('-').next().unwrap();
    let all = objects(cluster, parent).await;
    compare("standalone", file, &all, |text| text.replace(&format!("-{suffix}"), "-SUFFIX"));
}

/// Everything that was made for a parent.
pub(crate) async fn objects(cluster: &Cluster, parent: &str) -> Vec<Value> {
    let mut all = Vec::new();
    add::<ServiceAccount>(cluster, parent, &mut all).await;
    add::<Role>(cluster, parent, &mut all).await;
    add::<RoleBinding>(cluster, parent, &mut all).await;
    add::<Service>(cluster, parent, &mut all).await;
    add::<Secret>(cluster, parent, &mut all).await;
    add::<ConfigMap>(cluster, parent, &mut all).await;
    add::<EndpointSlice>(cluster, parent, &mut all).await;
    add::<StatefulSet>(cluster, parent, &mut all).await;
    all
}

/// Compares objects with a file of a test target, or writes the file. What differs from run to run is hidden first.
pub(crate) fn compare(
    target: &str,
    file: &str,
    all: &[Value],
    hide: impl FnOnce(String) -> String,
) {
    let documents: Vec<String> =
        all.iter().map(|object| serde_saphyr::to_string(object).unwrap()).collect();
    let found = hide(documents.join("---\n"));
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(target);
    let path = directory.join("golden").join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &found).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(wanted == found, "{}: run with UPDATE_GOLDEN=1 and review\n{found}", path.display());
}

async fn add<K>(cluster: &Cluster, parent: &str, all: &mut Vec<Value>)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let of = |key: &str| format!("{key}={parent}");
    for labels in [of("tailscale.com/parent-resource"), of("ts_proxy_parent_name")] {
        let found = api.list(&ListParams::default().labels(&labels)).await.unwrap();
        for object in found.items {
            all.push(wanted_part(&serde_json::to_value(object).unwrap()));
        }
    }
}

/// The fields of an object that the operator owns, and which object it is.
pub(crate) fn owned_part(object: &Value) -> Value {
    let fields = object["metadata"]["managedFields"].as_array().unwrap();
    let own = fields.iter().find(|entry| entry["manager"] == "sluice-operator").unwrap();
    let mut part = owned(&own["fieldsV1"], object);
    for (key, value) in [("apiVersion", &object["apiVersion"]), ("kind", &object["kind"])] {
        part[key] = value.clone();
    }
    part["metadata"]["name"] = object["metadata"]["name"].clone();
    part
}

fn wanted_part(object: &Value) -> Value {
    let mut part = owned_part(object);
    for key in ["data", "binaryData"] {
        let Some(data) = part.get_mut(key).and_then(Value::as_object_mut) else { continue };
        for value in data.values_mut() {
            let bytes: k8s_openapi::ByteString = serde_json::from_value(value.clone()).unwrap();
            *value = serde_json::from_slice(&bytes.0).unwrap();
        }
    }
    hide_uid(&mut part, &object["metadata"]["labels"]["tailscale.com/parent-resource"]);
    part
}

fn owned(fields: &Value, object: &Value) -> Value {
    let fields = fields.as_object().unwrap();
    if fields.keys().all(|key| !key.contains(':')) {
        return object.clone();
    }
    if let Value::Array(items) = object {
        let mut part = Vec::new();
        for item in items {
            for (key, below) in fields {
                let own = format!("v:{item}");
                if *key == own {
                    part.push(item.clone());
                }
                let Some(keys) = key.strip_prefix("k:") else { continue };
                let keys: Value = serde_json::from_str(keys).unwrap();
                if keys.as_object().unwrap().iter().all(|(key, value)| item[key] == *value) {
                    part.push(owned(below, item));
                }
            }
        }
        return Value::Array(part);
    }
    let mut part = json!({});
    for (key, below) in fields {
        if let Some(name) = key.strip_prefix("f:") {
            part[name] = owned(below, &object[name]);
        }
    }
    part
}

/// UIDs are of a run.
fn hide_uid(value: &mut Value, parent: &Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                if (key == "app" || key == "uid") && value.is_string() {
                    *value = json!(format!("UID of {}", parent.as_str().unwrap_or("parent")));
                } else {
                    hide_uid(value, parent);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| hide_uid(item, parent)),
        _ => {}
    }
}
