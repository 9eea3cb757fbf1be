//! Connectors: what is made, what is told, and what goes with replicas.
#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Secret};
use kube::{Api, ResourceExt as _, api::DeleteParams, runtime::wait::await_condition};
use operator::{crd::Connector, tailnet_api::TailnetApi as _};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NAMESPACE, PATIENCE, in_cluster},
    golden,
};

fn connector(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "Connector",
        "metadata": { "name": name }, "spec": spec })
}

/// Its condition as `Status/Reason@generation` and its message.
fn condition(connector: &Connector) -> (String, String) {
    let all = connector.status.as_ref().map_or(&[][..], |status| &status.conditions);
    all.iter()
        .find(|condition| condition.type_ == "ConnectorReady")
        .map(|condition| {
            let generation = condition.observed_generation.unwrap_or_default();
            let text = format!("{}/{}@{generation}", condition.status, condition.reason);
            (text, condition.message.clone())
        })
        .unwrap_or_default()
}

async fn wait(
    cluster: &Cluster,
    name: &str,
    what: &str,
    is_so: impl Fn(&Connector) -> bool + Send + Sync,
) -> Connector {
    let api: Api<Connector> = Api::all(cluster.client.clone());
    let wait =
        await_condition(api.clone(), name, |found: Option<&Connector>| found.is_some_and(&is_so));
    if let Ok(found) = tokio::time::timeout(PATIENCE, wait).await {
        return found.unwrap().unwrap();
    }
    panic!("{what}: not seen of {:?}", api.get(name).await.unwrap().status);
}

async fn wait_condition(cluster: &Cluster, name: &str, wanted: &str) -> Connector {
    wait(cluster, name, wanted, |found| condition(found).0 == wanted).await
}

async fn wait_gone(cluster: &Cluster, name: &str) {
    let api: Api<Connector> = Api::all(cluster.client.clone());
    let wait = await_condition(api, name, |found: Option<&Connector>| found.is_none());
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "{name} is still there");
}

async fn delete(cluster: &Cluster, name: &str) {
    let api: Api<Connector> = Api::all(cluster.client.clone());
    api.delete(name, &DeleteParams::default()).await.unwrap();
}

#[test]
fn a_subnet_router_has_as_many_devices_as_replicas() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let of = |replicas: i32| {
            connector(
                "prod",
                json!({ "hostnamePrefix": "ts-prod", "replicas": replicas, "exitNode": true,
                "tags": ["tag:prod"], "subnetRouter": { "advertiseRoutes": ["192.0.2.0/24", "10.0.0.0/8"] } }),
            )
        };
        cluster.apply(of(2)).await;
        let made = wait_condition(cluster, "prod", "True/ConnectorCreated@1").await;
        let status = made.status.unwrap();
        assert_eq!(status.subnet_routes.as_deref(), Some("192.0.2.0/24,10.0.0.0/8"));
        assert_eq!((status.is_exit_node, status.is_app_connector), (Some(true), Some(false)));
        assert!(status.devices.is_empty());
        golden::check(cluster, "prod", "connector.yaml").await;
        let set = cluster.stateful_set("prod").await.name_any();
        for ordinal in [1, 0] {
            cluster.start_proxy(&format!("{set}-{ordinal}")).await;
        }
        let both = wait(cluster, "prod", "two devices", |found| {
            found.status.as_ref().is_some_and(|status| status.devices.len() == 2)
        })
        .await;
        let status = both.status.unwrap();
        let names: Vec<_> =
            status.devices.iter().map(|device| device.hostname.clone().unwrap()).collect();
        assert_eq!(names, ["ts-prod-0.tailnet.ts.net", "ts-prod-1.tailnet.ts.net"]);
        assert_eq!(status.hostname.as_ref(), Some(&names[0]));
        assert_eq!(
            (&status.tailnet_ips, status.tailnet_ips.len()),
            (&status.devices[0].tailnet_ips, 2)
        );

        cluster.wait_idle("connector").await;
        cluster.take_writes();
        for number in 0..10 {
            cluster.touch("connector", &of(2), number).await;
        }
        cluster.wait_idle("connector").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());

        // One is too many: its device goes, the other stays.
        cluster.apply(of(1)).await;
        cluster.wait_gone::<Secret>(NAMESPACE, &format!("{set}-1")).await;
        wait(cluster, "prod", "one device", |found| {
            found.status.as_ref().is_some_and(|status| status.devices.len() == 1)
        })
        .await;
        let left = cluster.tailnet.devices().await.unwrap();
        assert_eq!(
            left.iter().map(|device| device.hostname.as_str()).collect::<Vec<_>>(),
            ["ts-prod-0"]
        );
        // None: no pod is left that would start again and again.
        cluster.apply(of(0)).await;
        cluster
            .wait((NAMESPACE, &set), "no replicas", |set: &StatefulSet| {
                set.spec.as_ref().unwrap().replicas == Some(0)
            })
            .await;
        cluster.wait_gone::<Secret>(NAMESPACE, &format!("{set}-0")).await;
        delete(cluster, "prod").await;
        cluster.end_pods(&set).await;
        wait_gone(cluster, "prod").await;
        assert_eq!(cluster.left().await, Vec::<String>::new());
        assert!(cluster.tailnet.devices().await.unwrap().is_empty());
    });
}

#[test]
fn what_becomes_of_a_connector_is_told() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        // The schema lets a prefix with host bits through.
        let routes = |route: &str| json!({ "subnetRouter": { "advertiseRoutes": [route] } });
        cluster.apply(connector("a", routes("10.0.0.1/8"))).await;
        let found = wait_condition(cluster, "a", "False/ConnectorInvalid@1").await;
        let told = condition(&found).1;
        assert!(
            told.contains("advertiseRoutes[0]: `10.0.0.1/8`") && told.contains("write 10.0.0.0/8"),
            "{told}"
        );
        assert_eq!(cluster.wait_event("a", "ConnectorInvalid").await, told);
        assert!(found.finalizers().is_empty() && cluster.left().await.is_empty());
        cluster.apply(connector("a", routes("10.0.0.0/8"))).await;
        wait_condition(cluster, "a", "True/ConnectorCreated@2").await;
        // Roles change: what it no longer is, it is not said to be.
        cluster.apply(connector("a", json!({ "appConnector": {} }))).await;
        let found = wait_condition(cluster, "a", "True/ConnectorCreated@3").await;
        let status = found.status.unwrap();
        assert_eq!(
            (status.is_app_connector, status.subnet_routes.as_deref()),
            (Some(true), Some(""))
        );
        golden::check(cluster, "a", "app_connector.yaml").await;
        cluster.apply(connector("a", json!({ "exitNode": true }))).await;
        let found = wait_condition(cluster, "a", "True/ConnectorCreated@4").await;
        assert_eq!(found.status.unwrap().is_app_connector, Some(false));

        let class = json!({ "exitNode": true, "proxyClass": "none" });
        cluster.apply(connector("b", class)).await;
        let told =
            condition(&wait_condition(cluster, "b", "False/ConnectorCreationFailed@1").await).1;
        assert!(told.contains("ProxyClass `none` does not exist"), "{told}");
        assert_eq!(cluster.wait_event("b", "ConnectorCreationFailed").await, told);
        cluster
            .apply(json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass",
                "metadata": { "name": "none" }, "spec": { "statefulSet": { "labels": { "a key": "1" } } } }))
            .await;
        wait_condition(cluster, "b", "False/ConnectorCreating@1").await;

        let tailnet = json!({ "exitNode": true, "tailnet": "other" });
        cluster.apply(connector("c", tailnet)).await;
        let told =
            condition(&wait_condition(cluster, "c", "False/ConnectorCreationFailed@1").await).1;
        assert!(told.contains("there is no Tailnet \"other\""), "{told}");
        // What was never in a tailnet can go without it.
        for name in ["b", "c"] {
            delete(cluster, name).await;
            wait_gone(cluster, name).await;
        }
    });
}
