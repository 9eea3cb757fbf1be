//! Recorders: what is made, what is told, keys and devices, and the end.
#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use std::time::Duration;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{Secret, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
    runtime::wait::await_condition,
};
use operator::{
    crd::{Recorder, Tailnet},
    tailnet_api::{DeviceId, Failure, TailnetApi as _, fake::Call},
};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NAMESPACE, PATIENCE, in_cluster},
    cluster_wide::{ClusterWide, condition, wait, wait_so},
    made::Made,
};

const LABELS: &str = "app.kubernetes.io/name=recorder";

impl ClusterWide for Recorder {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }
}

fn recorder(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "Recorder",
        "metadata": { "name": name }, "spec": spec })
}

fn two() -> Value {
    let s3 = json!({ "endpoint": "s3.example", "bucket": "b",
        "credentials": { "secret": { "name": "s3-keys" } } });
    let container = json!({ "image": "recorder:v1", "imagePullPolicy": "IfNotPresent",
        "env": [{ "name": "TSRECORDER_HOSTNAME", "value": "mine" },
            { "name": "TSRECORDER_BUCKET", "value": "not mine" }],
        "resources": { "limits": { "memory": "1Gi" } } });
    recorder(
        "rec",
        json!({ "replicas": 2, "tags": ["tag:rec"], "storage": { "s3": s3 }, "enableUI": true,
        "statefulSet": { "labels": { "team": "a" }, "annotations": { "note": "b" },
            "pod": { "labels": { "team": "a" }, "annotations": { "note": "c" }, "container": container,
                "serviceAccount": { "name": "recorders", "annotations": { "role": "r" } },
                "nodeSelector": { "disk": "big" } } } }),
    )
}

async fn check(cluster: &Cluster, file: &str) {
    Made::with(LABELS)
        .add::<ServiceAccount>(cluster)
        .await
        .add::<Role>(cluster)
        .await
        .add::<RoleBinding>(cluster)
        .await
        .add::<Secret>(cluster)
        .await
        .add::<StatefulSet>(cluster)
        .await
        .check(file);
}

/// A recorder logs in with its key, and keeps its state as tsrecorder does. Returns its device.
async fn log_in(cluster: &Cluster, name: &str, ordinal: usize) -> DeviceId {
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let found = secrets.get(&format!("{name}-auth-{ordinal}")).await.unwrap();
    let key = String::from_utf8(found.data.unwrap()["authkey"].0.clone()).unwrap();
    let hostname = format!("{name}-{ordinal}");
    let device = cluster.tailnet.log_in(&key, &hostname).expect("a good key");
    let profile = json!({ "Config": { "NodeID": device.id.to_string(),
        "UserProfile": { "LoginName": format!("{}.", device.name) } } });
    let told = json!({ "stringData": { "_current-profile": "profile-1",
        "profile-1": profile.to_string() } });
    secrets.patch(&hostname, &PatchParams::default(), &Patch::Merge(told)).await.unwrap();
    device.id
}

async fn devices(cluster: &Cluster, number: usize) -> Recorder {
    let of = |found: &Recorder| found.status.as_ref().map_or(0, |status| status.devices.len());
    wait_so(cluster, "rec", "so many devices", |found| of(found) == number).await
}

async fn delete(cluster: &Cluster) {
    let api: Api<Recorder> = Api::all(cluster.client.clone());
    api.delete("rec", &DeleteParams::default()).await.unwrap();
}

async fn wait_gone(cluster: &Cluster) {
    let api: Api<Recorder> = Api::all(cluster.client.clone());
    let wait = await_condition(api, "rec", |found: Option<&Recorder>| found.is_none());
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "it is still there");
    assert_eq!(cluster.left().await, Vec::<String>::new());
}

#[test]
fn recorders_are_made_log_in_and_go_with_their_devices() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(two()).await;
        // Before anything has logged in, as upstream has it.
        wait::<Recorder>(cluster, "rec", "True/RecorderCreated@1").await;
        check(cluster, "recorder.yaml").await;
        assert_eq!(cluster.tailnet.key_requests().len(), 2);
        assert_eq!(cluster.tailnet.key_requests()[0].tags, ["tag:rec"]);
        for ordinal in [1, 0] {
            log_in(cluster, "rec", ordinal).await;
        }
        let both = devices(cluster, 2).await.status.unwrap().devices;
        assert_eq!(both[0].hostname, "rec-0");
        assert_eq!(both[0].url.as_deref(), Some("https://rec-0.tailnet.ts.net"));
        assert_eq!((both[1].hostname.as_str(), both[1].tailnet_ips.len()), ("rec-1", 2));

        cluster.wait_idle("recorder").await;
        cluster.take_writes();
        for number in 0..10 {
            cluster.touch("recorder", &two(), number).await;
        }
        cluster.wait_idle("recorder").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());
        assert_eq!(cluster.tailnet.key_requests().len(), 0, "both were used and none was made");

        // Labels of pods change what pods have, not what they are selected by. One replica is too many.
        let mut one = two();
        one["spec"]["replicas"] = json!(1);
        one["spec"]["statefulSet"]["pod"]["labels"] = json!({ "more": "1" });
        one["spec"]["statefulSet"]["pod"]["serviceAccount"] =
            json!({ "annotations": { "role": "s" } });
        cluster.apply(one).await;
        cluster.wait_gone::<Secret>(NAMESPACE, "rec-1").await;
        cluster.wait_gone::<Secret>(NAMESPACE, "rec-auth-1").await;
        cluster.wait_gone::<ServiceAccount>(NAMESPACE, "recorders").await;
        devices(cluster, 1).await;
        let set = cluster
            .wait((NAMESPACE, "rec"), "the new label", |set: &StatefulSet| {
                let template = set.spec.as_ref().unwrap().template.metadata.as_ref().unwrap();
                template.labels.as_ref().unwrap().contains_key("more")
            })
            .await;
        assert!(set.spec.unwrap().selector.match_labels.unwrap().contains_key("team"));
        let left = cluster.tailnet.devices().await.unwrap();
        assert_eq!(left.iter().map(|one| one.hostname.as_str()).collect::<Vec<_>>(), ["rec-0"]);

        delete(cluster).await;
        cluster.end_pods("rec").await;
        wait_gone(cluster).await;
        assert!(cluster.tailnet.devices().await.unwrap().is_empty());
    });
}

#[test]
fn a_key_that_failed_is_made_anew_and_one_that_is_lost_too() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(recorder("rec", json!({ "enableUI": true }))).await;
        wait::<Recorder>(cluster, "rec", "True/RecorderCreated@1").await;
        assert_eq!(cluster.tailnet.key_requests()[0].tags, ["tag:k8s"]);
        let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        let key = async || {
            let found = secrets.get_opt("rec-auth-0").await.unwrap();
            found.map(|found| found.data.unwrap()["authkey"].0.clone()).unwrap_or_default()
        };
        let first = key().await;
        let device = log_in(cluster, "rec", 0).await;
        devices(cluster, 1).await;
        let other = async |than: &[u8]| {
            let than = than.to_vec();
            cluster
                .wait((NAMESPACE, "rec-auth-0"), "another key", move |found: &Secret| {
                    found.data.as_ref().is_some_and(|data| data["authkey"].0 != than)
                })
                .await;
        };
        let failed = String::from_utf8(first.clone()).unwrap();
        let request =
            json!({ "stringData": { "reissue_authkey": failed, "device_id": device.to_string() } });
        secrets.patch("rec-0", &PatchParams::default(), &Patch::Merge(request)).await.unwrap();
        other(&first).await;
        assert!(
            cluster.tailnet.devices().await.unwrap().is_empty(),
            "its device is of no more use"
        );
        // The recorder takes it, and withdraws its request.
        let taken = json!({ "data": { "reissue_authkey": null, "device_id": null } });
        secrets.patch("rec-0", &PatchParams::default(), &Patch::Merge(taken)).await.unwrap();
        // It is there: no other one is made, however often it is looked.
        cluster.wait_idle("recorder").await;
        let second = key().await;
        cluster.touch("recorder", &recorder("rec", json!({ "enableUI": true })), 1).await;
        assert_eq!(key().await, second);

        secrets.delete("rec-auth-0", &DeleteParams::default()).await.unwrap();
        other(&second).await;
        assert_eq!(cluster.tailnet.key_requests().len(), 2, "the second one was never used");
        // The state is nobody's but the recorder's.
        let state = secrets.get("rec-0").await.unwrap().data.unwrap();
        assert!(state.contains_key("profile-1"));
    });
}

#[test]
fn what_becomes_of_a_recorder_is_told() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let told = async |reason: &str, generation: i64| {
            let wanted = format!("False/{reason}@{generation}");
            let told = condition(&wait::<Recorder>(cluster, "rec", &wanted).await).1;
            assert!(cluster.events("rec", reason).await.contains(&told), "{told}");
            told
        };
        cluster.apply(recorder("rec", json!({}))).await;
        let said = told("RecorderInvalid", 1).await;
        assert_eq!(said, "spec: nobody could see the recordings, set enableUI or storage.s3");
        assert!(cluster.left().await.is_empty());

        let theirs = json!({ "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": "theirs", "namespace": NAMESPACE } });
        cluster.apply(theirs).await;
        let account = json!({ "pod": { "serviceAccount": { "name": "theirs" } } });
        let spec = json!({ "enableUI": true, "statefulSet": account });
        cluster.apply(recorder("rec", spec)).await;
        let said = told("RecorderInvalid", 2).await;
        assert!(
            said.contains("serviceAccount.name") && said.contains("tailscale/theirs"),
            "{said}"
        );

        let refused = Failure::Invalid("requested tags [tag:k8s] are invalid".into());
        cluster.tailnet.fail(Call::CreateKey, [refused]);
        cluster.apply(recorder("rec", json!({ "enableUI": true }))).await;
        let said = told("RecorderCreationFailed", 3).await;
        assert!(said.contains("tag:k8s"), "{said}");
        // It is tried again by itself.
        wait::<Recorder>(cluster, "rec", "True/RecorderCreated@3").await;
    });
}

#[test]
fn recorders_end_whatever_goes_first_and_whatever_fails() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(two()).await;
        wait::<Recorder>(cluster, "rec", "True/RecorderCreated@1").await;
        let gone = log_in(cluster, "rec", 0).await;
        log_in(cluster, "rec", 1).await;
        devices(cluster, 2).await;
        // One device was deleted by somebody, the other one's deletion fails twice.
        cluster.tailnet.delete_device(&gone).await.unwrap();
        let broken = Failure::Unavailable { problem: "HTTP 500".into(), retry_after: None };
        let pause = Some(Duration::from_millis(300));
        let limited = Failure::RateLimited { retry_after: pause };
        cluster.tailnet.fail(Call::DeleteDevice, [broken, limited]);
        delete(cluster).await;
        cluster.end_pods("rec").await;
        wait_gone(cluster).await;
        assert!(cluster.tailnet.devices().await.unwrap().is_empty());

        // Its tailnet was never there, or is gone before it.
        let elsewhere = recorder("rec", json!({ "enableUI": true, "tailnet": "other" }));
        cluster.apply(elsewhere.clone()).await;
        let waits = "False/RecorderTailnetUnavailable@1";
        let told = condition(&wait::<Recorder>(cluster, "rec", waits).await).1;
        assert!(told.contains("there is no Tailnet \"other\""), "{told}");
        cluster.events("rec", "RecorderTailnetUnavailable").await;
        let url = "http://127.0.0.1:9";
        cluster
            .apply(json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "Tailnet",
                "metadata": { "name": "other" },
                "spec": { "loginUrl": url, "credentials": { "secretName": "none" } } }))
            .await;
        let tailnets: Api<Tailnet> = Api::all(cluster.client.clone());
        let is_judged = |found: Option<&Tailnet>| found.is_some_and(|found| found.status.is_some());
        let judged = await_condition(tailnets.clone(), "other", is_judged);
        tokio::time::timeout(PATIENCE, judged).await.expect("it is judged").unwrap();
        cluster.context.tailnets.ready("other", cluster.tailnet.clone());
        cluster.touch("recorder", &elsewhere, 1).await;
        wait::<Recorder>(cluster, "rec", "True/RecorderCreated@1").await;
        log_in(cluster, "rec", 0).await;
        devices(cluster, 1).await;
        tailnets.delete("other", &DeleteParams::default()).await.unwrap();
        let gone = await_condition(tailnets, "other", |found: Option<&Tailnet>| found.is_none());
        tokio::time::timeout(PATIENCE, gone).await.expect("it goes").unwrap();
        cluster.context.tailnets.remove("other");
        delete(cluster).await;
        cluster.end_pods("rec").await;
        wait_gone(cluster).await;
        let said = cluster.events("rec", "RecorderTailnetUnavailable").await;
        assert!(said.iter().any(|said| said.contains("delete them there")), "{said:?}");
    });
}

#[test]
fn recorders_of_upstream_keep_their_keys_and_what_they_are_selected_by() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let labels = json!({ "app.kubernetes.io/name": "recorder",
            "app.kubernetes.io/instance": "rec", "app.kubernetes.io/managed-by": "tailscale-operator" });
        let mut selected = labels.clone();
        selected["old"] = json!("1");
        for (name, data) in
            [("rec-auth-0", json!({ "authkey": "tskey-auth-old" })), ("rec-0", json!({}))]
        {
            cluster
                .apply(json!({ "apiVersion": "v1", "kind": "Secret", "stringData": data,
                    "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels } }))
                .await;
        }
        cluster
            .apply(json!({ "apiVersion": "apps/v1", "kind": "StatefulSet",
                "metadata": { "name": "rec", "namespace": NAMESPACE, "labels": labels },
                "spec": { "replicas": 1, "selector": { "matchLabels": selected },
                    "template": { "metadata": { "labels": selected },
                        "spec": { "containers": [{ "name": "recorder", "image": "old",
                            "env": [{ "name": "OLD", "value": "1" }] }] } } } }))
            .await;
        cluster.apply(recorder("rec", json!({ "enableUI": true }))).await;
        wait::<Recorder>(cluster, "rec", "True/RecorderCreated@1").await;
        assert!(cluster.tailnet.key_requests().is_empty());
        let sets: Api<StatefulSet> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        let spec = sets.get("rec").await.unwrap().spec.unwrap();
        assert_eq!(serde_json::to_value(spec.selector.match_labels).unwrap(), selected);
        let container = &spec.template.spec.unwrap().containers[0];
        assert!(container.env.iter().flatten().all(|one| one.name != "OLD"));
        let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        let key = secrets.get("rec-auth-0").await.unwrap();
        assert_eq!(key.data.as_ref().unwrap()["authkey"].0, b"tskey-auth-old");
        assert!(key.labels().contains_key("tailscale.com/managed"), "it is watched from now on");
    });
}
