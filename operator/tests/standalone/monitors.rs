//! How Prometheus' operator finds the metrics of proxies.

use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use serde_json::json;

use crate::{
    cluster::{Cluster, NAMESPACE, PATIENCE, in_cluster},
    services::service,
};

fn api(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("monitoring.coreos.com", "v1", "ServiceMonitor");
    Api::namespaced_with(cluster.client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind))
}

/// The monitors, once there are as many.
async fn monitors(cluster: &Cluster, count: usize) -> Vec<DynamicObject> {
    let wait = async {
        loop {
            let found = api(cluster).list(&ListParams::default()).await;
            match found {
                Ok(found) if found.items.len() == count => return found.items,
                _ => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("not {count} monitors"))
}

async fn class(cluster: &Cluster, monitor: bool) {
    let labels = json!({ "release": "prometheus", "ts_proxy_type": "mine" });
    let spec = json!({ "metrics": { "enable": true,
        "serviceMonitor": { "enable": monitor, "labels": labels } } });
    cluster
        .apply(json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass",
            "metadata": { "name": "seen" }, "spec": spec }))
        .await;
}

/// Makes the cluster one that has ServiceMonitors.
pub(crate) async fn define(cluster: &Cluster) {
    cluster
        .apply(json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "servicemonitors.monitoring.coreos.com" },
            "spec": { "group": "monitoring.coreos.com", "scope": "Namespaced",
                "names": { "kind": "ServiceMonitor", "plural": "servicemonitors" },
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": {
                    "openAPIV3Schema": { "type": "object",
                        "x-kubernetes-preserve-unknown-fields": true } } }] } }))
        .await;
}

#[test]
fn a_monitor_is_made_belongs_to_its_service_and_goes_when_it_is_not_wanted() {
    kernel_or_skip!();
    in_cluster(&["--proxy-default-class", "seen"], async |cluster| {
        define(cluster).await;
        monitors(cluster, 0).await;
        class(cluster, true).await;
        let expose = json!({ "tailscale.com/expose": "true" });
        let spec = json!({ "clusterIP": "10.96.0.90", "ports": [{ "port": 80 }] });
        let object = service("web", expose, spec);
        cluster.apply(object.clone()).await;
        cluster.wait_condition("web", "True/ProxyCreated").await;
        let set = cluster.stateful_set("web").await.name_any();
        let found = monitors(cluster, 1).await;
        let monitor = &found[0];
        assert_eq!(monitor.name_any(), format!("{set}-metrics"));
        let owners = monitor.owner_references();
        assert_eq!((owners[0].kind.as_str(), &owners[0].name), ("Service", &monitor.name_any()));
        // The selector needs its labels: a user's cannot replace them.
        assert_eq!(monitor.labels()["ts_proxy_type"], "ingress_service");
        assert_eq!(monitor.labels()["release"], "prometheus");
        let spec = &monitor.data["spec"];
        assert_eq!(spec["selector"]["matchLabels"]["tailscale.com/metrics-target"], json!(set));
        assert_eq!(spec["namespaceSelector"]["matchNames"], json!([NAMESPACE]));
        assert_eq!(
            (&spec["jobLabel"], &spec["endpoints"]),
            (&json!("ts_prom_job"), &json!([{ "port": "metrics" }]))
        );

        cluster.wait_idle("service").await;
        cluster.take_writes();
        cluster.touch("service", &object, 1).await;
        cluster.wait_idle("service").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());
        class(cluster, false).await;
        monitors(cluster, 0).await;
    });
}
