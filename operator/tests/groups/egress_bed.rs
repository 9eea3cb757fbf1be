//! Egress Services, and proxies that do what they are told.

#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use crate::{
    bed::{tell, told},
    cluster::{Cluster, NAMESPACE},
};

/// A Service that a group leads to a target.
pub(crate) fn egress(name: &str, group: &str, target: &str, ports: Value) -> Value {
    let key = if target.contains(".ts.net") { "tailnet-fqdn" } else { "tailnet-ip" };
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "shop",
        "annotations": { "tailscale.com/proxy-group": group, format!("tailscale.com/{key}"): target } },
        "spec": { "type": "ExternalName", "externalName": "unused", "ports": ports } })
}

pub(crate) fn conditions(service: &Service) -> [(String, String); 3] {
    let all = service.status.as_ref().and_then(|status| status.conditions.clone());
    let all = all.unwrap_or_default();
    ["Valid", "Configured", "Ready"].map(|kind| told(&all, &format!("TailscaleEgressSvc{kind}")))
}

/// Waits for one of `Valid`, `Configured` and `Ready`; returns the Service.
pub(crate) async fn wait_told(cluster: &Cluster, name: &str, kind: &str, wanted: &str) -> Service {
    let place = ["Valid", "Configured", "Ready"].iter().position(|one| *one == kind).unwrap();
    let what = format!("{kind} {wanted}");
    let is_so = |service: &Service| conditions(service)[place].0.starts_with(wanted);
    cluster.wait(("shop", name), &what, is_so).await
}

/// What was made for a Service.
pub(crate) async fn child(cluster: &Cluster, name: &str) -> Service {
    let api: Api<Service> = cluster.api(NAMESPACE);
    let of = format!("tailscale.com/parent-resource={name},tailscale.com/svc-type=egress");
    let found = api.list(&ListParams::default().labels(&of)).await.unwrap().items;
    assert_eq!(found.len(), 1, "{:?}", found.iter().map(ResourceExt::name_any).collect::<Vec<_>>());
    found.into_iter().next().unwrap()
}

/// The file for a group's proxies.
pub(crate) async fn file(cluster: &Cluster, group: &str) -> Value {
    let api: Api<ConfigMap> = cluster.api(NAMESPACE);
    file_of(&api.get(&format!("{group}-egress-config")).await.unwrap())
}

pub(crate) fn file_of(map: &ConfigMap) -> Value {
    serde_json::from_slice(&map.binary_data.as_ref().unwrap()["egress-services"].0).unwrap()
}

/// A replica does what the file says for these Services, or for all, and tells so.
pub(crate) async fn carry(cluster: &Cluster, group: &str, ordinal: usize, only: Option<&[&str]>) {
    let pods: Api<Pod> = cluster.api(NAMESPACE);
    let pod = pods.get(&format!("{group}-{ordinal}")).await.unwrap();
    let ips = pod.status.unwrap().pod_ips.unwrap_or_default();
    let ip = |v4: bool| ips.iter().map(|one| one.ip.clone()).find(|ip| ip.contains('.') == v4);
    let mut services = json!({});
    for (name, entry) in file(cluster, group).await.as_object().unwrap() {
        if only.is_none_or(|only| only.contains(&name.as_str())) {
            services[name] = json!({ "ports": entry["ports"], "tailnetTarget": entry["tailnetTarget"],
                "tailnetTargetIPs": ["100.64.0.9"] });
        }
    }
    let mut status = json!({ "podIPv4": ip(true).unwrap_or_default(), "services": services });
    if let Some(ip) = ip(false) {
        status["podIPv6"] = json!(ip);
    }
    tell(cluster, group, ordinal, json!({ "egress-services": status.to_string() })).await;
}

/// The addresses that clients of a family are led to.
pub(crate) async fn led_to(cluster: &Cluster, child: &Service, family: &str) -> Vec<String> {
    let api: Api<EndpointSlice> = cluster.api(NAMESPACE);
    let slice = api.get(&format!("{}-{family}", child.name_any())).await.unwrap();
    slice.endpoints.into_iter().flat_map(|one| one.addresses).collect()
}
