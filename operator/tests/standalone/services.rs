//! Services: what is made for each form, and how it ends.

#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Secret, Service},
};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::{
    cluster::{NAMESPACE, condition, in_cluster},
    golden,
};

pub(crate) fn service(name: &str, annotations: Value, spec: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": "shop", "annotations": annotations }, "spec": spec })
}

pub(crate) fn load_balancer() -> Value {
    json!({ "type": "LoadBalancer", "loadBalancerClass": "tailscale", "allocateLoadBalancerNodePorts": false,
        "clusterIP": "10.96.0.77", "ports": [{ "port": 80 }], "selector": { "app": "web" } })
}

#[test]
fn a_load_balancer_is_exposed_and_goes_with_its_device() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(service("web", json!({}), load_balancer())).await;
        cluster.wait_condition("web", "False/ProxyPending").await;
        let set = cluster.stateful_set("web").await.name_any();
        golden::check(cluster, "web", "load_balancer.yaml").await;

        let device = cluster.start_proxy(&format!("{set}-0")).await;
        let ready = cluster.wait_condition("web", "True/ProxyCreated").await;
        let ingress = ready.status.unwrap().load_balancer.unwrap().ingress.unwrap();
        let told: Vec<_> = ingress.into_iter().map(|one| (one.hostname, one.ip)).collect();
        // Of the family that the Service has, and no other.
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(told[0].0.as_deref(), Some("shop-web.tailnet.ts.net"));
        assert!(told[1].1.as_deref().unwrap().starts_with("100.64."), "{told:?}");

        cluster.delete::<Service>("shop", "web").await;
        cluster.end_pods(&set).await;
        cluster.wait_gone::<Service>("shop", "web").await;
        assert_eq!(cluster.left().await, Vec::<String>::new());
        let devices = operator::tailnet_api::TailnetApi::devices(&*cluster.tailnet).await.unwrap();
        assert!(devices.is_empty(), "{device} is still there");
    });
}

fn cluster_ip(address: &str) -> Value {
    json!({ "clusterIP": address, "ports": [{ "port": 80 }], "selector": { "app": "web" } })
}

fn external(name: &str) -> Value {
    json!({ "type": "ExternalName", "externalName": name })
}

#[test]
fn an_idle_cluster_is_not_written_to() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let balancer = service("web", json!({}), load_balancer());
        let egress = json!({ "tailscale.com/tailnet-fqdn": "db.tail1.ts.net" });
        let egress = service("db", egress, external("unused"));
        cluster.apply(balancer.clone()).await;
        cluster.apply(egress.clone()).await;
        let set = cluster.stateful_set("web").await.name_any();
        cluster.start_proxy(&format!("{set}-0")).await;
        cluster.wait_condition("web", "True/ProxyCreated").await;
        cluster.wait_condition("db", "True/ProxyCreated").await;
        cluster.wait_idle("service").await;
        assert!(!cluster.take_writes().is_empty(), "writes are not noted");
        for number in 0..10 {
            cluster.touch("service", &balancer, number).await;
            // The user's own name for the target is applied again: it is the proxy's again.
            let mut egress = egress.clone();
            egress["spec"] = json!({ "type": "ExternalName" });
            cluster.touch("service", &egress, number).await;
        }
        cluster.wait_idle("service").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());
    });
}

#[test]
fn each_form_of_a_service_has_its_proxy() {
    kernel_or_skip!();
    let expose = || json!({ "tailscale.com/expose": "true" });
    in_cluster(&["--proxy-tags", "tag:a, tag:b"], async |cluster| {
        let named = json!({ "tailscale.com/expose": "true", "tailscale.com/hostname": "shop",
            "tailscale.com/tags": "tag:web" });
        let ip = json!({ "tailscale.com/tailnet-ip": "100.64.0.9" });
        let fqdn = json!({ "tailscale.com/tailnet-fqdn": "db.tail1.ts.net" });
        for (name, annotations, spec) in [
            ("named", named, cluster_ip("10.96.0.78")),
            ("headless", expose(), cluster_ip("None")),
            ("external", expose(), external("db.example.com")),
            ("egress-ip", ip, external("unused")),
            (
                "egress-fqdn",
                fqdn,
                json!({ "clusterIP": "10.96.0.79", "ports": [{ "port": 80 }],
                "selector": { "app": "web" } }),
            ),
        ] {
            cluster.apply(service(name, annotations, spec)).await;
            // Not a load balancer's: nobody waits for an address.
            cluster.wait_condition(name, "True/ProxyCreated").await;
            golden::check(cluster, name, &format!("{name}.yaml")).await;
        }
        // Whoever resolves the name of an egress Service finds its proxy's pods.
        for name in ["egress-ip", "egress-fqdn"] {
            let set = cluster.stateful_set(name).await.name_any();
            let target = format!("{set}.{NAMESPACE}.svc.cluster.local");
            cluster
                .wait(("shop", name), "it leads to the proxy", |service: &Service| {
                    let spec = service.spec.as_ref().unwrap();
                    spec.external_name.as_ref() == Some(&target)
                        && spec.type_.as_deref() == Some("ExternalName")
                        && spec.selector.is_none()
                        && spec.cluster_ip.as_deref().unwrap_or_default().is_empty()
                })
                .await;
        }
        let mut tags: Vec<_> =
            cluster.tailnet.key_requests().into_iter().map(|key| key.tags).collect();
        tags.sort();
        let of_all = vec!["tag:a".to_owned(), "tag:b".to_owned()];
        assert_eq!(tags, [vec![of_all; 4], vec![vec!["tag:web".to_owned()]]].concat());
        assert!(
            cluster
                .tailnet
                .key_requests()
                .iter()
                .all(|key| key.preauthorized && !key.reusable && !key.ephemeral)
        );
    });
}

#[test]
fn what_cannot_be_done_is_told_and_nothing_is_made_until_it_can() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let annotations = json!({ "tailscale.com/expose": "true", "tailscale.com/hostname": "a.b",
            "tailscale.com/tags": "k8s" });
        cluster.apply(service("web", annotations, cluster_ip("10.96.0.78"))).await;
        let told = condition(&cluster.wait_condition("web", "False/ProxyInvalid").await).1;
        for part in
            ["`tailscale.com/hostname`: `a.b`", "`tailscale.com/tags`: `k8s`", "write `tag:`"]
        {
            assert!(told.contains(part), "{told}");
        }
        assert_eq!(cluster.wait_event("web", "INVALIDSERVICE").await, told);
        assert_eq!(cluster.left().await, Vec::<String>::new());
        assert!(cluster.tailnet.key_requests().is_empty());
        // Put right, it is made; asked for no longer, it goes, and so does what users were told.
        let expose = json!({ "tailscale.com/expose": "true" });
        cluster.apply(service("web", expose, cluster_ip("10.96.0.78"))).await;
        cluster.wait_condition("web", "True/ProxyCreated").await;
        let set = cluster.stateful_set("web").await.name_any();
        cluster.apply(service("web", json!({}), cluster_ip("10.96.0.78"))).await;
        cluster.end_pods(&set).await;
        cluster
            .wait(("shop", "web"), "it is as it was before", |service: &Service| {
                condition(service).0.is_empty() && service.finalizers().is_empty()
            })
            .await;
        assert_eq!(cluster.left().await, Vec::<String>::new());
    });
    in_cluster(&["--proxy-firewall-mode", "ipfw"], async |cluster| {
        let expose = json!({ "tailscale.com/expose": "true" });
        cluster.apply(service("web", expose, cluster_ip("10.96.0.78"))).await;
        let told = condition(&cluster.wait_condition("web", "False/ProxyInvalid").await).1;
        assert!(told.contains("`ipfw`: use auto, iptables or nftables"), "{told}");
        cluster.wait_event("web", "INVALIDCONFIG").await;
    });
}

#[test]
fn a_proxy_waits_for_its_class_and_is_changed_by_it() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let of_class =
            json!({ "tailscale.com/expose": "true", "tailscale.com/proxy-class": "fast" });
        cluster.apply(service("web", of_class, cluster_ip("10.96.0.78"))).await;
        let told = condition(&cluster.wait_condition("web", "False/ProxyFailed").await).1;
        assert!(told.contains("ProxyClass `fast` does not exist: create it"), "{told}");
        cluster.wait_event("web", "ProxyFailed").await;
        let class = json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass",
            "metadata": { "name": "fast" }, "spec": {
                "metrics": { "enable": true },
                "tailscale": { "acceptRoutes": true },
                "dataPath": { "mode": "nftables" },
                "statefulSet": {
                    "labels": { "team": "shop", "tailscale.com/managed": "no" },
                    "annotations": { "a": "1" },
                    "pod": {
                        "labels": { "pod": "yes", "app": "other" },
                        "annotations": { "b": "2" },
                        "nodeSelector": { "disk": "ssd" },
                        "tolerations": [{ "key": "k", "operator": "Exists" }],
                        "priorityClassName": "high", "dnsPolicy": "None",
                        "dnsConfig": { "nameservers": ["192.0.2.53"] },
                        "imagePullSecrets": [{ "name": "pull" }],
                        "securityContext": { "runAsUser": 0 },
                        "topologySpreadConstraints": [
                            { "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule" }
                        ],
                        "tailscaleContainer": {
                            "image": "proxy:2", "imagePullPolicy": "IfNotPresent",
                            "resources": { "limits": { "cpu": "0.5", "memory": "1024Mi" } },
                            "env": [{ "name": "A", "value": "1" }, { "name": "TS_USERSPACE", "value": "true" }],
                        },
                    },
                },
            } });
        let mut bad = class.clone();
        bad["spec"]["statefulSet"]["annotations"] = json!({ "a key": "1" });
        cluster.apply(bad).await;
        let told = condition(&cluster.wait_condition("web", "False/ProxyPending").await).1;
        assert!(told.contains("ProxyClass `fast` is not ready"), "{told}");
        assert_eq!(cluster.left().await, Vec::<String>::new());
        cluster.apply(class).await;
        cluster.wait_condition("web", "True/ProxyCreated").await;
        golden::check(cluster, "web", "class.yaml").await;
        // The server writes quantities in its own way; that is no difference.
        cluster.wait_idle("service").await;
        cluster.take_writes();
        let of_class =
            json!({ "tailscale.com/expose": "true", "tailscale.com/proxy-class": "fast" });
        cluster.touch("service", &service("web", of_class, cluster_ip("10.96.0.78")), 1).await;
        cluster.wait_idle("service").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());
        // Without a class: what it had asked for is gone.
        let set = cluster.stateful_set("web").await;
        let expose = json!({ "tailscale.com/expose": "true" });
        cluster.apply(service("web", expose, cluster_ip("10.96.0.78"))).await;
        cluster
            .wait((NAMESPACE, &set.name_any()), "it is plain again", |set: &StatefulSet| {
                let pod = set.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
                pod.node_selector.is_none()
                    && pod.containers[0].ports.is_none()
                    && pod.containers[0].env.as_ref().unwrap().iter().all(|one| one.name != "A")
            })
            .await;
        cluster.wait_gone::<Service>(NAMESPACE, &format!("{}-metrics", set.name_any())).await;
    });
}

#[test]
fn a_key_is_dropped_once_it_was_used_and_made_anew_when_the_proxy_asks() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(service("web", json!({}), load_balancer())).await;
        cluster.wait_condition("web", "False/ProxyPending").await;
        let secret = format!("{}-0", cluster.stateful_set("web").await.name_any());
        let key = |secret: &Secret| {
            let config = &secret.data.as_ref().unwrap()["cap-107.hujson"].0;
            let config: Value = serde_json::from_slice(config).unwrap();
            config["AuthKey"].as_str().unwrap_or_default().to_owned()
        };
        let first =
            cluster.wait((NAMESPACE, &secret), "a key", |one: &Secret| !key(one).is_empty()).await;
        let device = cluster.start_proxy(&secret).await;
        let used =
            cluster.wait((NAMESPACE, &secret), "no key", |one: &Secret| key(one).is_empty()).await;
        // Of the proxy's own keys none is lost.
        assert!(used.data.unwrap().contains_key("profile-1"));
        // The device is deleted in the console: the proxy asks for a new key, and gets one.
        let asks = json!({ "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": secret, "namespace": NAMESPACE },
            "stringData": { "reissue_authkey": key(&first) } });
        cluster.apply(asks).await;
        let again = cluster
            .wait((NAMESPACE, &secret), "a new key", |one: &Secret| !key(one).is_empty())
            .await;
        assert_ne!(key(&again), key(&first));
        let devices = operator::tailnet_api::TailnetApi::devices(&*cluster.tailnet).await.unwrap();
        assert!(devices.iter().all(|one| one.id.to_string() != device), "the old device is there");
        assert_eq!(cluster.tailnet.key_requests().len(), 1, "the used one is gone, one was made");
    });
}
