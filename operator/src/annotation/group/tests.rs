#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use serde_json::{Value, json};

use super::*;

fn service_asks(annotations: Value, spec: Value) -> String {
    let service = serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "shop", "annotations": annotations }, "spec": spec,
    }));
    for default_load_balancer in [false, true] {
        let options = Options { default_load_balancer, cluster_domain: "cluster.local".into() };
        match group_service(service.as_ref().unwrap(), &options) {
            Ok(Some(asked)) => return format!("{} {:?}", asked.asks.service, asked.addresses),
            Ok(None) => {}
            Err(violations) => return violations.to_string(),
        }
    }
    String::new()
}

fn ingress_asks(annotations: Value, tls: Value) -> String {
    let ingress = json!({
        "metadata": { "name": "site", "namespace": "shop", "annotations": annotations },
        "spec": { "ingressClassName": "tailscale", "tls": tls },
    });
    match group_ingress(&serde_json::from_value(ingress).unwrap(), "tailscale") {
        Ok(Some(asked)) => {
            format!("{} {} {}", asked.asks.service, asked.endpoint, asked.ingress.redirect)
        }
        Ok(None) => String::new(),
        Err(violations) => violations.to_string(),
    }
}

#[test]
fn a_service_on_a_group_is_one_that_is_exposed_and_has_an_address() {
    let group = json!({ "tailscale.com/proxy-group": "in" });
    let exposed = json!({ "tailscale.com/proxy-group": "in", "tailscale.com/expose": "true" });
    let both = json!({ "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"] });
    assert_eq!(service_asks(exposed.clone(), both.clone()), "svc:shop-web [10.96.0.7, fd00::7]");
    assert_eq!(service_asks(group.clone(), both.clone()), "");
    assert_eq!(service_asks(json!({ "tailscale.com/expose": "true" }), both.clone()), "");
    let empty = json!({ "tailscale.com/proxy-group": "", "tailscale.com/expose": "true" });
    assert_eq!(service_asks(empty, both.clone()), "");
    for class in [json!({ "loadBalancerClass": "tailscale" }), json!({})] {
        let mut spec = json!({ "type": "LoadBalancer", "clusterIP": "10.96.0.8" });
        spec.as_object_mut().unwrap().extend(class.as_object().unwrap().clone());
        assert_eq!(service_asks(group.clone(), spec), "svc:shop-web [10.96.0.8]");
    }
    for spec in [json!({ "clusterIP": "None" }), json!({ "type": "ExternalName" })] {
        assert!(service_asks(exposed.clone(), spec).contains("needs a cluster IP"));
    }
    let wrong = json!({ "tailscale.com/proxy-group": "in", "tailscale.com/expose": "true",
        "tailscale.com/hostname": "a.b", "tailscale.com/tags": "k8s, tag:a" });
    let told = service_asks(wrong, json!({ "clusterIP": "None" }));
    for part in ["needs a cluster IP", "`a.b` is not a DNS label", "`k8s` is not a tag"] {
        assert!(told.contains(part), "{told}");
    }
    let capitals = json!({ "tailscale.com/proxy-group": "in", "tailscale.com/expose": "true",
        "tailscale.com/hostname": "Web" });
    assert!(service_asks(capitals, both).starts_with("svc:web "));
}

#[test]
fn an_ingress_on_a_group_has_one_name() {
    let on = |more: Value| {
        let mut annotations = json!({ "tailscale.com/proxy-group": "in" });
        annotations.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        annotations
    };
    let one = json!([{ "hosts": ["Web.example.com"] }]);
    assert_eq!(ingress_asks(on(json!({})), one.clone()), "svc:web false false");
    assert_eq!(ingress_asks(on(json!({})), json!([])), "svc:shop-site-ingress false false");
    assert_eq!(ingress_asks(json!({}), one.clone()), "");
    let http =
        json!({ "tailscale.com/http-endpoint": "enabled", "tailscale.com/http-redirect": "true" });
    assert_eq!(ingress_asks(on(http), one.clone()), "svc:web true true");
    // No other spelling enables it.
    let other =
        json!({ "tailscale.com/http-endpoint": "true", "tailscale.com/http-redirect": "enabled" });
    assert_eq!(ingress_asks(on(other), one), "svc:web false false");
    for tls in [json!([{ "hosts": ["a", "b"] }]), json!([{ "hosts": ["a"] }, { "hosts": ["b"] }])] {
        let told = ingress_asks(on(json!({ "tailscale.com/tags": "x" })), tls);
        assert!(told.contains("has one name") && told.contains("`x` is not a tag"), "{told}");
    }
}
