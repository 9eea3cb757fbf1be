//! Ingresses: what is made of them, in what order, and what users are told.
#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use k8s_openapi::api::{
    core::v1::Secret,
    networking::v1::Ingress,
    rbac::v1::{Role, RoleBinding},
};
use kube::{Api, ResourceExt as _};
use operator::{build::ingress_config::File, tailnet_api::fake::Call};
use serde_json::{Value, json};

use crate::{
    bed::group,
    cluster::{Cluster, NAMESPACE, in_cluster},
    golden,
    group::{Group, issue, vip, wait_vip},
};

/// An Ingress on the ProxyGroup `in`, which leads to `web`.
pub(crate) fn ingress(name: &str, host: &str, annotations: Value) -> Value {
    let mut all = json!({ "tailscale.com/proxy-group": "in" });
    all.as_object_mut().unwrap().extend(annotations.as_object().unwrap().clone());
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": { "name": name, "namespace": "shop", "annotations": all },
        "spec": { "ingressClassName": "tailscale", "tls": [{ "hosts": [host] }],
            "defaultBackend": { "service": { "name": "web", "port": { "number": 80 } } } } })
}

pub(crate) async fn backend(cluster: &Cluster, name: &str, address: &str) {
    let spec = json!({ "clusterIP": address, "ports": [{ "name": "http", "port": 80 }] });
    cluster
        .apply(json!({ "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "namespace": "shop" }, "spec": spec }))
        .await;
}

/// Waits until users are told this of where it is reached.
pub(crate) async fn wait_status(cluster: &Cluster, name: &str, wanted: Value) -> Ingress {
    let what = format!("its status is {wanted}");
    cluster
        .wait(("shop", name), &what, |ingress: &Ingress| {
            let status = serde_json::to_value(&ingress.status).unwrap();
            status["loadBalancer"]["ingress"] == wanted
        })
        .await
}

pub(crate) fn reached(host: &str, ports: &[u16]) -> Value {
    let ports: Vec<_> =
        ports.iter().map(|port| json!({ "port": port, "protocol": "TCP" })).collect();
    json!([{ "hostname": host, "ports": ports }])
}

/// What the tailnet and the cluster have of an Ingress, for a golden file.
async fn everything(cluster: &Cluster, group: &Group<'_>, name: &str, domain: &str) -> Vec<Value> {
    let client = || cluster.client.clone();
    let secret = Api::<Secret>::namespaced(client(), NAMESPACE).get(domain).await.unwrap();
    let role = Api::<Role>::namespaced(client(), NAMESPACE).get(domain).await.unwrap();
    let binding = Api::<RoleBinding>::namespaced(client(), NAMESPACE).get(domain).await.unwrap();
    let user = Api::<Ingress>::namespaced(client(), "shop").get(name).await.unwrap();
    let label = domain.split('.').next().unwrap();
    let service = vip(cluster, &format!("svc:{label}")).await.unwrap();
    let mut owners = service.annotations.clone();
    for text in owners.values_mut() {
        let mut value: Value = serde_json::from_str(text).unwrap();
        for owner in value["ownerRefs"].as_array_mut().unwrap() {
            owner["operatorID"] = json!("OPERATOR");
        }
        *text = value.to_string();
    }
    vec![
        golden::plain(&secret),
        golden::plain(&role),
        golden::plain(&binding),
        json!({ "serve-config.json": group.entries(File::Serve).await }),
        json!({ "tailscaleService": { "name": service.name.as_str(), "comment": service.comment,
            "ports": service.ports, "tags": service.tags, "annotations": owners } }),
        json!({ "ingress": { "finalizers": user.finalizers(), "annotations": user.annotations() } }),
    ]
}

#[test]
fn an_ingress_is_offered_by_every_replica_once_there_is_a_certificate() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        backend(cluster, "web", "10.96.0.81").await;
        backend(cluster, "api", "10.96.0.82").await;
        let group = Group::start(cluster, "in", 2).await;
        let mut object = ingress("site", "web", json!({}));
        object["spec"]["rules"] = json!([
            { "host": "web", "http": { "paths": [{ "path": "/api", "pathType": "Prefix",
                "backend": { "service": { "name": "api", "port": { "name": "http" } } } }] } },
            { "host": "other", "http": { "paths": [{ "path": "/no", "pathType": "Prefix",
                "backend": { "service": { "name": "api", "port": { "number": 80 } } } }] } },
        ]);
        cluster.apply(object.clone()).await;
        let domain = "web.tailnet.ts.net";
        let handlers = json!({ "/": { "Proxy": "http://10.96.0.81:80/" },
            "/api": { "Proxy": "http://10.96.0.82:80/api" } });
        let entry = json!({ "TCP": { "443": { "HTTPS": true } },
            "Web": { "web.tailnet.ts.net:443": { "Handlers": handlers } } });
        group.wait_entry(File::Serve, "svc:web", Some(&entry)).await;
        let told = cluster.wait_event("site", "InvalidIngressBackend").await;
        assert!(told.contains("host `other`"), "{told}");
        cluster.wait_idle("ingress").await;
        group.wait_offered(&[]).await;
        golden::check(&everything(cluster, &group, "site", domain).await, "ingress.yaml");

        issue(cluster, domain).await;
        group.wait_offered(&["svc:web"]).await;
        group.follow(1).await;
        wait_status(cluster, "site", reached(domain, &[443])).await;
        group.follow(0).await;

        cluster.wait_idle("ingress").await;
        cluster.take_writes();
        cluster.tailnet.take_calls();
        for number in 0..10 {
            cluster.touch("ingress", &object, number).await;
        }
        cluster.wait_idle("ingress").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());
        assert_eq!(cluster.tailnet.take_calls(), [], "what is known is not asked");

        // The certificate that a proxy has put there stays where it is.
        let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        let data = secrets.get(domain).await.unwrap().data.unwrap();
        assert_eq!(data["tls.crt"].0, b"certificate");

        cluster.delete::<Ingress>("shop", "site").await;
        cluster.wait_gone::<Ingress>("shop", "site").await;
        group.wait_entry(File::Serve, "svc:web", None).await;
        group.wait_offered(&[]).await;
        assert_eq!(vip(cluster, "svc:web").await, None);
        assert!(!cluster.left().await.iter().any(|left| left.contains("web")), "certificates");
    });
}

#[test]
fn plain_http_is_served_as_asked_and_at_once() {
    kernel_or_skip!();
    in_cluster(&["--proxy-tags", "tag:proxies"], async |cluster| {
        backend(cluster, "web", "10.96.0.81").await;
        let group = Group::start(cluster, "in", 1).await;
        let domain = "web.tailnet.ts.net";
        let redirect = json!({ "tailscale.com/http-redirect": "true" });
        cluster.apply(ingress("site", "web.example.com", redirect)).await;
        group.wait_offered(&["svc:web"]).await;
        let served =
            group.entries(File::Serve).await["svc:web"]["Web"]["web.tailnet.ts.net:80"].clone();
        let to = json!({ "Redirect": "301:https://${HOST}${REQUEST_URI}" });
        assert_eq!(served["Handlers"], json!({ "/": to }));
        let service = vip(cluster, "svc:web").await.unwrap();
        assert_eq!(service.ports, ["tcp:443", "tcp:80"]);
        assert_eq!(service.tags, ["tag:proxies"]);
        let addresses = service.addresses;
        group.follow_all().await;
        wait_status(cluster, "site", reached(domain, &[80])).await;
        issue(cluster, domain).await;
        wait_status(cluster, "site", reached(domain, &[443, 80])).await;

        // The endpoint is stronger than the way to HTTPS.
        let both = json!({ "tailscale.com/http-redirect": "true",
            "tailscale.com/http-endpoint": "enabled", "tailscale.com/tags": "tag:a,tag:b" });
        cluster.apply(ingress("site", "web", both)).await;
        let service = wait_vip(cluster, "svc:web", |service| {
            service.is_some_and(|service| service.tags == ["tag:a", "tag:b"])
        });
        assert_eq!(service.await.unwrap().addresses, addresses, "kept");
        let proxies = json!({ "Handlers": { "/": { "Proxy": "http://10.96.0.81:80/" } } });
        let entry = json!({ "TCP": { "443": { "HTTPS": true }, "80": { "HTTP": true } },
            "Web": { "web.tailnet.ts.net:443": proxies, "web.tailnet.ts.net:80": proxies } });
        group.wait_entry(File::Serve, "svc:web", Some(&entry)).await;
        cluster.apply(ingress("site", "web", json!({}))).await;
        wait_vip(cluster, "svc:web", |service| {
            service.is_some_and(|service| service.ports == ["tcp:443"])
        })
        .await;
        wait_status(cluster, "site", reached(domain, &[443])).await;
    });
}

#[test]
fn what_cannot_be_served_is_told_with_the_remedy() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        backend(cluster, "web", "10.96.0.81").await;
        cluster.apply(ingress("site", "web", json!({}))).await;
        let told = cluster.wait_event("site", "ProxyGroupNotFound").await;
        assert!(told.contains("ProxyGroup `in` does not exist: create it"), "{told}");

        cluster.apply(group("out", json!({ "type": "egress" }))).await;
        let egress = json!({ "tailscale.com/proxy-group": "out" });
        cluster.apply(ingress("egress", "egress", egress)).await;
        let told = cluster.wait_event("egress", "InvalidIngressConfiguration").await;
        assert!(told.contains("`out` is of type egress: name one of type ingress"), "{told}");

        let mut two = ingress("two", "web", json!({ "tailscale.com/tags": "bad" }));
        two["spec"]["tls"] = json!([{ "hosts": ["a", "b"] }]);
        cluster.apply(two).await;
        let told = cluster.wait_event("two", "InvalidIngressConfiguration").await;
        for part in ["field `spec.tls`", "one name", "`bad` is not a tag"] {
            assert!(told.contains(part), "{told}");
        }
        let calls = cluster.tailnet.take_calls();
        let about_services = [Call::VipService, Call::PutVipService];
        assert!(!calls.iter().any(|call| about_services.contains(call)), "nothing half-made");

        let group = Group::start(cluster, "in", 1).await;
        group.wait_entry(File::Serve, "svc:web", Some(&plain("web"))).await;
        group.is_available(false).await;
        let told = cluster.wait_event("site", "ProxyGroupNotReady").await;
        assert!(told.contains("its condition ProxyGroupAvailable says why"), "{told}");
        group.is_available(true).await;

        let more = json!({ "tailscale.com/funnel": "true",
            "tailscale.com/experimental-forward-cluster-traffic-via-ingress": "true" });
        cluster.apply(ingress("more", "more", more)).await;
        group.wait_entry(File::Serve, "svc:more", Some(&plain("more"))).await;
        cluster.wait_event("more", "InvalidIngressConfiguration").await;
        let told = cluster.events("more", "InvalidIngressConfiguration").await.join("\n");
        for part in
            ["tailscale.com/funnel", "experimental-forward", "has no effect on a ProxyGroup"]
        {
            assert!(told.contains(part), "{told}");
        }

        // Nothing to lead to: it is no longer offered, and keeps its name and addresses.
        let mut none = ingress("site", "web", json!({ "tailscale.com/http-endpoint": "enabled" }));
        cluster.apply(none.clone()).await;
        group.wait_offered(&["svc:web"]).await;
        none["spec"]["defaultBackend"]["service"]["name"] = json!("none");
        cluster.apply(none).await;
        cluster.wait_event("site", "NoValidBackends").await;
        group.wait_entry(File::Serve, "svc:web", None).await;
        group.wait_offered(&[]).await;
        assert!(vip(cluster, "svc:web").await.is_some());
        backend(cluster, "none", "10.96.0.83").await;
        group.wait_offered(&["svc:web"]).await;

        let told = json!({ "tailscale_capver": "120", "https_endpoint": "no-https" });
        group.tell(0, told).await;
        let told = cluster.wait_event("site", "HTTPSNotEnabled").await;
        assert!(told.contains("enable HTTPS"), "{told}");
    });
}

/// What is served of an Ingress without plain HTTP.
pub(crate) fn plain(label: &str) -> Value {
    let handlers = json!({ "/": { "Proxy": "http://10.96.0.81:80/" } });
    json!({ "TCP": { "443": { "HTTPS": true } },
        "Web": { format!("{label}.tailnet.ts.net:443"): { "Handlers": handlers } } })
}

#[test]
fn fifty_ingresses_share_few_writes() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        backend(cluster, "web", "10.96.0.81").await;
        let group = Group::start(cluster, "in", 2).await;
        let http = json!({ "tailscale.com/http-endpoint": "enabled" });
        cluster.wait_idle("ingress").await;
        cluster.take_writes();
        cluster.tailnet.take_calls();
        let names: Vec<_> = (10..60).map(|number| format!("web{number}")).collect();
        for name in &names {
            cluster.apply(ingress(name, name, http.clone())).await;
        }
        for name in &names {
            let is_made = |ingress: &Ingress| !ingress.finalizers().is_empty();
            cluster.wait(("shop", name), "it is made", is_made).await;
        }
        let all: Vec<_> = names.iter().map(|name| format!("svc:{name}")).collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        group.wait_offered(&all).await;
        assert_eq!(group.entries(File::Serve).await.len(), 50);
        group.follow_all().await;
        for name in &names {
            let host = format!("{name}.tailnet.ts.net");
            wait_status(cluster, name, reached(&host, &[80])).await;
        }
        cluster.wait_idle("ingress").await;
        let writes = cluster.take_writes();
        let of = |part: &str| writes.iter().filter(|write| write.contains(part)).count();
        let (maps, configs, statuses) = (of("/configmaps/"), of("-config"), of("/status"));
        println!(
            "{} writes: {maps} of ConfigMaps, {configs} of both, {statuses} of statuses",
            writes.len()
        );
        assert!(maps <= 25 && configs <= 75 && statuses <= 50, "{maps} {configs} {statuses}");
        // A look and a write each, and nothing twice.
        assert_eq!(cluster.tailnet.take_calls().len(), 100);
    });
}
