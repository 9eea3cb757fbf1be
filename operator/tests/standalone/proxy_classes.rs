//! ProxyClasses: when they can be used, and what users are told when they cannot.
#![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use operator::crd::ProxyClass;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, in_cluster},
    cluster_wide::{ClusterWide, condition, delete, wait},
    monitors::define,
};

impl ClusterWide for ProxyClass {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }
}

fn class(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass",
        "metadata": { "name": name }, "spec": spec })
}

fn ports(ports: Value) -> Value {
    json!({ "staticEndpoints": { "nodePort": { "ports": ports } } })
}

async fn wait_class(cluster: &Cluster, name: &str, wanted: &str) -> ProxyClass {
    wait(cluster, name, wanted).await
}

#[test]
fn a_good_class_is_ready_and_goes_when_it_is_deleted() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let container = json!({ "image": "reg.example:5000/proxy:2",
            "env": [{ "name": "TS_USERSPACE", "value": "true" }, { "name": "A" }] });
        let spec = json!({
            "statefulSet": { "labels": { "example.com/a": "b" },
                "pod": { "tailscaleContainer": container, "annotations": { "Example.com/a": "any thing" } } },
            "metrics": { "enable": true }, "dataPath": { "mode": "ebpf", "xdp": "auto", "maxFlows": 1024 },
        });
        cluster.apply(class("good", spec)).await;
        let good = wait_class(cluster, "good", "True/ProxyClassValid@1").await;
        assert_eq!(good.finalizers(), ["tailscale.com/finalizer"]);
        let told = cluster.wait_event("good", "CustomTSEnvVar").await;
        assert!(told.contains("tailscaleContainer.env: TS_USERSPACE "), "{told}");
        delete::<ProxyClass>(cluster, "good").await;

        // Found good by upstream's operator.
        let plain = class("old", json!({}));
        cluster.apply(plain.clone()).await;
        wait_class(cluster, "old", "True/ProxyClassValid@1").await;
        let mut theirs = plain;
        theirs.as_object_mut().unwrap().remove("spec");
        theirs["status"] = json!({ "conditions": [{
            "type": "ProxyClassReady", "status": "False", "reason": "ProxyClassInvalid", "message": "",
            "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
        cluster.apply_status(theirs).await;
        wait_class(cluster, "old", "True/ProxyClassValid@1").await;
    });
}

#[test]
fn every_field_that_is_wrong_is_named() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let (labels, annotations) = (json!({ "a key": "1" }), json!({ "/a": "1" }));
        let spec = json!({
            "statefulSet": { "labels": labels, "annotations": annotations, "pod": {
                "labels": labels, "annotations": annotations, "nodeSelector": { "disk": "-" },
                "tailscaleContainer": { "image": "Proxy Image" },
                "tailscaleInitContainer": { "image": "a:b:c", "debug": { "enable": true } },
            } },
            "metrics": { "enable": true, "serviceMonitor": { "enable": true, "labels": labels } },
            "staticEndpoints": { "nodePort": { "selector": labels, "ports": [
                { "port": 0 }, { "port": 30010, "endPort": 30001 }, { "port": 80 },
                { "port": 31000, "endPort": 31010 }, { "port": 31010 }, { "port": 31020, "endPort": 70000 },
            ] } },
            "dataPath": { "mode": "nftables", "xdp": "native", "proxyProtocol": true },
        });
        cluster.apply(class("bad", spec)).await;
        let bad = wait_class(cluster, "bad", "False/ProxyClassInvalid@1").await;
        let told = condition(&bad).1;
        let field = "spec.staticEndpoints.nodePort.ports";
        for part in [
            "spec.statefulSet.labels: `a key` is not a key",
            "spec.statefulSet.annotations: `/a` is not a key",
            "spec.statefulSet.pod.labels: `a key` is not a key",
            "spec.statefulSet.pod.annotations: `/a` is not a key",
            "spec.statefulSet.pod.nodeSelector[disk]: `-` is not a label's value",
            "spec.statefulSet.pod.tailscaleContainer.image: `Proxy Image`",
            "spec.statefulSet.pod.tailscaleInitContainer.image: `a:b:c`",
            "spec.statefulSet.pod.tailscaleInitContainer.debug: the init container serves nothing",
            "spec.metrics.serviceMonitor.enable: the cluster has no ServiceMonitors, install",
            "spec.metrics.serviceMonitor.labels: `a key` is not a key",
            &format!("{field}[0].port: 0 is not a port"),
            &format!("{field}[1].endPort: 30001 is before port 30010"),
            &format!(
                "{field}[2]: 80 is not within the cluster's node ports, use some of 30000-32767"
            ),
            &format!("{field}[4]: 31010 has ports of {field}[3]"),
            &format!("{field}[5].endPort: 70000 is not a port"),
            "spec.staticEndpoints.nodePort.selector: `a key` is not a key",
            "spec.dataPath.proxyProtocol: needs user space",
            "spec.dataPath.xdp: needs eBPF",
        ] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        assert_eq!(told.split("; ").count(), 18, "{told}");
        let event = cluster.wait_event("bad", "ProxyClassInvalid").await;
        assert!(told.starts_with(&event) && event.len() > 900, "{event}");

        cluster.apply(class("bad", json!({ "tailscale": {} }))).await;
        wait_class(cluster, "bad", "True/ProxyClassValid@2").await;
    });
}

#[test]
fn ports_belong_to_the_class_that_had_them_first_until_it_goes() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(class("a", ports(json!([{ "port": 30000, "endPort": 30009 }])))).await;
        wait_class(cluster, "a", "True/ProxyClassValid@1").await;
        cluster.apply(class("b", ports(json!([{ "port": 30009, "endPort": 30020 }])))).await;
        let told = condition(&wait_class(cluster, "b", "False/ProxyClassInvalid@1").await).1;
        assert!(
            told.contains("ports[0]: 30009-30020 has ports of ProxyClass `a` (30000-30009)"),
            "{told}"
        );
        // A class that is not ready has no ports.
        cluster.apply(class("c", ports(json!([{ "port": 30010 }])))).await;
        wait_class(cluster, "c", "True/ProxyClassValid@1").await;
        delete::<ProxyClass>(cluster, "c").await;
        delete::<ProxyClass>(cluster, "a").await;
        wait_class(cluster, "b", "True/ProxyClassValid@1").await;
        // One that changes has lost what it had not.
        cluster.apply(class("d", ports(json!([{ "port": 30100 }])))).await;
        wait_class(cluster, "d", "True/ProxyClassValid@1").await;
        cluster.apply(class("b", ports(json!([{ "port": 30100 }])))).await;
        wait_class(cluster, "b", "False/ProxyClassInvalid@2").await;
        wait_class(cluster, "d", "True/ProxyClassValid@1").await;
    });
}

#[test]
fn a_class_that_has_service_monitors_needs_their_definition() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let spec = json!({ "metrics": { "enable": true, "serviceMonitor": { "enable": true } } });
        let of = class("measured", spec);
        cluster.apply(of.clone()).await;
        wait_class(cluster, "measured", "False/ProxyClassInvalid@1").await;
        define(cluster).await;
        cluster.touch("proxyclass", &of, 1).await;
        wait_class(cluster, "measured", "True/ProxyClassValid@1").await;
    });
}

#[test]
fn classes_that_do_not_change_are_not_written() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let good = class("good", ports(json!([{ "port": 30000 }])));
        let bad = class("bad", ports(json!([{ "port": 30000 }, { "port": 1 }])));
        cluster.apply(good.clone()).await;
        wait_class(cluster, "good", "True/ProxyClassValid@1").await;
        cluster.apply(bad.clone()).await;
        wait_class(cluster, "bad", "False/ProxyClassInvalid@1").await;
        cluster.wait_idle("proxyclass").await;
        assert!(!cluster.take_writes().is_empty(), "writes are not noted");
        for number in 0..10 {
            cluster.touch("proxyclass", &good, number).await;
            cluster.touch("proxyclass", &bad, number).await;
        }
        cluster.wait_idle("proxyclass").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());
    });
}
