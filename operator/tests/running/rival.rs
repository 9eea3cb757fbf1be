//! Beside upstream's operator: nothing is reconciled, and everybody is told.

use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::bed::{Bed, NAMESPACE, in_cluster, wait_until};

/// Upstream's operator, as its chart makes it, with so many pods that are ready.
async fn upstream(bed: &Bed<'_>, ready: i32) {
    let api: Api<Deployment> = Api::namespaced(bed.client.clone(), NAMESPACE);
    let variable = |name: &str, value: &str| json!({ "name": name, "value": value });
    let metadata = json!({ "name": "operator", "namespace": NAMESPACE });
    let whole = |rest: Value| {
        let mut object =
            json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata });
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        Patch::Apply(object)
    };
    let spec = json!({ "spec": {
        "replicas": ready, "strategy": { "type": "Recreate" },
        "selector": { "matchLabels": { "app": "operator" } },
        "template": { "metadata": { "labels": { "app": "operator" } }, "spec": { "containers": [{
            "name": "operator", "image": "tailscale/k8s-operator:v1.102.5",
            "env": [variable("OPERATOR_INITIAL_TAGS", "tag:k8s-operator"),
                variable("OPERATOR_NAMESPACE", NAMESPACE)] }] } },
    } });
    let params = PatchParams::apply("helm").force();
    api.patch("operator", &params, &whole(spec)).await.unwrap();
    let status = json!({ "status": { "replicas": ready, "readyReplicas": ready } });
    api.patch_status("operator", &params, &whole(status)).await.unwrap();
}

#[test]
fn nothing_is_reconciled_while_upstreams_operator_is_running() {
    kernel_or_skip!();
    in_cluster(async |bed| {
        upstream(bed, 1).await;
        let operator = bed.start("a", 9002);
        let remedy = "stop it: `kubectl -n tailscale scale deployment operator --replicas=0`";
        wait_until("it is told", async || !bed.events("OperatorConflict").await.is_empty()).await;
        assert!(bed.events("OperatorConflict").await[0].ends_with(remedy));
        let answer = operator.asks("/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains(remedy), "{answer}");
        assert!(operator.asks("/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(operator.log().contains("nothing is reconciled"), "{}", operator.log());
        bed.make_class("a").await;
        assert_eq!(operator.reconciled().await, 0);

        upstream(bed, 0).await;
        wait_until("a is good", async || bed.is_good("a").await).await;
        operator.wait_ready().await;

        upstream(bed, 1).await;
        wait_until("it stops", async || bed.events("OperatorConflict").await.len() == 2).await;
        let before = operator.reconciled().await;
        bed.make_class("b").await;
        upstream(bed, 0).await;
        wait_until("b is good", async || bed.is_good("b").await).await;
        assert!(operator.reconciled().await > before);
    });
}
