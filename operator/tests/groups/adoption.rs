//! ProxyGroups of upstream's operator: taken over with their devices.

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Secret, rbac::v1::Role};
use kube::{Api, ResourceExt as _};
use operator::crd::ProxyGroup;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::{
    bed::{config, group, start_pod, wait_ready},
    cluster::{Cluster, NAMESPACE, in_cluster},
};

/// What upstream's operator made for a replica of a group with this UID, which has logged in.
async fn made(cluster: &Cluster, uid: &str) -> String {
    let owner = json!([{ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "name": "in", "uid": uid,
        "controller": true, "blockOwnerDeletion": true }]);
    let labels = |kind: Option<&str>| {
        let mut all = json!({ "tailscale.com/managed": "true", "tailscale.com/parent-resource": "in",
            "tailscale.com/parent-resource-type": "proxygroup" });
        if let Some(kind) = kind {
            all["tailscale.com/secret-type"] = json!(kind);
        }
        all
    };
    let metadata = |name: &str, kind: Option<&str>| json!({ "name": name, "namespace": NAMESPACE, "labels": labels(kind), "ownerReferences": owner });
    let tailnet = &*cluster.tailnet;
    let request = operator::tailnet_api::KeyRequest::for_proxy(["tag:k8s"]);
    let key = operator::tailnet_api::TailnetApi::create_key(tailnet, &request).await.unwrap();
    let device = tailnet.log_in(key.secret.expose_secret(), "in-0").unwrap();
    let file = json!({ "Version": "alpha0", "Locked": false, "ServerURL": "https://control.example", "Hostname": "in-0",
        "acceptDNS": false, "acceptRoutes": false, "AdvertiseServices": ["svc:web"] });
    let profile = json!({ "Config": { "NodeID": device.id.to_string() } });
    let state = json!({ "_machinekey": "m", "_current-profile": "profile-1", "profile-1": profile.to_string(),
        "device_id": device.id.to_string(), "device_fqdn": format!("{}.", device.name),
        "device_ips": serde_json::to_string(&device.addresses).unwrap() });
    // A test server takes no privileged pods; this is as good.
    let privileged = json!({ "capabilities": { "add": ["SYS_ADMIN"] } });
    let template = json!({ "metadata": { "labels": labels(None) }, "spec": { "serviceAccountName": "in",
        "initContainers": [{ "name": "sysctler", "image": "old", "securityContext": privileged }],
        "containers": [{ "name": "tailscale", "image": "old", "securityContext": privileged,
            "env": [{ "name": "TS_OLD", "value": "1" }] }] } });
    let set =
        json!({ "replicas": 1, "selector": { "matchLabels": labels(None) }, "template": template });
    let all: [Value; 5] = [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata("in", None) }),
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata("in", None),
            "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"] }] }),
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata("in-0-config", Some("config")),
            "stringData": { "cap-106.hujson": file.to_string() } }),
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata("in-0", Some("state")), "stringData": state }),
        json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata("in", None), "spec": set }),
    ];
    for object in all {
        cluster.apply(object).await;
    }
    device.id.to_string()
}

#[test]
fn a_group_is_taken_over_with_its_devices() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        // It waits for its class until upstream's objects are there.
        let of = |class: &str| {
            let class = json!(class);
            group("in", json!({ "type": "ingress", "replicas": 1, "proxyClass": class }))
        };
        cluster.apply(of("later")).await;
        let waits = wait_ready(cluster, "in", "False/ProxyGroupCreating").await;
        let device = made(cluster, &waits.uid().unwrap()).await;
        cluster.wait_idle("proxygroup").await;
        cluster.tailnet.take_calls();
        cluster.apply(of("")).await;
        cluster
            .wait((NAMESPACE, "in"), "it is taken over", |set: &StatefulSet| {
                let pod = set.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
                let context = pod.containers[0].security_context.as_ref();
                context.is_some_and(|context| context.privileged == Some(false))
                    && pod.init_containers.as_ref().is_none_or(Vec::is_empty)
            })
            .await;
        let pod = start_pod(cluster, "in", 0, &["10.244.0.10"]).await;
        crate::bed::tell(cluster, "in", 0, json!({ "pod_uid": pod.uid() })).await;
        let ready: ProxyGroup = wait_ready(cluster, "in", "True/ProxyGroupReady").await;
        assert_eq!(ready.status.unwrap().devices[0].hostname, "in-0");
        let secrets: Api<Secret> = cluster.api(NAMESPACE);
        let state = secrets.get("in-0").await.unwrap().data.unwrap();
        assert_eq!(state["_machinekey"].0, b"m");
        assert_eq!(state["device_id"].0, device.as_bytes());
        let config = config(cluster, "in", 0).await;
        assert_eq!(config["AdvertiseServices"], json!(["svc:web"]));
        assert!(config.get("AuthKey").is_none());
        let role: Role = cluster.api(NAMESPACE).get("in").await.unwrap();
        let rules = serde_json::to_string(&role.rules).unwrap();
        assert!(!rules.contains("watch") && rules.contains("in-0-config"), "{rules}");
        let set: StatefulSet = cluster.api(NAMESPACE).get("in").await.unwrap();
        let env = set.spec.unwrap().template.spec.unwrap().containers[0].env.clone().unwrap();
        assert!(env.iter().all(|one| one.name != "TS_OLD"));
        assert_eq!(cluster.tailnet.take_calls(), [], "no key is made, no device touched");
        cluster.wait_idle("proxygroup").await;
        cluster.take_writes();
        cluster.touch("proxygroup", &of(""), 1).await;
        cluster.wait_idle("proxygroup").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());
    });
}
