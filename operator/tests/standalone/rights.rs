//! What the chart allows the operator, and nothing else: whoever needs more in a test finds out there.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, api::ListParams};
use operator::crd::ProxyClass;
use proxy_testbed::{ApiServer, DEADLINE};
use serde_json::Value;

const KINDS: [&str; 4] = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];

/// Gives the account `tailscale/operator` the rights of the chart.
pub(crate) fn allow(server: &ApiServer) {
    let manifests = include_str!("../../../deploy/manifests/operator.yaml");
    let all: Vec<Value> = serde_saphyr::from_multiple(manifests).unwrap();
    let is_right = |object: &&Value| KINDS.iter().any(|kind| object["kind"] == *kind);
    let rights: Vec<_> = all.iter().filter(is_right).collect();
    assert_eq!(rights.len(), KINDS.len());
    for right in rights {
        server.apply(right).unwrap();
    }
}

/// Waits until the API server knows of these rights, and of the definitions of the kinds. `client` is the operator's.
pub(crate) async fn wait_for_rights(client: &Client) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "tailscale");
    let classes: Api<ProxyClass> = Api::all(client.clone());
    let all = ListParams::default();
    let hold = async {
        while secrets.list(&all).await.is_err() || classes.list(&all).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, hold).await.expect("the rights hold");
}
