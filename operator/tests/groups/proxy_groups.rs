//! ProxyGroups: what is made, and what users are told.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Secret, Service},
    rbac::v1::Role,
    scheduling::v1::PriorityClass,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use operator::crd::ProxyGroup;
use serde_json::{Value, json};

use crate::{
    bed::{
        config, config_of, devices, end_pod, group, start_pod, start_replica, tell, told,
        wait_ready, wait_told,
    },
    cluster::{Cluster, NAMESPACE, in_cluster},
    cluster_wide::{ClusterWide as _, wait_so},
    golden,
};

async fn golden_group(cluster: &Cluster, name: &str, file: &str) {
    let all = golden::objects(cluster, name).await;
    golden::compare("groups", file, &all, |text| text);
}

#[test]
fn proxies_are_made_and_told_of_as_they_log_in() {
    kernel_or_skip!();
    in_cluster(&["--proxy-priority-class-name", "high"], async |cluster| {
        let high = json!({ "metadata": { "name": "high" }, "value": 1 });
        let classes: Api<PriorityClass> = Api::all(cluster.client.clone());
        let high = serde_json::from_value(high).unwrap();
        classes.create(&PostParams::default(), &high).await.unwrap();
        cluster.apply(group("pg", json!({ "type": "egress" }))).await;
        assert_eq!(
            wait_told(cluster, "pg", "False/ProxyGroupCreating").await,
            "0/2 ProxyGroup pods running"
        );
        golden_group(cluster, "pg", "egress.yaml").await;
        start_replica(cluster, "pg", 0).await;
        let one = wait_so(cluster, "pg", "one is available", |group: &ProxyGroup| {
            told(group.conditions(), "ProxyGroupAvailable").0 == "True/ProxyGroupCreating"
        })
        .await;
        assert_eq!(told(one.conditions(), "ProxyGroupAvailable").1, "1/2 ProxyGroup pods running");
        start_replica(cluster, "pg", 1).await;
        let both = wait_ready(cluster, "pg", "True/ProxyGroupReady").await;
        assert_eq!(told(both.conditions(), "ProxyGroupAvailable").0, "True/ProxyGroupAvailable");
        assert_eq!(both.status.as_ref().unwrap().conditions[1].observed_generation, None);
        let devices = both.status.unwrap().devices;
        let names: Vec<_> = devices.iter().map(|one| one.hostname.as_str()).collect();
        assert_eq!(names, ["pg-0", "pg-1"]);
        assert!(devices.iter().all(|one| one.tailnet_ips.len() == 2), "{devices:?}");
        // Who has logged in needs no key.
        cluster
            .wait((NAMESPACE, "pg-1-config"), "no key", |secret: &Secret| {
                config_of(secret).get("AuthKey").is_none()
            })
            .await;
        // A pod that was made anew has not told that it works.
        end_pod(cluster, "pg-0").await;
        wait_told(cluster, "pg", "False/ProxyGroupCreating").await;
        start_pod(cluster, "pg", 0, &["10.244.0.10"]).await;
        let uid = pod_uid(cluster, "pg-0").await;
        tell(cluster, "pg", 0, json!({ "pod_uid": uid })).await;
        wait_ready(cluster, "pg", "True/ProxyGroupReady").await;
    });
}

async fn pod_uid(cluster: &Cluster, name: &str) -> String {
    let api: Api<k8s_openapi::api::core::v1::Pod> = cluster.api(NAMESPACE);
    api.get(name).await.unwrap().uid().unwrap()
}

#[test]
fn ingress_proxies_share_accounts_and_keep_what_others_write() {
    kernel_or_skip!();
    in_cluster(&["--shared-acme-account-key", "true"], async |cluster| {
        let class = json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass",
            "metadata": { "name": "measured" }, "spec": { "metrics": { "enable": true },
                "tailscale": { "acceptRoutes": true }, "useLetsEncryptStagingEnvironment": true,
                "statefulSet": { "pod": { "labels": { "team": "edge" } } } } });
        cluster.apply(class).await;
        let spec = json!({ "type": "ingress", "replicas": 1, "hostnamePrefix": "edge",
            "tags": ["tag:edge"], "proxyClass": "measured" });
        cluster.apply(group("in", spec.clone())).await;
        wait_ready(cluster, "in", "False/ProxyGroupCreating").await;
        cluster.stateful_set("in").await;
        cluster.wait_idle("proxygroup").await;
        golden_group(cluster, "in", "ingress.yaml").await;
        assert_eq!(cluster.tailnet.key_requests()[0].tags, ["tag:edge"]);
        let accounts = "tailscale-acme-accounts";
        let kept = cluster.wait((NAMESPACE, accounts), "it is there", |_: &Secret| true).await;
        assert_eq!(kept.finalizers(), ["tailscale.com/acme-account-protection"]);
        assert!(kept.owner_references().is_empty());

        // What others decide is kept, and not overwritten by what was known before.
        let secrets: Api<Secret> = cluster.api(NAMESPACE);
        let mut file = config(cluster, "in", 0).await;
        file["AdvertiseServices"] = json!(["svc:web"]);
        let patch = json!({ "stringData": { "cap-106.hujson": file.to_string() } });
        let other = PatchParams { field_manager: Some("other".into()), ..Default::default() };
        secrets.patch("in-0-config", &other, &Patch::Merge(patch)).await.unwrap();
        let maps: Api<ConfigMap> = cluster.api(NAMESPACE);
        let patch = Patch::Merge(json!({ "binaryData": { "serve-config.json": "e30=" } }));
        maps.patch("in-ingress-config", &other, &patch).await.unwrap();
        start_replica(cluster, "in", 0).await;
        wait_ready(cluster, "in", "True/ProxyGroupReady").await;
        let used = cluster
            .wait((NAMESPACE, "in-0-config"), "no key", |secret: &Secret| {
                config_of(secret).get("AuthKey").is_none()
            })
            .await;
        assert_eq!(config_of(&used)["AdvertiseServices"], json!(["svc:web"]));
        let map = maps.get("in-ingress-config").await.unwrap();
        assert!(map.binary_data.unwrap().contains_key("serve-config.json"));

        // Accounts that are being deleted: nothing is put back, and it is told.
        secrets.delete(accounts, &DeleteParams::default()).await.unwrap();
        let note = cluster.wait_event(accounts, "ACMEAccountsPendingDeletion").await;
        assert!(note.contains("remove its finalizer"), "{note}");
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        secrets.patch(accounts, &other, &free).await.unwrap();
        let anew = |secret: &Secret| secret.uid() != kept.uid();
        cluster.wait((NAMESPACE, accounts), "it is made anew", anew).await;

        // A group of its own opinion.
        let mut own = group("in", spec);
        own["metadata"]["annotations"] = json!({ "tailscale.com/share-acme-account": "no" });
        cluster.apply(own).await;
        cluster
            .wait((NAMESPACE, "in"), "it shares none", |role: &Role| {
                !serde_json::to_string(role).unwrap().contains("tailscale-acme-accounts")
            })
            .await;
    });
}

#[test]
fn an_idle_group_is_not_written_to() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let groups = [
            group("out", json!({ "type": "egress" })),
            group("in", json!({ "type": "ingress", "replicas": 1 })),
        ];
        for one in &groups {
            cluster.apply(one.clone()).await;
        }
        cluster.stateful_set("out").await;
        cluster.stateful_set("in").await;
        for (name, ordinal) in [("out", 0), ("out", 1), ("in", 0)] {
            start_replica(cluster, name, ordinal).await;
        }
        for name in ["out", "in"] {
            wait_ready(cluster, name, "True/ProxyGroupReady").await;
        }
        cluster.wait_idle("proxygroup").await;
        assert!(!cluster.take_writes().is_empty(), "writes are not noted");
        cluster.tailnet.take_calls();
        for number in 0..10 {
            for one in &groups {
                cluster.touch("proxygroup", one, number).await;
            }
        }
        cluster.wait_idle("proxygroup").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());
        assert_eq!(cluster.tailnet.take_calls(), []);
    });
}

#[test]
fn replicas_come_and_go_with_their_devices() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let of = |replicas: i32| group("pg", json!({ "type": "egress", "replicas": replicas }));
        cluster.apply(of(2)).await;
        cluster.stateful_set("pg").await;
        let first = start_replica(cluster, "pg", 0).await;
        let second = start_replica(cluster, "pg", 1).await;
        wait_ready(cluster, "pg", "True/ProxyGroupReady").await;

        cluster.apply(of(1)).await;
        let is_waiting = |group: &ProxyGroup| {
            let (_, message) = told(group.conditions(), "ProxyGroupReady");
            message == "waiting for 1 ProxyGroup pods to shut down"
        };
        wait_so(cluster, "pg", "it waits for the pod", is_waiting).await;
        // The device stays as long as its pod.
        assert_eq!(devices(cluster).await, [first.clone(), second]);
        end_pod(cluster, "pg-1").await;
        cluster.wait_gone::<Secret>(NAMESPACE, "pg-1").await;
        cluster.wait_gone::<Secret>(NAMESPACE, "pg-1-config").await;
        wait_ready(cluster, "pg", "True/ProxyGroupReady").await;
        assert_eq!(devices(cluster).await, [first]);
        let set: StatefulSet = cluster.api(NAMESPACE).get("pg").await.unwrap();
        assert_eq!(set.spec.unwrap().replicas, Some(1));

        // Up again: a key of its own, once.
        cluster.apply(of(2)).await;
        let key = |secret: &Secret| config_of(secret)["AuthKey"].is_string();
        cluster.wait((NAMESPACE, "pg-1-config"), "a key", key).await;
        start_replica(cluster, "pg", 1).await;
        wait_ready(cluster, "pg", "True/ProxyGroupReady").await;

        // None at all is what was asked for.
        cluster.apply(of(0)).await;
        end_pod(cluster, "pg-0").await;
        end_pod(cluster, "pg-1").await;
        cluster.wait_gone::<Secret>(NAMESPACE, "pg-0").await;
        wait_so(cluster, "pg", "none is ready, and none available", |group: &ProxyGroup| {
            let told = |kind| told(group.conditions(), kind).0;
            told("ProxyGroupReady") == "True/ProxyGroupReady"
                && told("ProxyGroupAvailable") == "False/ProxyGroupCreating"
        })
        .await;
        cluster.wait_gone::<Secret>(NAMESPACE, "pg-1").await;
        assert_eq!(devices(cluster).await, Vec::<String>::new());
        cluster.wait_idle("proxygroup").await;
        let role: Role = cluster.api(NAMESPACE).get("pg").await.unwrap();
        assert!(
            !serde_json::to_string(&role).unwrap().contains("secrets"),
            "all Secrets: {role:?}"
        );
    });
}

#[test]
fn a_key_is_made_anew_when_a_proxy_asks_and_not_without_end() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(group("pg", json!({ "type": "egress", "replicas": 1 }))).await;
        cluster.stateful_set("pg").await;
        let key = |secret: &Secret| config_of(secret)["AuthKey"].as_str().map(str::to_owned);
        let is_key = |secret: &Secret| key(secret).is_some();
        let first = key(&cluster.wait((NAMESPACE, "pg-0-config"), "a key", is_key).await).unwrap();
        let device = start_replica(cluster, "pg", 0).await;
        let no_key = |secret: &Secret| key(secret).is_none();
        cluster.wait((NAMESPACE, "pg-0-config"), "no key", no_key).await;

        tell(cluster, "pg", 0, json!({ "reissue_authkey": first })).await;
        let again = key(&cluster.wait((NAMESPACE, "pg-0-config"), "a key", is_key).await).unwrap();
        assert!(again != first && !devices(cluster).await.contains(&device));
        cluster.wait_idle("proxygroup").await;
        assert_eq!(cluster.tailnet.key_requests().len(), 1, "the used one is gone, one was made");
        // That one does not serve either: it is told, and a key comes later.
        tell(cluster, "pg", 0, json!({ "reissue_authkey": again })).await;
        let why = wait_told(cluster, "pg", "False/ProxyGroupCreationFailed").await;
        assert!(why.contains("auth keys of pg were made anew too often"), "{why}");
        assert_eq!(cluster.tailnet.key_requests().len(), 1);
    });
}

#[test]
fn what_cannot_be_done_is_told() {
    kernel_or_skip!();
    in_cluster(&["--proxy-default-class", "usual"], async |cluster| {
        // The default class counts, and what is wrong is told with its remedy.
        cluster.apply(group("pg", json!({ "type": "egress", "replicas": 1 }))).await;
        let why = wait_told(cluster, "pg", "False/ProxyGroupCreating").await;
        assert!(why.contains("ProxyClass `usual` does not exist: create it"), "{why}");
        let class = |image: Option<&str>, annotations: Value| {
            json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": { "name": "usual" },
                "spec": { "statefulSet": { "annotations": annotations, "pod": { "tailscaleContainer": {
                    "image": image.unwrap_or("proxy:2"),
                    "env": [{ "name": "TS_LOCAL_ADDR_PORT", "value": "[::]:9090" }] } } } } })
        };
        cluster.apply(class(None, json!({ "a key": "1" }))).await;
        let is_pending = |group: &ProxyGroup| {
            told(group.conditions(), "ProxyGroupReady")
                .1
                .contains("ProxyClass `usual` is not ready")
        };
        wait_so(cluster, "pg", "its class is not ready", is_pending).await;
        cluster.apply(class(Some("tailscale/k8s-proxy:v1"), json!({ "a": "1" }))).await;
        let why = wait_told(cluster, "pg", "False/ProxyGroupInvalid").await;
        assert!(why.contains("tailscaleContainer.image: `tailscale/k8s-proxy:v1`"), "{why}");
        assert_eq!(cluster.wait_event("pg", "ProxyGroupInvalid").await, why);
        assert_eq!(cluster.left().await, Vec::<String>::new());
        cluster.apply(class(None, json!({ "a": "1" }))).await;
        let set = cluster.stateful_set("pg").await;
        // Who moves the health address has nobody asked there.
        let pod = set.spec.unwrap().template.spec.unwrap();
        assert!(pod.readiness_gates.is_none() && pod.containers[0].lifecycle.is_none());

        // Names that others have, and names that do not fit.
        cluster
            .apply(json!({ "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": { "name": "theirs", "namespace": NAMESPACE } }))
            .await;
        for (name, part) in [
            ("theirs", "ServiceAccount tailscale/theirs exists and is not of this ProxyGroup"),
            ("a.b", "metadata.name: `a.b`"),
            ("kube-apiserver-auth-proxy", "is the ServiceAccount of ProxyGroups that authenticate"),
        ] {
            cluster.apply(group(name, json!({ "type": "ingress" }))).await;
            let why = wait_told(cluster, name, "False/ProxyGroupInvalid").await;
            assert!(why.contains(part), "{why}");
            assert_eq!(cluster.wait_event(name, "ProxyGroupInvalid").await, why);
        }
        // A control server that refuses.
        let failure = operator::tailnet_api::Failure::Forbidden("scope auth_keys".into());
        cluster.tailnet.fail(operator::tailnet_api::fake::Call::CreateKey, [failure]);
        cluster.apply(group("refused", json!({ "type": "ingress" }))).await;
        let why = wait_told(cluster, "refused", "False/ProxyGroupCreationFailed").await;
        assert!(why.contains("scope auth_keys"), "{why}");
        assert_eq!(cluster.wait_event("refused", "ProxyGroupCreationFailed").await, why);
    });
}

#[test]
fn metrics_are_found_while_they_are_wanted() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let class = |enable: bool| {
            json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass",
                "metadata": { "name": "measured" }, "spec": { "metrics": { "enable": enable } } })
        };
        cluster.apply(class(true)).await;
        cluster.apply(group("pg", json!({ "type": "egress", "proxyClass": "measured" }))).await;
        let service =
            cluster.wait((NAMESPACE, "pg-metrics"), "it is there", |_: &Service| true).await;
        assert_eq!(service.labels()["ts_prom_job"], "ts_proxygroup_pg");
        assert_eq!(service.labels()["ts_proxy_type"], "proxygroup");
        assert!(!service.labels().contains_key("ts_proxy_parent_namespace"));
        assert!(service.owner_references().is_empty());
        cluster.apply(class(false)).await;
        cluster.wait_gone::<Service>(NAMESPACE, "pg-metrics").await;
    });
}
