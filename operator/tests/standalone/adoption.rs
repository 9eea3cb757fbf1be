//! Proxies that upstream's operator has made are taken over: the devices stay the same ones.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Secret, Service},
    networking::v1::Ingress,
};
use kube::{Api, ResourceExt as _, api::ListParams};
use operator::{
    crd::Connector,
    tailnet_api::{Device, KeyRequest, TailnetApi as _},
};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NAMESPACE, in_cluster},
    services::{load_balancer, service},
};

/// What upstream has given generated names.
const NAME: &str = "ts-web-x7k2p";

fn labels(kind: &str, namespace: &str) -> Value {
    json!({ "tailscale.com/managed": "true", "tailscale.com/parent-resource": "web",
        "tailscale.com/parent-resource-ns": namespace, "tailscale.com/parent-resource-type": kind })
}

/// What upstream's operator leaves of a proxy with devices of these names. Each Secret has these keys as well.
async fn upstream(
    cluster: &Cluster,
    labels: Value,
    hostnames: &[&str],
    keys: Value,
) -> Vec<Device> {
    let metadata = |name: &str| {
        json!({ "name": name, "namespace": NAMESPACE, "labels": labels,
            "finalizers": ["example.com/kept"] })
    };
    let mut devices = Vec::new();
    for (ordinal, hostname) in hostnames.iter().enumerate() {
        let key = cluster.tailnet.create_key(&KeyRequest::for_proxy(["tag:k8s"])).await.unwrap();
        let device = cluster.tailnet.log_in(key.secret.expose_secret(), hostname).unwrap();
        let mut data = json!({ "cap-95.hujson": "{\"Version\":\"alpha0\"}",
            "cap-107.hujson": "{\"Version\":\"alpha0\"}", "device_id": device.id.to_string(),
            "device_fqdn": format!("{}.", device.name),
            "device_ips": serde_json::to_string(&device.addresses).unwrap(),
            "_machinekey": "m", "profile-1": "{}" });
        data.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        cluster
            .apply(json!({ "apiVersion": "v1", "kind": "Secret", "stringData": data,
                "metadata": metadata(&format!("{NAME}-{ordinal}")) }))
            .await;
        devices.push(device);
    }
    cluster
        .apply(json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata(NAME),
            "spec": { "clusterIP": "None", "selector": { "app": "old-uid" } } }))
        .await;
    // A test server takes no privileged pods; this is as good.
    let privileged = json!({ "capabilities": { "add": ["SYS_ADMIN"] } });
    let mut pod = labels.clone();
    pod["app"] = json!("old-uid");
    cluster
        .apply(json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata(NAME),
            "spec": { "replicas": hostnames.len(), "serviceName": NAME,
                "selector": { "matchLabels": { "app": "old-uid" } },
                "template": { "metadata": { "labels": pod, "deletionGracePeriodSeconds": 10 }, "spec": {
                    "serviceAccountName": "proxies",
                    "initContainers": [{ "name": "sysctler", "image": "tailscale/tailscale:latest",
                        "securityContext": privileged, "command": ["/bin/sh", "-c"] }],
                    "containers": [{ "name": "tailscale", "image": "tailscale/tailscale:latest",
                        "securityContext": privileged,
                        "env": [{ "name": "TS_OLD", "value": "1" }] }] } } } }))
        .await;
    cluster.tailnet.take_calls();
    devices
}

/// One StatefulSet, the old one, with our pods; Secrets that still have the devices' state, and no key was made.
async fn check_taken_over(cluster: &Cluster, hostnames: &[&str], capabilities: &[&str]) {
    assert_eq!(cluster.tailnet.take_calls(), [], "no key is made, no device touched");
    let sets: Api<StatefulSet> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let all = sets.list(&ListParams::default()).await.unwrap().items;
    let [set] = all.as_slice() else { panic!("{} StatefulSets", all.len()) };
    assert_eq!(set.name_any(), NAME);
    assert_eq!(set.finalizers(), ["example.com/kept"], "what others keep stays");
    let spec = set.spec.as_ref().unwrap();
    assert_eq!(usize::try_from(spec.replicas.unwrap()).unwrap(), hostnames.len());
    let pod = spec.template.spec.as_ref().unwrap();
    assert!(pod.init_containers.as_ref().is_none_or(Vec::is_empty), "{:?}", pod.init_containers);
    let container = &pod.containers[0];
    let context = container.security_context.as_ref().unwrap();
    assert_eq!(context.privileged, Some(false));
    let added = context.capabilities.as_ref().unwrap().add.clone().unwrap_or_default();
    assert_eq!(added, capabilities);
    assert!(container.env.as_ref().unwrap().iter().all(|variable| variable.name != "TS_OLD"));
    assert_eq!(pod.service_account_name.as_deref(), Some(NAME));

    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    for (ordinal, hostname) in hostnames.iter().enumerate() {
        let data = secrets.get(&format!("{NAME}-{ordinal}")).await.unwrap().data.unwrap();
        assert_eq!(data["_machinekey"].0, b"m");
        let config = String::from_utf8(data["cap-107.hujson"].0.clone()).unwrap();
        let named = format!("\"Hostname\":\"{hostname}\"");
        assert!(config.contains(&named) && !config.contains("AuthKey"), "{config}");
    }
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let selector = services.get(NAME).await.unwrap().spec.unwrap().selector.unwrap();
    assert_eq!(selector["app"], "old-uid", "the pods are the old ones");
}

/// What was taken over is as if we had made it: nothing is left to be written.
async fn check_idle(cluster: &Cluster, controller: &str, manifest: &Value) {
    cluster.wait_idle(controller).await;
    cluster.take_writes();
    cluster.touch(controller, manifest, 1).await;
    cluster.wait_idle(controller).await;
    assert_eq!(cluster.take_writes(), Vec::<String>::new());
}

#[test]
fn a_proxy_of_upstream_keeps_its_device_and_loses_its_privileges() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let devices = upstream(cluster, labels("svc", "shop"), &["shop-web"], json!({})).await;
        let object = service("web", json!({}), load_balancer());
        cluster.apply(object.clone()).await;
        let ready = cluster.wait_condition("web", "True/ProxyCreated").await;
        let ingress = ready.status.unwrap().load_balancer.unwrap().ingress.unwrap();
        assert_eq!(ingress[0].hostname.as_ref(), Some(&devices[0].name));
        check_taken_over(cluster, &["shop-web"], &["BPF", "MKNOD", "NET_ADMIN"]).await;
        check_idle(cluster, "service", &object).await;
    });
}

#[test]
fn a_connector_of_upstream_keeps_all_of_its_devices() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let hostnames = ["edge-0", "edge-1"];
        let devices = upstream(cluster, labels("connector", ""), &hostnames, json!({})).await;
        let object = json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "Connector",
            "metadata": { "name": "web", "annotations": {} },
            "spec": { "hostnamePrefix": "edge", "replicas": 2, "exitNode": true } });
        cluster.apply(object.clone()).await;
        let api: Api<Connector> = Api::all(cluster.client.clone());
        let is_told = |connector: Option<&Connector>| {
            connector
                .and_then(|connector| connector.status.as_ref())
                .is_some_and(|status| status.devices.len() == devices.len())
        };
        let wait = kube::runtime::wait::await_condition(api, "web", is_told);
        let told = tokio::time::timeout(crate::cluster::PATIENCE, wait).await;
        let told = told.expect("its devices are told").unwrap().unwrap().status.unwrap();
        let names: Vec<_> = told.devices.iter().map(|device| device.hostname.clone()).collect();
        let known: Vec<_> = devices.iter().map(|device| Some(device.name.clone())).collect();
        assert_eq!(json!(names), json!(known));
        check_taken_over(cluster, &hostnames, &["BPF", "MKNOD", "NET_ADMIN"]).await;
        check_idle(cluster, "connector", &object).await;
    });
}

#[test]
fn an_ingress_of_upstream_keeps_its_device_and_its_name() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let name = "site.tailnet.ts.net";
        let old =
            json!({ "serve-config": "{}", "tailscale_capver": "120", "https_endpoint": name });
        upstream(cluster, labels("ingress", "shop"), &["site"], old).await;
        let spec = json!({ "clusterIP": "10.96.0.81", "ports": [{ "port": 80 }] });
        cluster.apply(service("backend", json!({}), spec)).await;
        let object = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": { "name": "web", "namespace": "shop", "annotations": {} },
            "spec": { "ingressClassName": "tailscale", "tls": [{ "hosts": ["site"] }],
                "defaultBackend": { "service": { "name": "backend", "port": { "number": 80 } } } } });
        cluster.apply(object.clone()).await;
        cluster
            .wait(("shop", "web"), "its name is told", |ingress: &Ingress| {
                let status = serde_json::to_value(&ingress.status).unwrap();
                status["loadBalancer"]["ingress"][0]["hostname"] == json!(name)
            })
            .await;
        cluster.wait_idle("ingress").await;
        check_taken_over(cluster, &["site"], &[]).await;
        let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        let data = secrets.get(&format!("{NAME}-0")).await.unwrap().data.unwrap();
        let served = String::from_utf8(data["serve-config"].0.clone()).unwrap();
        assert!(served.contains("http://10.96.0.81:80/"), "{served}");
        check_idle(cluster, "ingress", &object).await;
    });
}
