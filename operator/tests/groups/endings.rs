//! How ProxyGroups end: in any order, with tailnets that are gone or refuse.

use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::wait::await_condition,
};
use operator::{
    crd::ProxyGroup,
    tailnet_api::{Failure, fake::Call},
};
use serde_json::json;

use crate::{
    bed::{assert_nothing_left, devices, end_pod, group, start_replica, wait_ready, wait_told},
    cluster::{Cluster, PATIENCE, in_cluster},
};

pub(crate) async fn delete(cluster: &Cluster, name: &str) {
    let api: Api<ProxyGroup> = Api::all(cluster.client.clone());
    api.delete(name, &kube::api::DeleteParams::default()).await.unwrap();
}

pub(crate) async fn wait_gone(cluster: &Cluster, name: &str) {
    let api: Api<ProxyGroup> = Api::all(cluster.client.clone());
    let gone = await_condition(api, name, |found: Option<&ProxyGroup>| found.is_none());
    tokio::time::timeout(PATIENCE, gone).await.expect("the ProxyGroup is gone").unwrap();
}

#[test]
fn a_group_ends_with_its_devices_and_a_server_that_refuses_is_asked_again() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(group("pg", json!({ "type": "ingress" }))).await;
        cluster.stateful_set("pg").await;
        start_replica(cluster, "pg", 0).await;
        start_replica(cluster, "pg", 1).await;
        wait_ready(cluster, "pg", "True/ProxyGroupReady").await;
        // One was deleted in the console already, and the server fails once.
        let all = devices(cluster).await;
        let gone = operator::tailnet_api::DeviceId::new(all[0].clone());
        operator::tailnet_api::TailnetApi::delete_device(&*cluster.tailnet, &gone).await.unwrap();
        let failure = Failure::RateLimited { retry_after: None };
        cluster.tailnet.fail(Call::DeleteDevice, [failure]);
        delete(cluster, "pg").await;
        cluster.end_pods("pg").await;
        end_pod(cluster, "pg-0").await;
        end_pod(cluster, "pg-1").await;
        let why = wait_told(cluster, "pg", "False/ProxyGroupCreationFailed").await;
        assert!(!why.is_empty());
        wait_gone(cluster, "pg").await;
        assert_eq!(devices(cluster).await, Vec::<String>::new());
        assert_nothing_left(cluster).await;
    });
}

#[test]
fn a_group_waits_for_its_tailnet_and_ends_without_it() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.context.tailnets.ready("other", cluster.tailnet.clone());
        let spec = json!({ "type": "egress", "replicas": 1, "tailnet": "other" });
        cluster.apply(group("pg", spec)).await;
        cluster.stateful_set("pg").await;
        let device = start_replica(cluster, "pg", 0).await;
        wait_ready(cluster, "pg", "True/ProxyGroupReady").await;
        cluster.context.tailnets.remove("other");
        let touch = Patch::Merge(json!({ "metadata": { "annotations": { "touched": "1" } } }));
        let api: Api<ProxyGroup> = Api::all(cluster.client.clone());
        api.patch("pg", &PatchParams::default(), &touch).await.unwrap();
        let told = wait_ready(cluster, "pg", "False/ProxyGroupTailnetUnavailable").await;
        assert_eq!(told.status.as_ref().unwrap().devices.len(), 1, "what works still does");
        let note = cluster.wait_event("pg", "ProxyGroupTailnetUnavailable").await;
        assert!(note.contains("there is no Tailnet \"other\": create it"), "{note}");

        delete(cluster, "pg").await;
        cluster.end_pods("pg").await;
        wait_gone(cluster, "pg").await;
        let notes = cluster.events("pg", "ProxyGroupTailnetUnavailable").await;
        assert!(notes.iter().any(|note| note.contains("delete them there")), "{notes:?}");
        assert_eq!(devices(cluster).await, [device]);
        assert_nothing_left(cluster).await;
        assert!(told.finalizers().iter().any(|one| one == "tailscale.com/finalizer"));
    });
}

#[test]
fn a_group_that_never_came_to_be_ends_at_once() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let spec = json!({ "type": "egress", "tailnet": "never" });
        cluster.apply(group("pg", spec)).await;
        wait_ready(cluster, "pg", "False/ProxyGroupTailnetUnavailable").await;
        delete(cluster, "pg").await;
        wait_gone(cluster, "pg").await;
        let spec = json!({ "type": "egress", "proxyClass": "never" });
        cluster.apply(group("pg", spec)).await;
        wait_ready(cluster, "pg", "False/ProxyGroupCreating").await;
        delete(cluster, "pg").await;
        wait_gone(cluster, "pg").await;
        assert_nothing_left(cluster).await;
    });
}
