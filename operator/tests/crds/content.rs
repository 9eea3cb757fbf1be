//! What is kept of an object: all that the kinds know, filled in where it has a default, and nothing else.

use std::collections::BTreeSet;

use kube::{Client, api::PostParams};
use operator::crd::{ProxyClass, Recorder};
use serde_json::{Map, Value, json};

use super::{
    kernel_or_skip,
    server::{object, objects, start, yaml},
};

/// Everything that a ProxyClass can say, embedded types in full.
const CLASS: &str = include_str!("proxy-class.yaml");

/// The spec that is stored of one that is created.
async fn stored(client: &Client, kind: &str, name: &str, spec: &Value) -> anyhow::Result<Value> {
    let api = objects(client, kind);
    api.create(&PostParams::default(), &object(kind, name, spec)?).await?;
    Ok(api.get(name).await?.data["spec"].clone())
}

#[test]
fn defaults_are_filled_in_and_unknown_fields_left_out() {
    kernel_or_skip!();
    let server = start();
    let secrets = "statefulSet: {pod: {imagePullSecrets: [{}, {name: a}]}}";
    let cases = [
        ("Recorder", "{}".to_owned(), json!({ "replicas": 1 })),
        ("PeerRelay", "{}".to_owned(), json!({ "replicas": 1 })),
        ("Recorder", "{replicas: 0}".to_owned(), json!({ "replicas": 0 })),
        ("ProxyGroup", "{type: egress}".to_owned(), json!({ "type": "egress" })),
        (
            "ProxyClass",
            format!("{{{secrets}}}"),
            json!({ "statefulSet": { "pod": { "imagePullSecrets": [{ "name": "" }, { "name": "a" }] } } }),
        ),
        // Case 33 of the contract.
        ("Connector", "{exitNode: true, unknown: 1}".to_owned(), json!({ "exitNode": true })),
        (
            "ProxyClass",
            "{dataPath: {mode: auto, unknown: 1}, unknown: {}, statefulSet: {pod: {tailscaleContainer: \
             {env: [{name: A, valueFrom: {secretKeyRef: {name: a, key: b}}}]}}}}"
                .to_owned(),
            json!({
                "dataPath": { "mode": "auto" },
                "statefulSet": { "pod": { "tailscaleContainer": { "env": [{ "name": "A" }] } } },
            }),
        ),
        ("DNSConfig", "{nameserver: {unknown: 1}}".to_owned(), json!({ "nameserver": {} })),
        ("ProxyGroupPolicy", "{unknown: [a]}".to_owned(), json!({})),
        (
            "Tailnet",
            "{credentials: {secretName: a, unknown: b}}".to_owned(),
            json!({ "credentials": { "secretName": "a" } }),
        ),
    ];
    let run = async |client: Client| {
        for (index, (kind, spec, wanted)) in cases.iter().enumerate() {
            let found = stored(&client, kind, &format!("case-{index}"), &yaml(spec)).await?;
            assert_eq!(&found, wanted, "{kind} {spec}");
        }
        Ok(())
    };
    server.admin(run).unwrap();
}

/// Where two values differ, with what stands there.
fn differences(found: &Value, wanted: &Value) -> Vec<String> {
    let mut list = Vec::new();
    compare("", found, wanted, &mut list);
    list
}

fn compare(path: &str, found: &Value, wanted: &Value, list: &mut Vec<String>) {
    if let (Value::Object(found), Value::Object(wanted)) = (found, wanted) {
        for name in found.keys().chain(wanted.keys()).collect::<BTreeSet<_>>() {
            let of = |fields: &Map<_, _>| fields.get(name).cloned().unwrap_or_default();
            compare(&format!("{path}.{name}"), &of(found), &of(wanted), list);
        }
    } else if found != wanted {
        list.push(format!("{path}: {found}, not {wanted}"));
    }
}

#[test]
fn every_field_of_embedded_types_is_kept_and_read() {
    kernel_or_skip!();
    let server = start();
    let class = yaml(CLASS);
    let pod = &class["statefulSet"]["pod"];
    let recorder = json!({
        "replicas": 1,
        "statefulSet": {
            "pod": {
                "affinity": pod["affinity"],
                "container": {
                    "resources": pod["tailscaleContainer"]["resources"],
                    "securityContext": pod["tailscaleContainer"]["securityContext"],
                },
                "imagePullSecrets": pod["imagePullSecrets"],
                "securityContext": pod["securityContext"],
                "tolerations": pod["tolerations"],
            },
        },
    });
    let run = async |client: Client| {
        let found = stored(&client, "ProxyClass", "full", &class).await?;
        assert_eq!(differences(&found, &class), [""; 0], "of the schema");
        let api: kube::Api<ProxyClass> = kube::Api::all(client.clone());
        let read = serde_json::to_value(api.get("full").await?.spec)?;
        assert_eq!(differences(&read, &class), [""; 0], "of the type");

        let found = stored(&client, "Recorder", "full", &recorder).await?;
        assert_eq!(differences(&found, &recorder), [""; 0], "of the schema");
        let api: kube::Api<Recorder> = kube::Api::all(client.clone());
        let read = serde_json::to_value(api.get("full").await?.spec)?;
        assert_eq!(differences(&read, &recorder), [""; 0], "of the type");
        Ok(())
    };
    server.admin(run).unwrap();
}
