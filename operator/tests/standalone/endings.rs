//! The end of proxies, whatever goes first and whatever fails.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Secret, Service},
};
use kube::ResourceExt as _;
use operator::tailnet_api::{DeviceId, Failure, TailnetApi as _, fake::Call};
use serde_json::json;

use crate::{
    cluster::{Cluster, NAMESPACE, condition, in_cluster},
    services::{load_balancer, service},
};

/// An exposed Service whose proxy has logged in: its StatefulSet and its device.
async fn exposed(cluster: &Cluster) -> (String, String) {
    cluster.apply(service("web", json!({}), load_balancer())).await;
    cluster.wait_condition("web", "False/ProxyPending").await;
    let set = cluster.stateful_set("web").await.name_any();
    let device = cluster.start_proxy(&format!("{set}-0")).await;
    cluster.wait_condition("web", "True/ProxyCreated").await;
    (set, device)
}

async fn nothing_is_left(cluster: &Cluster) {
    cluster.wait_gone::<Service>("shop", "web").await;
    assert_eq!(cluster.left().await, Vec::<String>::new());
    assert!(cluster.tailnet.devices().await.unwrap().is_empty());
}

#[test]
fn a_device_that_somebody_deleted_is_no_obstacle() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let (set, device) = exposed(cluster).await;
        cluster.tailnet.delete_device(&DeviceId::new(device)).await.unwrap();
        cluster.delete::<Service>("shop", "web").await;
        cluster.end_pods(&set).await;
        nothing_is_left(cluster).await;
    });
}

#[test]
fn an_api_that_fails_is_asked_again_and_its_device_is_not_left() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let (set, _) = exposed(cluster).await;
        let broken = || Failure::Unavailable { problem: "HTTP 500".into(), retry_after: None };
        let limited =
            Failure::RateLimited { retry_after: Some(std::time::Duration::from_millis(300)) };
        cluster.tailnet.fail(Call::DeleteDevice, [broken(), limited, broken()]);
        cluster.delete::<Service>("shop", "web").await;
        // The pod ends first: it would log in again.
        cluster
            .wait((NAMESPACE, &set), "it ends", |set: &StatefulSet| {
                set.metadata.deletion_timestamp.is_some()
            })
            .await;
        assert!(!cluster.tailnet.take_calls().contains(&Call::DeleteDevice));
        cluster.end_pods(&set).await;
        let told = cluster.wait_condition("web", "False/ProxyFailed").await;
        assert!(condition(&told).1.contains("HTTP 500"), "{:?}", condition(&told));
        nothing_is_left(cluster).await;
        let tries = cluster.tailnet.take_calls();
        let tries = tries.iter().filter(|call| **call == Call::DeleteDevice).count();
        assert_eq!(tries, 4);
    });
}

#[test]
fn a_key_that_cannot_be_made_is_told_and_made_later() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let refused = Failure::Invalid("requested tags [tag:k8s] are invalid".into());
        cluster.tailnet.fail(Call::CreateKey, [refused]);
        cluster.apply(service("web", json!({}), load_balancer())).await;
        let told = cluster.wait_condition("web", "False/ProxyFailed").await;
        let message = condition(&told).1;
        assert!(message.contains("tag:k8s") && message.contains("owned by a tag"), "{message}");
        assert_eq!(cluster.wait_event("web", "ProxyFailed").await, message);
        cluster.wait_condition("web", "False/ProxyPending").await;
        assert_eq!(cluster.tailnet.key_requests().len(), 1);
    });
}

#[test]
fn what_somebody_deletes_is_made_again_and_what_is_gone_already_is_no_obstacle() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let (set, _) = exposed(cluster).await;
        for round in 0..2 {
            cluster.delete::<Service>(NAMESPACE, &set).await;
            let other = |_: &Service| true;
            cluster.wait((NAMESPACE, &set), "the headless Service is back", other).await;
            let binding =
                cluster.left().await.iter().any(|one| one == &format!("RoleBinding {set}"));
            assert!(binding, "round {round}");
        }
        // All of it in the wrong order, then the Service.
        cluster.delete::<Service>("shop", "web").await;
        cluster.end_pods(&set).await;
        nothing_is_left(cluster).await;
        // Made anew under its old name: a proxy of its own, and no key of the old one.
        let (again, _) = exposed(cluster).await;
        assert_ne!(again, set);
        let old: Option<Secret> = kube::Api::namespaced(cluster.client.clone(), NAMESPACE)
            .get_opt(&format!("{set}-0"))
            .await
            .unwrap();
        assert!(old.is_none());
        cluster.delete::<Service>("shop", "web").await;
        cluster.end_pods(&again).await;
        nothing_is_left(cluster).await;
    });
}
