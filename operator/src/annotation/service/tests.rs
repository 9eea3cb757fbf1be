#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use serde_json::{Value, json};

use super::*;

fn options() -> Options {
    Options { default_load_balancer: false, cluster_domain: "cluster.local".into() }
}

fn with(annotations: Value, spec: Value) -> Service {
    serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "shop", "annotations": annotations },
        "spec": spec,
    }))
    .unwrap()
}

/// What is carried, or all that is wrong; empty if nothing is asked for.
fn asked(annotations: Value, spec: Value) -> String {
    match service(&with(annotations, spec), &options()) {
        Ok(Some(request)) => format!("{:?}", request.carries),
        Ok(None) => String::new(),
        Err(violations) => violations.to_string(),
    }
}

#[test]
fn what_is_asked_for_follows_from_type_and_annotations() {
    let v4 = json!({ "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"] });
    let expose = json!({ "tailscale.com/expose": "true" });
    assert_eq!(asked(expose.clone(), v4.clone()), "ClusterIp(10.96.0.7)");
    // No other spelling exposes.
    for value in ["True", "1", "yes", "false", ""] {
        assert_eq!(asked(json!({ "tailscale.com/expose": value }), v4.clone()), "");
    }
    let class =
        json!({ "type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "fd00::7" });
    assert_eq!(asked(json!({}), class), "ClusterIp(fd00::7)");
    let other =
        json!({ "type": "LoadBalancer", "loadBalancerClass": "other", "clusterIP": "10.96.0.7" });
    assert_eq!(asked(json!({}), other.clone()), "");
    let none = json!({ "type": "LoadBalancer", "clusterIP": "10.96.0.7" });
    assert_eq!(asked(json!({}), none.clone()), "");
    let by_default = Options { default_load_balancer: true, ..options() };
    assert!(service(&with(json!({}), none), &by_default).unwrap().unwrap().load_balancer);
    assert_eq!(service(&with(json!({}), other), &by_default).unwrap(), None);

    let both = json!({ "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"] });
    assert_eq!(asked(expose.clone(), both), "ClusterName(\"web.shop.svc.cluster.local\")");
    let headless = json!({ "clusterIP": "None", "clusterIPs": ["None"] });
    assert_eq!(
        asked(expose.clone(), headless.clone()),
        "ClusterName(\"web.shop.svc.cluster.local\")"
    );
    assert_eq!(asked(json!({}), headless), "");
    let external = json!({ "type": "ExternalName", "externalName": "db.example.com" });
    assert_eq!(asked(expose, external.clone()), "ClusterName(\"db.example.com\")");
    assert_eq!(asked(json!({}), external.clone()), "");

    let ip = json!({ "tailscale.com/tailnet-ip": "100.64.0.9" });
    assert_eq!(asked(ip, external.clone()), "TailnetIp(100.64.0.9)");
    let old = json!({ "tailscale.com/ts-tailnet-target-ip": "fd7a::9" });
    assert_eq!(asked(old, external.clone()), "TailnetIp(fd7a::9)");
    let fqdn = json!({ "tailscale.com/tailnet-fqdn": "db.tail1.ts.net" });
    assert_eq!(asked(fqdn, external.clone()), "TailnetName(\"db.tail1.ts.net.\")");
    // Both ways: the tailnet's comes first.
    let two = json!({ "tailscale.com/expose": "true", "tailscale.com/tailnet-ip": "100.64.0.9" });
    assert_eq!(asked(two, v4.clone()), "ClusterIp(10.96.0.7)");
    // A ProxyGroup's, even if it has no name.
    let group = json!({ "tailscale.com/expose": "true", "tailscale.com/proxy-group": "" });
    assert_eq!(asked(group, v4), "");
}

#[test]
fn all_that_is_wrong_is_said_at_once_with_annotation_value_and_remedy() {
    let external = json!({ "type": "ExternalName", "externalName": "unused" });
    let said = asked(
        json!({
            "tailscale.com/tailnet-ip": "100.64.0", "tailscale.com/tailnet-fqdn": "db",
            "tailscale.com/hostname": "a.b", "tailscale.com/tags": "tag:ok,k8s",
        }),
        external.clone(),
    );
    assert!(said.contains("`tailscale.com/tailnet-ip` and `tailscale.com/tailnet-fqdn`"), "{said}");
    assert!(said.contains("`tailscale.com/tailnet-ip`: `100.64.0` is not an IP address"), "{said}");
    let said = asked(json!({ "tailscale.com/tailnet-fqdn": "db" }), external);
    assert!(said.starts_with("annotation `tailscale.com/tailnet-fqdn`: `db` is not"), "{said}");

    let v4 = json!({ "clusterIP": "10.96.0.7" });
    let said = asked(
        json!({
            "tailscale.com/expose": "true", "tailscale.com/hostname": "a.b",
            "tailscale.com/tags": "tag:ok,k8s,tag:1",
        }),
        v4.clone(),
    );
    let parts: Vec<_> = said.split("; ").collect();
    assert_eq!(parts.len(), 3, "{said}");
    assert!(parts[0].contains("`tailscale.com/hostname`: `a.b`"), "{said}");
    assert!(parts[1].contains("`tailscale.com/tags`: `k8s`"), "{said}");
    assert!(parts[2].contains("`tag:1`"), "{said}");
    // The key decides, not the value.
    let empty = json!({ "tailscale.com/expose": "true", "tailscale.com/hostname": "" });
    assert!(asked(empty, v4).contains("`` is not a DNS label"));
}

#[test]
fn hostnames_follow_from_namespace_and_name() {
    let expose = json!({ "tailscale.com/expose": "true" });
    let mut object = with(expose, json!({ "clusterIP": "10.96.0.7" }));
    let request = service(&object, &options()).unwrap().unwrap();
    assert_eq!((request.hostname.as_str(), request.tags), ("shop-web", None));
    object.metadata.name = Some("w".repeat(59));
    let said = service(&object, &options()).unwrap_err().to_string();
    assert!(said.contains("set annotation `tailscale.com/hostname`"), "{said}");
}

#[test]
fn the_label_of_a_class_comes_before_the_annotation_and_an_empty_one_is_none() {
    let mut object = with(json!({ "tailscale.com/proxy-class": "a" }), json!({}));
    assert_eq!(proxy_class(&object, Some("d")).as_deref(), Some("a"));
    object.labels_mut().insert(label::PROXY_CLASS.into(), "b".into());
    assert_eq!(proxy_class(&object, Some("d")).as_deref(), Some("b"));
    object.labels_mut().insert(label::PROXY_CLASS.into(), String::new());
    assert_eq!(proxy_class(&object, Some("d")), None);
    assert_eq!(proxy_class(&with(json!({}), json!({})), Some("d")).as_deref(), Some("d"));
}
