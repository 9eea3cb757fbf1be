//! Sees when every object's status is right.

use std::{collections::HashMap, time::Instant};

use anyhow::{Context, Result};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{core::v1::Service, networking::v1::Ingress};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use operator::crd::Connector;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::load::{Load, NAMESPACE};

/// Waits until all are right; returns when the last one was.
pub async fn wait(client: &Client, load: &Load) -> Result<Instant> {
    let wanted = load.services + load.egress + load.ingresses + load.connectors;
    let mut changes = stream::select_all([
        states::<Service>(Api::namespaced(client.clone(), NAMESPACE)),
        states::<Ingress>(Api::namespaced(client.clone(), NAMESPACE)),
        states::<Connector>(Api::all(client.clone())),
    ]);
    let mut right = HashMap::new();
    let mut count = 0;
    while let Some(change) = changes.next().await {
        let (name, is_right) = change?;
        let before = right.insert(name, is_right).unwrap_or_default();
        count = count + usize::from(is_right) - usize::from(before);
        if count == wanted {
            return Ok(Instant::now());
        }
    }
    anyhow::bail!("the watches have ended")
}

/// What is not right.
pub async fn missing(client: &Client, load: &Load) -> Result<String> {
    let all = kube::api::ListParams::default();
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let ingresses: Api<Ingress> = Api::namespaced(client.clone(), NAMESPACE);
    let connectors: Api<Connector> = Api::all(client.clone());
    let mut open = Vec::new();
    for service in services.list(&all).await?.items {
        open.extend(judge(&service)?);
    }
    for ingress in ingresses.list(&all).await?.items {
        open.extend(judge(&ingress)?);
    }
    for connector in connectors.list(&all).await?.items {
        open.extend(judge(&connector)?);
    }
    let wrong: Vec<_> =
        open.into_iter().filter(|(_, right)| !right).map(|(name, _)| name).collect();
    let some = wrong.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    Ok(format!("{} of {load:?}, such as {some}", wrong.len()))
}

fn states<K>(api: Api<K>) -> stream::BoxStream<'static, Result<(String, bool)>>
where
    K: Resource<DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Serialize
        + std::fmt::Debug
        + Send
        + 'static,
{
    fn boxed<T>(stream: impl Stream<Item = T> + Send + 'static) -> stream::BoxStream<'static, T> {
        stream.boxed()
    }
    let changes = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
    boxed(
        changes.map(|object| object.context("watch")).try_filter_map(async |object| judge(&object)),
    )
}

/// An object's name and whether it is right; nothing of what is not asked about.
fn judge<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Result<Option<(String, bool)>> {
    let name = object.name_any();
    let value = serde_json::to_value(object)?;
    let is_right = match name.split('-').next() {
        Some("web" | "site") => has_address(&value),
        Some("out") => holds(&value, "TailscaleEgressSvcConfigured"),
        Some("router") => holds(&value, "ConnectorReady"),
        _ => return Ok(None),
    };
    Ok(Some((format!("{} {name}", K::kind(&())), is_right)))
}

fn has_address(object: &Value) -> bool {
    let first = object.pointer("/status/loadBalancer/ingress/0/hostname");
    first.and_then(Value::as_str).is_some_and(|name| !name.is_empty())
}

fn holds(object: &Value, kind: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| {
        let is = |field: &str, text: &str| one.get(field).is_some_and(|value| value == text);
        is("type", kind) && is("status", "True")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn right_is_what_users_wait_for() {
        let told = json!({ "status": { "loadBalancer": { "ingress": [{ "hostname": "a.b" }] } } });
        assert!(has_address(&told));
        assert!(!has_address(
            &json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "1" }] } } })
        ));
        let condition = |status: &str| {
            json!({ "status": { "conditions": [
            { "type": "ConnectorReady", "status": status } ] } })
        };
        assert!(holds(&condition("True"), "ConnectorReady"));
        assert!(!holds(&condition("False"), "ConnectorReady"));
        assert!(!holds(&condition("True"), "Other"));
    }
}
