//! ProxyGroupPolicies, by what the API server lets users write.
#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use std::time::Duration;

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::Service,
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, TypeMeta},
    core::GroupVersionKind,
};
use operator::crd::ProxyGroupPolicy;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, PATIENCE, in_cluster},
    golden,
};

/// Between two looks at what cannot be watched: what the API server enforces.
const PAUSE: Duration = Duration::from_millis(50);

fn policy(name: &str, ingress: &[&str], egress: &[&str]) -> Value {
    json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroupPolicy",
        "metadata": { "name": name, "namespace": "shop" },
        "spec": { "ingress": ingress, "egress": egress } })
}

fn ingress(annotations: Value) -> Value {
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": { "name": "i", "namespace": "shop", "annotations": annotations },
        "spec": { "ingressClassName": "other", "defaultBackend":
            { "service": { "name": "web", "port": { "number": 80 } } } } })
}

fn service(annotations: Value, spec: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "s", "namespace": "shop", "annotations": annotations },
        "spec": spec })
}

fn of(group: &str) -> Value {
    json!({ "tailscale.com/proxy-group": group })
}

fn exposed(group: &str) -> Value {
    service(
        json!({ "tailscale.com/proxy-group": group, "tailscale.com/expose": "true" }),
        json!({ "ports": [{ "port": 80 }] }),
    )
}

fn balancer(group: &str) -> Value {
    let spec = json!({ "type": "LoadBalancer", "loadBalancerClass": "tailscale", "ports": [{ "port": 80 }] });
    service(of(group), spec)
}

fn egress(group: &str) -> Value {
    service(of(group), json!({ "type": "ExternalName", "externalName": "x" }))
}

/// Whether the API server would take it, and what it says if not.
async fn refusal(cluster: &Cluster, manifest: &Value) -> Option<String> {
    let types: TypeMeta = serde_json::from_value(manifest.clone()).unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
    let namespace = manifest["metadata"]["namespace"].as_str().unwrap();
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), namespace, &resource);
    let params = PatchParams { dry_run: true, ..PatchParams::apply("user").force() };
    let name = manifest["metadata"]["name"].as_str().unwrap();
    match api.patch(name, &params, &Patch::Apply(manifest)).await {
        Ok(_) => None,
        Err(kube::Error::Api(status)) => Some(status.message.clone()),
        Err(error) => panic!("{error}"),
    }
}

/// Waits until it is taken, or refused. The API server looks for new policies from time to time; on a machine that is busy with
/// other servers it was seen to take longer than what other tests wait for.
async fn wait_taken(cluster: &Cluster, manifest: &Value, taken: bool) {
    let wait = async {
        while refusal(cluster, manifest).await.is_none() != taken {
            tokio::time::sleep(PAUSE).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE * 2, wait).await;
    assert!(waited.is_ok(), "taken is not {taken}: {manifest}, with {:?}", names(cluster).await);
}

async fn names(cluster: &Cluster) -> Vec<String> {
    let all = ListParams::default();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    let mut names: Vec<_> =
        policies.list(&all).await.unwrap().iter().map(ResourceExt::name_any).collect();
    let bound = bindings.list(&all).await.unwrap();
    names.extend(bound.iter().map(|binding| format!("{} binding", binding.name_any())));
    names.sort();
    names
}

async fn wait_names(cluster: &Cluster, wanted: &[&str]) {
    let wait = async {
        while names(cluster).await != wanted {
            tokio::time::sleep(PAUSE).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    assert!(waited.is_ok(), "{:?}", names(cluster).await);
}

async fn golden_policies(cluster: &Cluster) {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    let mut all = Vec::new();
    for name in ["ts-ingress-shop", "ts-egress-shop"] {
        all.push(serde_json::to_value(policies.get(name).await.unwrap()).unwrap());
        all.push(serde_json::to_value(bindings.get(name).await.unwrap()).unwrap());
    }
    let all: Vec<_> = all.iter().map(golden::owned_part).collect();
    golden::compare("kinds", "proxy_group_policy.yaml", &all, |text| text);
}

async fn delete(cluster: &Cluster, name: &str) {
    let api: Api<ProxyGroupPolicy> = Api::namespaced(cluster.client.clone(), "shop");
    api.delete(name, &DeleteParams::default()).await.unwrap();
}

const ALL: [&str; 4] =
    ["ts-egress-shop", "ts-egress-shop binding", "ts-ingress-shop", "ts-ingress-shop binding"];

#[test]
fn the_api_server_takes_what_the_policies_of_a_namespace_allow() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        for free in [ingress(of("any")), balancer("any"), exposed("any"), egress("any")] {
            assert_eq!(refusal(cluster, &free).await, None);
        }
        cluster.apply(policy("p", &["in", "in\"2\\"], &["out"])).await;
        wait_names(cluster, &ALL).await;
        wait_taken(cluster, &ingress(of("out")), false).await;
        wait_taken(cluster, &egress("in"), false).await;
        for taken in [
            ingress(of("in")),
            ingress(of("in\"2\\")),
            ingress(json!({})),
            ingress(json!({ "other": "1" })),
            balancer("in"),
            exposed("in"),
            egress("out"),
            service(json!({}), json!({ "type": "ExternalName", "externalName": "x" })),
            service(
                json!({ "tailscale.com/expose": "true" }),
                json!({ "ports": [{ "port": 80 }] }),
            ),
            // Said to be exposed, and it is not: the way out.
            service(
                json!({ "tailscale.com/proxy-group": "out", "tailscale.com/expose": "false" }),
                json!({ "ports": [{ "port": 80 }] }),
            ),
        ] {
            assert_eq!(refusal(cluster, &taken).await, None, "{taken}");
        }
        for refused in [
            ingress(of("out")),
            ingress(of("")),
            balancer("out"),
            exposed("out"),
            egress("in"),
            egress(""),
        ] {
            let said = refusal(cluster, &refused).await.unwrap_or_else(|| panic!("{refused}"));
            let way = if refused["spec"]["type"] == "ExternalName" { "out" } else { "in, in\"2\\" };
            for part in ["tailscale.com/proxy-group", "ProxyGroupPolicies of namespace shop", way] {
                assert!(said.contains(part), "{part} is not in {said}");
            }
        }
        // Another namespace is free.
        let mut other = ingress(of("out"));
        other["metadata"]["namespace"] = json!("tailscale");
        assert_eq!(refusal(cluster, &other).await, None);
        golden_policies(cluster).await;

        // What several policies allow is allowed; none that is listed is none that is allowed.
        cluster.apply(policy("q", &["out"], &[])).await;
        wait_taken(cluster, &ingress(of("out")), true).await;
        wait_taken(cluster, &balancer("in"), true).await;
        delete(cluster, "p").await;
        wait_taken(cluster, &ingress(of("in")), false).await;
        wait_taken(cluster, &egress("out"), false).await;
        let said = refusal(cluster, &egress("out")).await.unwrap();
        assert!(said.contains("allow none: remove the annotation"), "{said}");

        cluster.wait_idle("proxygrouppolicy").await;
        cluster.take_writes();
        let shop =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } });
        for number in 0..10 {
            cluster.touch("proxygrouppolicy", &shop, number).await;
        }
        assert_eq!(cluster.take_writes(), Vec::<String>::new());

        delete(cluster, "q").await;
        wait_names(cluster, &[]).await;
        wait_taken(cluster, &egress("any"), true).await;
    });
}

#[test]
fn what_is_not_allowed_any_more_can_still_go() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let mut old = egress("old");
        old["metadata"]["finalizers"] = json!(["example.com/kept"]);
        cluster.apply(old.clone()).await;
        cluster.apply(policy("p", &[], &[])).await;
        wait_taken(cluster, &egress("any"), false).await;
        cluster.delete::<Service>("shop", "s").await;
        let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        let api: Api<Service> = Api::namespaced(cluster.client.clone(), "shop");
        api.patch("s", &PatchParams::default(), &none).await.unwrap();
        cluster.wait_gone::<Service>("shop", "s").await;
    });
}

#[test]
fn policies_of_the_api_server_follow_whoever_takes_them_away_or_leaves_them() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(policy("p", &["in"], &["out"])).await;
        wait_names(cluster, &ALL).await;
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
        policies.delete("ts-ingress-shop", &DeleteParams::default()).await.unwrap();
        bindings.delete("ts-egress-shop", &DeleteParams::default()).await.unwrap();
        wait_names(cluster, &ALL).await;

        // Left by an operator that was not there when the last policy went; and one that is somebody's own.
        let api = "admissionregistration.k8s.io/v1";
        for (name, expression) in [
            (
                "ts-egress-tailscale",
                "!(\"tailscale.com/proxy-group\" in object.metadata.annotations)",
            ),
            ("ts-ingress-tailscale", "true"),
        ] {
            let rule = json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["pods"] });
            let spec = json!({ "matchConstraints": { "resourceRules": [rule] },
                "validations": [{ "expression": expression }] });
            let metadata = json!({ "name": name });
            let manifest = serde_json::from_value(json!({ "apiVersion": api,
                "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec }));
            let params = PatchParams::apply("user");
            let manifest: ValidatingAdmissionPolicy = manifest.unwrap();
            policies.patch(name, &params, &Patch::Apply(&manifest)).await.unwrap();
        }
        let mut left = ALL.to_vec();
        left.push("ts-ingress-tailscale");
        wait_names(cluster, &left).await;
    });
}
