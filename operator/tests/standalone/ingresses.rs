//! Ingresses: the serve configuration that follows from rules and backends, and what users are told.
#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use k8s_openapi::api::{core::v1::Secret, networking::v1::Ingress};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NAMESPACE, in_cluster},
    golden,
    services::service,
};

fn ingress(annotations: Value, spec: Value) -> Value {
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": { "name": "site", "namespace": "shop", "annotations": annotations }, "spec": spec })
}

fn path(path: &str, service: &str, port: Value) -> Value {
    json!({ "path": path, "pathType": "Prefix",
        "backend": { "service": { "name": service, "port": port } } })
}

async fn backends(cluster: &Cluster) {
    let web = json!({ "clusterIP": "10.96.0.81", "ports": [
        { "name": "http", "port": 80 }, { "name": "https", "port": 8443 }] });
    cluster.apply(service("web", json!({}), web)).await;
    let api = json!({ "clusterIP": "10.96.0.82", "ports": [{ "port": 8080 }] });
    cluster.apply(service("api", json!({}), api)).await;
    let headless = json!({ "clusterIP": "None", "ports": [{ "port": 80 }] });
    cluster.apply(service("headless", json!({}), headless)).await;
}

/// What the proxy is to serve: paths and addresses.
fn served(secret: &Secret) -> Value {
    let config: Value =
        serde_json::from_slice(&secret.data.as_ref().unwrap()["serve-config"].0).unwrap();
    config["Web"]["${TS_CERT_DOMAIN}:443"]["Handlers"].clone()
}

async fn secret(cluster: &Cluster) -> String {
    format!("{}-0", cluster.stateful_set("site").await.name_any())
}

/// The proxy tells its name for HTTPS.
async fn tells(cluster: &Cluster, secret: &str, name: &str) {
    cluster
        .apply(json!({ "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": secret, "namespace": NAMESPACE },
            "stringData": { "tailscale_capver": "120", "https_endpoint": name } }))
        .await;
}

#[test]
fn rules_and_backends_become_a_serve_configuration() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        backends(cluster).await;
        let annotations = json!({ "tailscale.com/funnel": "true", "tailscale.com/http-redirect": "true",
            "tailscale.com/tags": "tag:site" });
        let object = ingress(
            annotations,
            json!({ "ingressClassName": "tailscale",
            "tls": [{ "hosts": ["site.example.com"] }],
            "defaultBackend": { "service": { "name": "web", "port": { "number": 80 } } },
            "rules": [
                { "http": { "paths": [path("/api", "api", json!({ "number": 8080 })),
                    path("/secure", "web", json!({ "name": "https" }))] } },
                { "host": "site.example.com", "http": { "paths": [path("/own", "web", json!({ "name": "http" }))] } },
            ] }),
        );
        cluster.apply(object.clone()).await;
        let secret = secret(cluster).await;
        golden::check(cluster, "site", "ingress.yaml").await;
        cluster.start_proxy(&secret).await;
        tells(cluster, &secret, "site.tailnet.ts.net").await;
        cluster
            .wait(("shop", "site"), "its name is told", |ingress: &Ingress| {
                let status = serde_json::to_value(&ingress.status).unwrap();
                status["loadBalancer"]["ingress"] == json!([{ "hostname": "site.tailnet.ts.net",
                    "ports": [{ "port": 443, "protocol": "TCP" }, { "port": 80, "protocol": "TCP" }] }])
            })
            .await;
        assert_eq!(cluster.tailnet.key_requests().len(), 0, "the one key is used up");

        cluster.wait_idle("ingress").await;
        cluster.take_writes();
        for number in 0..10 {
            cluster.touch("ingress", &object, number).await;
        }
        cluster.wait_idle("ingress").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());

        // Of another class it is nobody's business of ours.
        let set = secret.trim_end_matches("-0").to_owned();
        let mut other = object;
        other["spec"]["ingressClassName"] = json!("other");
        cluster.apply(other).await;
        cluster.end_pods(&set).await;
        cluster
            .wait(("shop", "site"), "it is left alone", |ingress: &Ingress| {
                let status = serde_json::to_value(&ingress.status).unwrap();
                ingress.finalizers().is_empty() && status["loadBalancer"]["ingress"].is_null()
            })
            .await;
        assert_eq!(cluster.left().await, Vec::<String>::new());
    });
}

#[test]
fn what_is_not_served_is_told_once_and_followed() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        backends(cluster).await;
        let of = |paths: Value| {
            ingress(
                json!({}),
                json!({ "ingressClassName": "tailscale", "rules": [
                { "http": { "paths": paths } },
                { "host": "other.example.com", "http": { "paths": [path("/o", "web", json!({ "number": 80 }))] } },
            ] }),
            )
        };
        cluster.apply(of(json!([path("/", "headless", json!({ "number": 80 }))]))).await;
        let told = cluster.wait_event("site", "NoValidBackends").await;
        assert!(told.contains("add one"), "{told}");
        assert_eq!(cluster.left().await, Vec::<String>::new());

        let exact = json!({ "path": "/exact", "pathType": "Exact",
            "backend": { "service": { "name": "web", "port": { "number": 443 } } } });
        let nameless = json!({ "pathType": "ImplementationSpecific",
            "backend": { "service": { "name": "web", "port": { "number": 80 } } } });
        let object = of(json!([
            path("/later", "later", json!({ "number": 80 })),
            path("/port", "web", json!({ "name": "none" })),
            exact,
            nameless,
        ]));
        cluster.apply(object.clone()).await;
        let secret = secret(cluster).await;
        let is = |wanted: Value| move |secret: &Secret| served(secret) == wanted;
        let without = json!({ "/": { "Proxy": "http://10.96.0.81:80/" },
            "/exact": { "Proxy": "https+insecure://10.96.0.81:443/exact" } });
        cluster.wait((NAMESPACE, &secret), "what can be served", is(without)).await;
        for (reason, part) in [
            ("UnsupportedPathTypeExact", "`/exact`"),
            ("PathUndefined", "served at `/`"),
            ("InvalidIngressBackend", ""),
        ] {
            let told = cluster.wait_event("site", reason).await;
            assert!(told.contains(part), "{told}");
        }
        let told = cluster.events("site", "InvalidIngressBackend").await;
        for part in [
            "host `other.example.com`",
            "Service `later` does not exist",
            "no port `none`",
            "`headless` has no cluster IP",
        ] {
            assert_eq!(
                told.iter().filter(|note| note.contains(part)).count(),
                1,
                "{part}: {told:?}"
            );
        }
        // A backend that comes, changes and goes is followed, without a change of the Ingress.
        let later = |address: &str| json!({ "clusterIP": address, "ports": [{ "port": 80 }] });
        cluster.apply(service("later", json!({}), later("10.96.0.83"))).await;
        let with = json!({ "/": { "Proxy": "http://10.96.0.81:80/" },
            "/later": { "Proxy": "http://10.96.0.83:80/later" },
            "/exact": { "Proxy": "https+insecure://10.96.0.81:443/exact" } });
        cluster.wait((NAMESPACE, &secret), "the new backend", is(with)).await;
        cluster.start_proxy(&secret).await;
        tells(cluster, &secret, "no-https").await;
        let told = cluster.wait_event("site", "HTTPSNotEnabled").await;
        assert!(told.contains("enable HTTPS"), "{told}");

        let bad = json!({ "tailscale.com/tags": "site" });
        let spec = json!({ "ingressClassName": "tailscale", "tls": [{ "hosts": ["a.example.com"] }],
            "defaultBackend": { "service": { "name": "web", "port": { "number": 80 } } } });
        cluster.apply(ingress(bad, spec)).await;
        let told = cluster.wait_event("site", "InvalidIngressConfiguration").await;
        assert!(told.contains("`tailscale.com/tags`: `site`"), "{told}");
        cluster.delete::<Ingress>("shop", "site").await;
        cluster.end_pods(secret.trim_end_matches("-0")).await;
        cluster.wait_gone::<Ingress>("shop", "site").await;
        assert_eq!(cluster.left().await, Vec::<String>::new());
    });
}
