//! The records of names that lead into the tailnet, and of Ingresses.

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::ResourceExt as _;
use operator::crd::DnsConfig;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NAMESPACE, in_cluster},
    cluster_wide::wait,
    dns::config,
};

/// What endpoints a Service's slice has, as Kubernetes writes it.
async fn slice(cluster: &Cluster, service: &str, family: &str, endpoints: Value) {
    cluster
        .apply(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": format!("{service}-{}", family.to_lowercase()), "namespace": NAMESPACE,
                "labels": { "kubernetes.io/service-name": service, "tailscale.com/managed": "true" } },
            "addressType": family, "endpoints": endpoints, "ports": [],
        }))
        .await;
}

fn endpoint(address: &str, ready: bool) -> Value {
    json!({ "addresses": [address], "conditions": { "ready": ready } })
}

async fn wait_records(cluster: &Cluster, wanted: Value) {
    let text = wanted.to_string();
    cluster
        .wait((NAMESPACE, "dnsrecords"), &text, |map: &ConfigMap| {
            let found = &map.data.as_ref().unwrap()["records.json"];
            serde_json::from_str::<Value>(found).unwrap() == wanted
        })
        .await;
}

fn egress(target: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "db", "namespace": "shop",
            "annotations": { "tailscale.com/tailnet-fqdn": target } },
        "spec": { "type": "ExternalName", "externalName": "placeholder" } })
}

#[test]
fn names_lead_to_the_pods_that_are_ready_in_each_family() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(config("dns", &json!({}))).await;
        wait::<DnsConfig>(cluster, "dns", "True/NameserverCreated@1").await;
        wait_records(cluster, json!({ "version": "v1alpha1", "ip4": {} })).await;

        cluster.apply(egress("DB.tail1.ts.net.")).await;
        let set = cluster.stateful_set("db").await.name_any();
        let none = json!({ "version": "v1alpha1", "ip4": { "db.tail1.ts.net": [] } });
        wait_records(cluster, none.clone()).await;
        let pods = json!([
            endpoint("10.1.0.2", true),
            endpoint("10.1.0.1", true),
            endpoint("10.1.0.3", false)
        ]);
        slice(cluster, &set, "IPv4", pods).await;
        let v4 = json!(["10.1.0.1", "10.1.0.2"]);
        wait_records(cluster, json!({ "version": "v1alpha1", "ip4": { "db.tail1.ts.net": v4 } }))
            .await;
        slice(cluster, &set, "IPv6", json!([endpoint("2001:db8::1", true)])).await;
        let six = json!({ "db.tail1.ts.net": ["2001:db8::1"] });
        wait_records(
            cluster,
            json!({ "version": "v1alpha1", "ip4": { "db.tail1.ts.net": v4 }, "ip6": six }),
        )
        .await;

        // Nothing that says the same is written again.
        cluster.wait_idle("nameserver").await;
        cluster.take_writes();
        let before = cluster.context.counts.total("nameserver");
        slice(
            cluster,
            &set,
            "IPv6",
            json!([endpoint("2001:db8::1", true), endpoint("2001:db8::2", false)]),
        )
        .await;
        while cluster.context.counts.total("nameserver") == before {
            tokio::task::yield_now().await;
        }
        assert_eq!(cluster.take_writes(), Vec::<String>::new());

        // Another name: nothing of the old one stays, in no family.
        cluster.apply(egress("other.tail1.ts.net")).await;
        let six = json!({ "other.tail1.ts.net": ["2001:db8::1"] });
        wait_records(
            cluster,
            json!({ "version": "v1alpha1", "ip4": { "other.tail1.ts.net": v4 }, "ip6": six }),
        )
        .await;
        slice(cluster, &set, "IPv4", json!([])).await;
        slice(cluster, &set, "IPv6", json!([])).await;
        wait_records(
            cluster,
            json!({ "version": "v1alpha1", "ip4": { "other.tail1.ts.net": [] } }),
        )
        .await;

        cluster.delete::<Service>("shop", "db").await;
        cluster.end_pods(&set).await;
        cluster.wait_gone::<Service>("shop", "db").await;
        wait_records(cluster, json!({ "version": "v1alpha1", "ip4": {} })).await;
    });
}

#[test]
fn ingresses_have_their_name_and_groups_their_services_addresses() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(config("dns", &json!({}))).await;
        cluster
            .apply(json!({ "apiVersion": "v1", "kind": "Service",
                "metadata": { "name": "web", "namespace": "shop" },
                "spec": { "ports": [{ "port": 80 }], "selector": { "app": "web" } } }))
            .await;
        cluster
            .apply(json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
                "metadata": { "name": "shop", "namespace": "shop" },
                "spec": { "ingressClassName": "tailscale", "defaultBackend":
                    { "service": { "name": "web", "port": { "number": 80 } } } } }))
            .await;
        let set = cluster.stateful_set("shop").await.name_any();
        slice(cluster, &set, "IPv4", json!([endpoint("10.1.0.9", true)])).await;
        // Until it has logged in it has no name.
        wait_records(cluster, json!({ "version": "v1alpha1", "ip4": {} })).await;
        cluster.start_proxy(&format!("{set}-0")).await;
        let web = json!({ "shop-shop-ingress.tailnet.ts.net": ["10.1.0.9"] });
        wait_records(cluster, json!({ "version": "v1alpha1", "ip4": web })).await;

        // The Service of an egress ProxyGroup, and one that leads to an address and has no name.
        for (name, annotations) in [
            ("ts-db-abcde", json!({ "tailscale.com/magic-dnsname": "db.tail1.ts.net" })),
            ("ts-ip-abcde", json!({})),
        ] {
            cluster
                .apply(json!({ "apiVersion": "v1", "kind": "Service",
                    "metadata": { "name": name, "namespace": NAMESPACE, "annotations": annotations,
                        "labels": { "tailscale.com/managed": "true", "tailscale.com/svc-type": "egress",
                            "tailscale.com/parent-resource": "db", "tailscale.com/parent-resource-ns": "shop",
                            "tailscale.com/parent-resource-type": "svc", "tailscale.com/proxy-group": "pg" } },
                    "spec": { "clusterIP": if name == "ts-db-abcde" { "10.96.7.7" } else { "10.96.7.8" },
                        "ports": [{ "port": 5432 }] } }))
                .await;
        }
        let both = json!({ "shop-shop-ingress.tailnet.ts.net": ["10.1.0.9"], "db.tail1.ts.net": ["10.96.7.7"] });
        wait_records(cluster, json!({ "version": "v1alpha1", "ip4": both })).await;
    });
}

#[test]
fn the_finalizer_of_upstreams_records_keeps_no_service() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(egress("db.tail1.ts.net")).await;
        let set = cluster.stateful_set("db").await.name_any();
        let finalizer = "tailscale.com/dns-records-reconciler";
        let on = async || {
            cluster
                .apply(json!({ "apiVersion": "v1", "kind": "Service",
                    "metadata": { "name": set, "namespace": NAMESPACE, "finalizers": [finalizer] } }))
                .await;
        };
        on().await;
        cluster
            .wait((NAMESPACE, &set), "without it", |service: &Service| {
                service.finalizers().is_empty()
            })
            .await;
        cluster.delete::<Service>("shop", "db").await;
        on().await;
        cluster.end_pods(&set).await;
        cluster.wait_gone::<Service>("shop", "db").await;
        cluster.wait_gone::<Service>(NAMESPACE, &set).await;
        assert_eq!(cluster.left().await, Vec::<String>::new());
    });
}
