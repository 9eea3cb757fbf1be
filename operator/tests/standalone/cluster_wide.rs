//! What is in no namespace.

use std::fmt::Debug;

use k8s_openapi::{ClusterResourceScope, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams},
    runtime::wait::await_condition,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::cluster::{Cluster, PATIENCE};

/// A kind without namespaces, with conditions.
pub(crate) trait ClusterWide:
    Resource<DynamicType = (), Scope = ClusterResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + 'static
{
    fn conditions(&self) -> &[Condition];
}

/// Its only condition as `Status/Reason@generation`, and its message.
pub(crate) fn condition<K: ClusterWide>(object: &K) -> (String, String) {
    let Some(condition) = object.conditions().first() else { return Default::default() };
    let generation = condition.observed_generation.unwrap_or_default();
    let text = format!("{}/{}@{generation}", condition.status, condition.reason);
    (text, condition.message.clone())
}

/// Waits for the condition of an object; returns the object.
pub(crate) async fn wait<K: ClusterWide>(cluster: &Cluster, name: &str, wanted: &str) -> K {
    wait_so(cluster, name, wanted, |found: &K| condition(found).0 == wanted).await
}

/// Waits until an object is so; returns it.
pub(crate) async fn wait_so<K: ClusterWide>(
    cluster: &Cluster,
    name: &str,
    what: &str,
    is_so: impl Fn(&K) -> bool + Send + Sync,
) -> K {
    let api: Api<K> = Api::all(cluster.client.clone());
    let wait = await_condition(api.clone(), name, |found: Option<&K>| found.is_some_and(&is_so));
    if let Ok(found) = tokio::time::timeout(PATIENCE, wait).await {
        return found.unwrap().unwrap();
    }
    let there = api.list(&ListParams::default()).await.unwrap().items;
    let all: Vec<_> = there.iter().map(|one| (&one.meta().name, condition(one))).collect();
    panic!("{what}: not seen of {} {name}: {all:?}", K::kind(&()));
}

/// Deletes an object and waits until it is gone.
pub(crate) async fn delete<K: ClusterWide>(cluster: &Cluster, name: &str) {
    let api: Api<K> = Api::all(cluster.client.clone());
    api.delete(name, &DeleteParams::default()).await.unwrap();
    let wait = await_condition(api, name, |found: Option<&K>| found.is_none());
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "{name} is still there");
}
