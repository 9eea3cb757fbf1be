//! What a cluster does for ProxyGroups besides the operator: pods that start, log in, carry and end.

#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{Pod, Secret},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use operator::{crd::ProxyGroup, tailnet_api::TailnetApi as _};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NAMESPACE},
    cluster_wide::{ClusterWide, wait_so},
};

impl ClusterWide for ProxyGroup {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }
}

pub(crate) fn group(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup",
        "metadata": { "name": name }, "spec": spec })
}

/// A condition as `Status/Reason`, and its message.
pub(crate) fn told(conditions: &[Condition], kind: &str) -> (String, String) {
    let found = conditions.iter().find(|each| each.type_ == kind);
    found
        .map(|each| (format!("{}/{}", each.status, each.reason), each.message.clone()))
        .unwrap_or_default()
}

/// Waits for `ProxyGroupReady`; returns the group.
pub(crate) async fn wait_ready(cluster: &Cluster, name: &str, wanted: &str) -> ProxyGroup {
    let is_so = |group: &ProxyGroup| told(group.conditions(), "ProxyGroupReady").0 == wanted;
    wait_so(cluster, name, wanted, is_so).await
}

/// Waits for `ProxyGroupReady` and returns what it says.
pub(crate) async fn wait_told(cluster: &Cluster, name: &str, wanted: &str) -> String {
    told(wait_ready(cluster, name, wanted).await.conditions(), "ProxyGroupReady").1
}

/// A replica's pod is made, as the StatefulSet says.
pub(crate) async fn start_pod(cluster: &Cluster, group: &str, ordinal: usize, ips: &[&str]) -> Pod {
    let set: StatefulSet = cluster.api(NAMESPACE).get(group).await.unwrap();
    let template = set.spec.unwrap().template;
    let mut metadata = template.metadata.unwrap();
    let name = format!("{group}-{ordinal}");
    metadata.name = Some(name.clone());
    let labels = metadata.labels.get_or_insert_default();
    labels.insert("apps.kubernetes.io/pod-index".into(), ordinal.to_string());
    labels.insert("statefulset.kubernetes.io/pod-name".into(), name.clone());
    let mut spec = template.spec.unwrap();
    spec.node_name = Some("node".into());
    let pod = Pod { metadata, spec: Some(spec), status: None };
    let api: Api<Pod> = cluster.api(NAMESPACE);
    api.create(&PostParams::default(), &pod).await.unwrap();
    let ips: Vec<_> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
    let status = json!({ "status": { "phase": "Running", "podIP": ips.first().map(|ip| ip["ip"].clone()),
        "podIPs": ips } });
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap()
}

/// A replica starts: its pod is made, it logs in with the key that it was given, and tells so in its Secret. Returns its ID.
pub(crate) async fn start_replica(cluster: &Cluster, group: &str, ordinal: usize) -> String {
    let number = ordinal + 10;
    let ips = [format!("10.244.0.{number}"), format!("fd00:244::{number}")];
    let pod = start_pod(cluster, group, ordinal, &[&ips[0], &ips[1]]).await;
    log_in(cluster, group, ordinal, &pod).await
}

/// Logs in with the key that it was given, and tells so.
pub(crate) async fn log_in(cluster: &Cluster, group: &str, ordinal: usize, pod: &Pod) -> String {
    let config = config(cluster, group, ordinal).await;
    let text = |key: &str| config[key].as_str().unwrap_or_else(|| panic!("no {key}"));
    let device = cluster.tailnet.log_in(text("AuthKey"), text("Hostname")).expect("a good key");
    let id = device.id.to_string();
    let told = json!({
        "device_id": id, "device_fqdn": format!("{}.", device.name), "pod_uid": pod.uid(),
        "device_ips": serde_json::to_string(&device.addresses).unwrap(), "profile-1": "{}",
    });
    tell(cluster, group, ordinal, told).await;
    id
}

/// A replica writes into its Secret.
pub(crate) async fn tell(cluster: &Cluster, group: &str, ordinal: usize, told: Value) {
    let api: Api<Secret> = cluster.api(NAMESPACE);
    let params =
        PatchParams { field_manager: Some("tailscale-container".into()), ..Default::default() };
    let patch = Patch::Merge(json!({ "stringData": told }));
    api.patch(&format!("{group}-{ordinal}"), &params, &patch).await.unwrap();
}

/// The configuration of a replica.
pub(crate) async fn config(cluster: &Cluster, group: &str, ordinal: usize) -> Value {
    let api: Api<Secret> = cluster.api(NAMESPACE);
    config_of(&api.get(&format!("{group}-{ordinal}-config")).await.unwrap())
}

pub(crate) fn config_of(secret: &Secret) -> Value {
    serde_json::from_slice(&secret.data.as_ref().unwrap()["cap-106.hujson"].0).unwrap()
}

/// A pod ends at once.
pub(crate) async fn end_pod(cluster: &Cluster, name: &str) {
    let api: Api<Pod> = cluster.api(NAMESPACE);
    api.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
}

pub(crate) async fn devices(cluster: &Cluster) -> Vec<String> {
    let all = cluster.tailnet.devices().await.unwrap();
    all.into_iter().map(|device| device.id.to_string()).collect()
}

/// Everything of the operator's is gone, but what nobody owns.
pub(crate) async fn assert_nothing_left(cluster: &Cluster) {
    assert_eq!(cluster.left().await, Vec::<String>::new());
}
