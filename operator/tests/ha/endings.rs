//! Moves, deletions in any order, a control server that fails, and what others have left behind.

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Service, networking::v1::Ingress};
use kube::{Api, ResourceExt as _, api::DeleteParams};
use operator::{
    build::ingress_config::File,
    tailnet_api::{
        Failure, ServiceName, TailnetApi as _,
        fake::{Call, FakeTailnet},
    },
};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::{
    cluster::{Cluster, NAMESPACE, in_cluster},
    group::{Group, issue, vip, wait_vip},
    ingresses::{backend, ingress, plain, wait_status},
    services::service,
};

fn http() -> Value {
    json!({ "tailscale.com/http-endpoint": "enabled" })
}

fn on(group: &str, mut object: Value) -> Value {
    object["metadata"]["annotations"]["tailscale.com/proxy-group"] = json!(group);
    object
}

async fn certificates(cluster: &Cluster) -> Vec<String> {
    let left = cluster.left().await.into_iter();
    left.filter(|left| left.contains("tailnet.ts.net")).collect()
}

#[test]
fn an_ingress_moves_between_groups_names_and_a_proxy_of_its_own() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        backend(cluster, "web", "10.96.0.81").await;
        let one = Group::start(cluster, "in", 1).await;
        let other = Group::start(cluster, "other", 1).await;
        cluster.apply(ingress("site", "web", http())).await;
        one.wait_offered(&["svc:web"]).await;
        issue(cluster, "web.tailnet.ts.net").await;
        let addresses = vip(cluster, "svc:web").await.unwrap().addresses;

        cluster.apply(on("other", ingress("site", "web", http()))).await;
        other.wait_offered(&["svc:web"]).await;
        one.wait_offered(&[]).await;
        one.wait_entry(File::Serve, "svc:web", None).await;
        assert_eq!(
            vip(cluster, "svc:web").await.unwrap().addresses,
            addresses,
            "clients know them"
        );
        let relabelled = |secret: &k8s_openapi::api::core::v1::Secret| {
            secret.labels()["tailscale.com/proxy-group"] == "other"
        };
        let secret = cluster.wait((NAMESPACE, "web.tailnet.ts.net"), "moved", relabelled).await;
        assert_eq!(secret.data.unwrap()["tls.crt"].0, b"certificate", "it is not issued anew");

        cluster.apply(on("other", ingress("site", "shop", http()))).await;
        other.wait_offered(&["svc:shop"]).await;
        wait_vip(cluster, "svc:web", |service| service.is_none()).await;
        cluster.wait_idle("ingress").await;
        assert_eq!(other.entries(File::Serve).await.keys().collect::<Vec<_>>(), ["svc:shop"]);
        assert_eq!(certificates(cluster).await.len(), 3, "{:?}", certificates(cluster).await);

        let mut alone = ingress("site", "shop", json!({}));
        alone["metadata"]["annotations"] = json!({});
        cluster.apply(alone).await;
        let set = cluster.stateful_set("site").await.name_any();
        other.wait_offered(&[]).await;
        wait_vip(cluster, "svc:shop", |service| service.is_none()).await;
        assert_eq!(certificates(cluster).await, Vec::<String>::new());

        // And back: not before its pods have ended.
        cluster.apply(on("in", ingress("site", "shop", http()))).await;
        cluster.end_pods(&set).await;
        one.wait_offered(&["svc:shop"]).await;
        let sets: Api<StatefulSet> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        assert!(sets.get_opt(&set).await.unwrap().is_none());

        let mut foreign = ingress("site", "shop", http());
        foreign["spec"]["ingressClassName"] = json!("other");
        cluster.apply(foreign).await;
        one.wait_offered(&[]).await;
        wait_vip(cluster, "svc:shop", |service| service.is_none()).await;
        let is_free = |ingress: &Ingress| {
            ingress.finalizers().is_empty()
                && !ingress.annotations().contains_key("sluice.dev/provisioned")
        };
        cluster.wait(("shop", "site"), "it is free", is_free).await;
        wait_status(cluster, "site", Value::Null).await;
    });
}

#[test]
fn what_a_group_served_ends_clean_when_the_group_is_gone() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        backend(cluster, "web", "10.96.0.81").await;
        let group = Group::start(cluster, "in", 2).await;
        cluster.apply(ingress("site", "web", http())).await;
        let spec = json!({ "clusterIP": "10.96.0.91", "ports": [{ "port": 80 }] });
        cluster.apply(service("db", json!({ "tailscale.com/hostname": "db" }), spec)).await;
        group.wait_offered(&["svc:web"]).await;
        wait_vip(cluster, "svc:db", |service| service.is_some()).await;
        cluster.wait_idle("service").await;
        group.delete().await;
        cluster.wait_event("site", "ProxyGroupNotFound").await;
        cluster.wait_event("db", "ProxyGroupNotFound").await;
        cluster.delete::<Ingress>("shop", "site").await;
        cluster.delete::<Service>("shop", "db").await;
        cluster.wait_gone::<Ingress>("shop", "site").await;
        cluster.wait_gone::<Service>("shop", "db").await;
        assert_eq!(vip(cluster, "svc:web").await, None);
        assert_eq!(vip(cluster, "svc:db").await, None);
        assert_eq!(certificates(cluster).await, Vec::<String>::new());
    });
}

#[test]
fn a_control_server_that_fails_is_asked_again_and_one_that_is_gone_is_not() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        backend(cluster, "web", "10.96.0.81").await;
        let group = Group::start(cluster, "in", 1).await;
        let limited =
            || Failure::RateLimited { retry_after: Some(std::time::Duration::from_millis(10)) };
        let conflict = || Failure::Conflict("412".into());
        let broken = || Failure::Unavailable { problem: "500".into(), retry_after: None };
        cluster.tailnet.fail(Call::VipService, [limited(), broken()]);
        cluster.tailnet.fail(Call::PutVipService, [conflict(), limited()]);
        cluster.apply(ingress("site", "web", http())).await;
        group.wait_offered(&["svc:web"]).await;
        let told = cluster.events("site", "ProxyFailed").await;
        assert!(told.iter().any(|note| note.contains("500")), "{told:?}");
        assert!(!told.iter().any(|note| note.contains("412")), "decided again at once: {told:?}");

        cluster.tailnet.fail(Call::VipService, [limited()]);
        cluster.tailnet.fail(Call::DeleteVipService, [conflict(), broken()]);
        cluster.delete::<Ingress>("shop", "site").await;
        cluster.wait_gone::<Ingress>("shop", "site").await;
        wait_vip(cluster, "svc:web", |service| service.is_none()).await;

        // Deleted by hand, it is made again when there is reason to look, and is no trouble at the end.
        let object = ingress("site", "web", http());
        cluster.apply(object.clone()).await;
        let made = wait_vip(cluster, "svc:web", |service| service.is_some()).await.unwrap();
        cluster.wait_idle("ingress").await;
        cluster.tailnet.delete_vip_service(&made).await.unwrap();
        cluster.delete::<Ingress>("shop", "site").await;
        cluster.wait_gone::<Ingress>("shop", "site").await;

        let away = Arc::new(FakeTailnet::new("https://away.example"));
        cluster.context.tailnets.ready("away", away.clone());
        let far = Group::start_in(cluster, "far", 1, (&away, Some("away"))).await;
        // The same name in another tailnet is another name.
        cluster.apply(ingress("near", "web", http())).await;
        cluster.apply(on("far", ingress("site", "web", http()))).await;
        far.wait_offered(&["svc:web"]).await;
        group.wait_offered(&["svc:web"]).await;
        let name: ServiceName = "svc:web".parse().unwrap();
        assert!(away.vip_service(&name).await.is_ok());
        cluster.context.tailnets.remove("away");
        cluster.delete::<Ingress>("shop", "site").await;
        let told = cluster.wait_event("site", "TailnetUnavailable").await;
        assert!(told.contains("Tailnet `away` is gone") && told.contains("svc:web"), "{told}");
        cluster.wait_gone::<Ingress>("shop", "site").await;
        assert!(vip(cluster, "svc:web").await.is_some(), "the near one stays");
    });
}

#[test]
fn what_others_left_behind_is_taken_over_or_swept_away() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        backend(cluster, "web", "10.96.0.81").await;
        let group = Group::start(cluster, "in", 1).await;
        // Upstream's operator ends an Ingress from what it asks for; it records nothing.
        let mut object = ingress("site", "web", http());
        cluster.apply(object.clone()).await;
        group.wait_offered(&["svc:web"]).await;
        object["metadata"]["annotations"]["sluice.dev/provisioned"] = json!("none");
        cluster.apply(object.clone()).await;
        let is_recorded =
            |ingress: &Ingress| ingress.annotations()["sluice.dev/provisioned"].contains("svc:web");
        cluster.wait(("shop", "site"), "it is recorded again", is_recorded).await;

        // An object that went without its finalizer leaves everything behind.
        cluster.apply(ingress("lost", "lost", http())).await;
        group.wait_offered(&["svc:lost", "svc:web"]).await;
        cluster.wait_idle("ingress").await;
        let ingresses: Api<Ingress> = Api::namespaced(cluster.client.clone(), "shop");
        let none = json!({ "metadata": { "finalizers": null, "annotations": { "sluice.dev/provisioned": null,
            "tailscale.com/proxy-group": null } }, "spec": { "ingressClassName": "other" } });
        let patch = kube::api::Patch::Merge(none);
        ingresses.patch("lost", &kube::api::PatchParams::default(), &patch).await.unwrap();
        ingresses.delete("lost", &DeleteParams::default()).await.unwrap();
        cluster.wait_gone::<Ingress>("shop", "lost").await;
        // It is found when the files change.
        cluster.apply(ingress("new", "new", http())).await;
        group.wait_offered(&["svc:new", "svc:web"]).await;
        group.wait_entry(File::Serve, "svc:lost", None).await;
        wait_vip(cluster, "svc:lost", |service| service.is_none()).await;
        let served = group.entries(File::Serve).await;
        assert_ne!(served["svc:web"], plain("lost"));
    });
}
