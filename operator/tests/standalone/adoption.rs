//! Proxies that upstream's operator has made are taken over: the device stays the same one.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Secret, Service},
};
use kube::ResourceExt as _;
use operator::tailnet_api::{KeyRequest, TailnetApi as _};
use secrecy::ExposeSecret as _;
use serde_json::json;

use crate::{
    cluster::{NAMESPACE, in_cluster},
    services::{load_balancer, service},
};

#[test]
fn a_proxy_of_upstream_keeps_its_device_and_loses_its_privileges() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let key = cluster.tailnet.create_key(&KeyRequest::for_proxy(["tag:k8s"])).await.unwrap();
        let device = cluster.tailnet.log_in(key.secret.expose_secret(), "shop-web").unwrap();
        let labels = json!({ "tailscale.com/managed": "true", "tailscale.com/parent-resource": "web",
            "tailscale.com/parent-resource-ns": "shop", "tailscale.com/parent-resource-type": "svc" });
        let name = "ts-web-x7k2p";
        let metadata = |name: &str| {
            json!({ "name": name, "namespace": NAMESPACE, "labels": labels,
                "finalizers": ["example.com/kept"] })
        };
        cluster
            .apply(json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata(&format!("{name}-0")),
                "stringData": { "cap-95.hujson": "{\"Version\":\"alpha0\"}",
                    "cap-107.hujson": "{\"Version\":\"alpha0\"}", "device_id": device.id.to_string(),
                    "device_fqdn": format!("{}.", device.name),
                    "device_ips": serde_json::to_string(&device.addresses).unwrap(),
                    "_machinekey": "m", "profile-1": "{}" } }))
            .await;
        cluster
            .apply(json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata(name),
                "spec": { "clusterIP": "None", "selector": { "app": "old-uid" } } }))
            .await;
        // A test server takes no privileged pods; this is as good.
        let privileged = json!({ "capabilities": { "add": ["SYS_ADMIN"] } });
        let mut pod = labels.clone();
        pod["app"] = json!("old-uid");
        cluster
            .apply(json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata(name),
                "spec": { "replicas": 1, "serviceName": name,
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

        cluster.apply(service("web", json!({}), load_balancer())).await;
        let ready = cluster.wait_condition("web", "True/ProxyCreated").await;
        let ingress = ready.status.unwrap().load_balancer.unwrap().ingress.unwrap();
        assert_eq!(ingress[0].hostname.as_ref(), Some(&device.name));
        assert_eq!(cluster.tailnet.take_calls(), [], "no key is made, no device touched");

        let sets: kube::Api<StatefulSet> = kube::Api::namespaced(cluster.client.clone(), NAMESPACE);
        let all = sets.list(&kube::api::ListParams::default()).await.unwrap().items;
        let [set] = all.as_slice() else { panic!("{} StatefulSets", all.len()) };
        assert_eq!(set.name_any(), name);
        assert_eq!(set.finalizers(), ["example.com/kept"], "what others keep stays");
        let pod = set.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        assert!(
            pod.init_containers.as_ref().is_none_or(Vec::is_empty),
            "{:?}",
            pod.init_containers
        );
        let container = &pod.containers[0];
        let context = container.security_context.as_ref().unwrap();
        assert_eq!(context.privileged, Some(false));
        let added = context.capabilities.as_ref().unwrap().add.as_ref().unwrap();
        assert_eq!(added, &["BPF", "MKNOD", "NET_ADMIN"]);
        assert!(container.env.as_ref().unwrap().iter().all(|variable| variable.name != "TS_OLD"));
        assert_eq!(pod.service_account_name.as_deref(), Some(name));
        let secret: Secret = kube::Api::namespaced(cluster.client.clone(), NAMESPACE)
            .get(&format!("{name}-0"))
            .await
            .unwrap();
        let data = secret.data.unwrap();
        assert_eq!(data["_machinekey"].0, b"m");
        let config = String::from_utf8(data["cap-107.hujson"].0.clone()).unwrap();
        assert!(
            config.contains("\"Hostname\":\"shop-web\"") && !config.contains("AuthKey"),
            "{config}"
        );
        let headless: Service =
            kube::Api::namespaced(cluster.client.clone(), NAMESPACE).get(name).await.unwrap();
        let selector = headless.spec.unwrap().selector.unwrap();
        assert_eq!(selector["app"], "old-uid", "the pods are the old ones");

        cluster.wait_idle("service").await;
        cluster.take_writes();
        cluster.touch("service", &service("web", json!({}), load_balancer()), 1).await;
        cluster.wait_idle("service").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());
    });
}
