//! Tailnets beside the operator's own: when they can be used, and by whom.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{Json, Router, http::StatusCode, routing};
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::Condition};
use kube::ResourceExt as _;
use operator::{crd::Tailnet, tailnet_api::RegistryError};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NAMESPACE, in_cluster},
    cluster_wide::{ClusterWide, condition, delete, wait, wait_so},
};

impl ClusterWide for Tailnet {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }
}

/// A control server that has nothing and that refuses to list keys as long as it is told to. Returns its address.
async fn control(refuses: Arc<AtomicBool>) -> String {
    let keys = move || async move {
        if refuses.load(Ordering::SeqCst) {
            return (StatusCode::FORBIDDEN, Json(json!({ "message": "scope auth_keys" })));
        }
        (StatusCode::OK, Json(json!({ "keys": [] })))
    };
    let answer = |value: Value| routing::any(move || async move { Json(value) });
    let token = json!({ "access_token": "t", "token_type": "Bearer", "expires_in": 3600 });
    let router = Router::new()
        .route("/api/v2/oauth/token", answer(token))
        .route("/api/v2/tailnet/-/devices", answer(json!({ "devices": [] })))
        .route("/api/v2/tailnet/-/vip-services", answer(json!({ "vipServices": [] })))
        .route("/api/v2/tailnet/-/keys", routing::get(keys));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

async fn wait_tailnet(cluster: &Cluster, wanted: &str) -> String {
    condition(&wait::<Tailnet>(cluster, "other", wanted).await).1
}

async fn secret(cluster: &Cluster, data: Value) {
    cluster
        .apply(json!({ "apiVersion": "v1", "kind": "Secret", "stringData": data,
            "metadata": { "name": "access", "namespace": NAMESPACE } }))
        .await;
}

#[test]
fn a_tailnet_is_ready_while_its_credentials_are_good() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let refuses = Arc::new(AtomicBool::new(true));
        let url = control(Arc::clone(&refuses)).await;
        let other = json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "Tailnet",
            "metadata": { "name": "other" },
            "spec": { "loginUrl": url, "credentials": { "secretName": "access" } } });
        cluster.apply(other.clone()).await;
        let told = wait_tailnet(cluster, "False/InvalidSecret@1").await;
        assert_eq!(told, "Secret tailscale/access does not exist: create it");
        let found = || cluster.context.tailnets.get("other");
        assert_eq!(found().unwrap_err(), RegistryError::NotReady("other".into()));

        // Each step of a user is noticed by itself.
        secret(cluster, json!({ "client_id": "k1" })).await;
        let incomplete = |tailnet: &Tailnet| condition(tailnet).1.contains("client_secret");
        wait_so(cluster, "other", "it is incomplete", incomplete).await;
        secret(cluster, json!({ "client_id": "k1", "client_secret": "s3cr3t" })).await;
        let told = wait_tailnet(cluster, "False/InvalidOAuth@1").await;
        assert!(
            told.contains("list auth keys at http://127") && !told.contains("s3cr3t"),
            "{told}"
        );
        assert_eq!(found().unwrap_err(), RegistryError::NotReady("other".into()));

        refuses.store(false, Ordering::SeqCst);
        secret(cluster, json!({ "client_id": "k2", "client_secret": "s3cr3t" })).await;
        let ready: Tailnet = wait(cluster, "other", "True/TailnetValid@1").await;
        assert_eq!(found().unwrap().login_server(), url);
        cluster.wait_idle("tailnet").await;
        assert!(!cluster.take_writes().is_empty() && ready.status.is_some());
        for number in 0..10 {
            cluster.touch("tailnet", &other, number).await;
        }
        cluster.wait_idle("tailnet").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());

        // A Secret that is gone is told; the client that was good still works.
        cluster.delete::<Secret>(NAMESPACE, "access").await;
        let gone: Tailnet = wait(cluster, "other", "False/InvalidSecret@1").await;
        assert_eq!(gone.finalizers(), ["tailscale.com/finalizer"]);
        assert_eq!(found().unwrap().login_server(), url);
        delete::<Tailnet>(cluster, "other").await;
        assert_eq!(found().unwrap_err(), RegistryError::Unknown("other".into()));
    });
}
