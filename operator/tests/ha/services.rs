//! Services: packets to the addresses of Tailscale Services.
#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use k8s_openapi::api::core::v1::Service;
use operator::build::ingress_config::File;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, in_cluster},
    group::{Group, endpoints, vip},
};

/// An exposed Service on the ProxyGroup `in`.
pub(crate) fn service(name: &str, annotations: Value, spec: Value) -> Value {
    let mut all = json!({ "tailscale.com/proxy-group": "in", "tailscale.com/expose": "true" });
    all.as_object_mut().unwrap().extend(annotations.as_object().unwrap().clone());
    json!({ "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": "shop", "annotations": all }, "spec": spec })
}

/// Waits for conditions, as `Type=Status/Reason`.
async fn wait_conditions(cluster: &Cluster, name: &str, wanted: &[&str]) -> Service {
    let what = wanted.join(" ");
    cluster
        .wait(("shop", name), &what, |service: &Service| {
            let all = service.status.as_ref().and_then(|status| status.conditions.as_ref());
            let mut shown: Vec<_> = all
                .into_iter()
                .flatten()
                .map(|one| format!("{}={}/{}", one.type_, one.status, one.reason))
                .collect();
            shown.sort();
            shown == wanted
        })
        .await
}

fn balancers(service: &Service) -> Value {
    serde_json::to_value(&service.status).unwrap()["loadBalancer"]["ingress"].clone()
}

fn message(service: &Service, condition: &str) -> String {
    let all = service.status.as_ref().unwrap().conditions.as_ref().unwrap();
    all.iter().find(|one| one.type_ == condition).unwrap().message.clone()
}

const VALID: &str = "TailscaleIngressSvcValid=True/IngressSvcValid";
const NONE: &str = "TailscaleIngressSvcConfigured=False/IngressSvcNoBackendsConfigured";
const SOME: &str = "TailscaleIngressSvcConfigured=True/IngressSvcConfigured";

#[test]
fn a_service_is_offered_by_replicas_that_lead_there_while_somebody_answers() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let group = Group::start(cluster, "in", 2).await;
        let object = service(
            "db",
            json!({ "tailscale.com/hostname": "db", "tailscale.com/tags": "tag:db" }),
            json!({ "type": "LoadBalancer", "loadBalancerClass": "tailscale",
                "clusterIP": "10.96.0.91", "ports": [{ "port": 5432 }] }),
        );
        cluster.apply(object.clone()).await;
        let found = wait_conditions(cluster, "db", &[NONE, VALID]).await;
        let told = message(&found, "TailscaleIngressSvcConfigured");
        assert_eq!(told, "0 of 2 proxies offer it: none of its endpoints is ready");
        let there = vip(cluster, "svc:db").await.unwrap();
        assert_eq!(
            (there.ports, there.tags),
            (vec!["do-not-validate".into()], vec!["tag:db".into()])
        );
        let v4 = there.addresses[0];
        // The cluster's address is IPv4 alone, and so is what leads there.
        let mapping =
            json!({ "IPv4Mapping": { "TailscaleServiceIP": v4, "ClusterIP": "10.96.0.91" } });
        group.wait_entry(File::Ingress, "svc:db", Some(&mapping)).await;

        endpoints(cluster, "db", true).await;
        cluster.wait_idle("service").await;
        group.wait_offered(&[]).await;
        group.follow(1).await;
        group.wait_offered_by(1, &["svc:db"]).await;
        group.wait_offered_by(0, &[]).await;
        group.follow(1).await;
        let found = wait_conditions(cluster, "db", &[SOME, VALID]).await;
        assert_eq!(message(&found, "TailscaleIngressSvcConfigured"), "1 of 2 proxies offer it");
        assert_eq!(
            balancers(&found),
            json!([{ "hostname": "db.tailnet.ts.net", "ip": v4, "ipMode": "VIP" }])
        );
        group.follow(0).await;
        group.wait_offered(&["svc:db"]).await;
        group.follow(0).await;

        cluster.wait_idle("service").await;
        cluster.take_writes();
        cluster.tailnet.take_calls();
        for number in 0..10 {
            cluster.touch("service", &object, number).await;
        }
        cluster.wait_idle("service").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());
        assert_eq!(cluster.tailnet.take_calls(), [], "what is known is not asked");

        // Nobody answers any more.
        endpoints(cluster, "db", false).await;
        group.wait_offered(&[]).await;
        group.follow_all().await;
        let found = wait_conditions(cluster, "db", &[NONE, VALID]).await;
        assert_eq!(balancers(&found), Value::Null);
        endpoints(cluster, "db", true).await;
        group.wait_offered(&["svc:db"]).await;

        // No longer exposed, it is nobody's business of ours.
        let mut hidden = object;
        hidden["metadata"]["annotations"]["tailscale.com/expose"] = json!("false");
        hidden["spec"]["type"] = json!("ClusterIP");
        hidden["spec"].as_object_mut().unwrap().remove("loadBalancerClass");
        cluster.apply(hidden).await;
        group.wait_entry(File::Ingress, "svc:db", None).await;
        group.wait_offered(&[]).await;
        let is_free = |service: &Service| {
            service.metadata.finalizers.is_none()
                && !service
                    .metadata
                    .annotations
                    .as_ref()
                    .unwrap()
                    .contains_key("sluice.dev/provisioned")
        };
        cluster.wait(("shop", "db"), "it is free", is_free).await;
        assert_eq!(vip(cluster, "svc:db").await, None);
    });
}

#[test]
fn what_a_service_asks_for_wrongly_is_told_and_taken_back() {
    kernel_or_skip!();
    in_cluster(&["--default-load-balancer", "true"], async |cluster| {
        let invalid = "TailscaleIngressSvcValid=False/IngressSvcInvalid";
        let spec = || json!({ "clusterIP": "10.96.0.92", "ports": [{ "port": 80 }] });
        cluster.apply(service("web", json!({}), spec())).await;
        wait_conditions(cluster, "web", &["TailscaleIngressSvcValid=False/ProxyGroupNotFound"])
            .await;
        let told = cluster.wait_event("web", "ProxyGroupNotFound").await;
        assert!(told.contains("`in` does not exist"), "{told}");

        let headless = json!({ "clusterIP": "None", "ports": [{ "port": 80 }] });
        let wrong = json!({ "tailscale.com/tags": "a", "tailscale.com/hostname": "-" });
        cluster.apply(service("wrong", wrong, headless)).await;
        let found = wait_conditions(cluster, "wrong", &[invalid]).await;
        let told = message(&found, "TailscaleIngressSvcValid");
        for part in ["spec.clusterIP", "`a` is not a tag", "`-` is not a DNS label"] {
            assert!(told.contains(part), "{told}");
        }
        assert_eq!(cluster.wait_event("wrong", "IngressSvcInvalid").await, told);
        let name = json!({ "tailscale.com/expose": "true" });
        let external = json!({ "type": "ExternalName", "externalName": "db.example.com" });
        cluster.apply(service("external", name, external)).await;
        wait_conditions(cluster, "external", &[invalid]).await;

        let group = Group::start(cluster, "in", 1).await;
        wait_conditions(cluster, "web", &[NONE, VALID]).await;
        group.is_available(false).await;
        wait_conditions(cluster, "web", &["TailscaleIngressSvcValid=Unknown/ProxyGroupNotReady"])
            .await;
        group.is_available(true).await;
        wait_conditions(cluster, "web", &[NONE, VALID]).await;

        // A load balancer without a class is ours, if the operator is told so.
        let mut plain = service("plain", json!({}), spec());
        plain["metadata"]["annotations"].as_object_mut().unwrap().remove("tailscale.com/expose");
        plain["spec"]["clusterIP"] = json!("10.96.0.93");
        plain["spec"]["type"] = json!("LoadBalancer");
        cluster.apply(plain).await;
        wait_conditions(cluster, "plain", &[NONE, VALID]).await;
        assert!(vip(cluster, "svc:shop-plain").await.is_some());
    });
}
