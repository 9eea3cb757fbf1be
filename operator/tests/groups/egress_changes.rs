//! Egress Services that change: ports, targets, groups, and groups that end before them.

use k8s_openapi::api::{
    core::v1::{ConfigMap, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    bed::{group, start_replica},
    cluster::{Cluster, NAMESPACE, in_cluster},
    egress_bed::{carry, child, conditions, egress, file, file_of, led_to, wait_told},
    endings::{delete, wait_gone},
};

fn pod_port(file: &Value, key: &str, target: u16) -> Option<u64> {
    let ports = file[key]["ports"].as_array()?;
    ports.iter().find(|one| one["targetPort"] == target)?["matchPort"].as_u64()
}

async fn wait_file(
    cluster: &Cluster,
    group: &str,
    is_so: impl Fn(&Value) -> bool + Send + Sync,
) -> Value {
    let name = format!("{group}-egress-config");
    let is_so = |map: &ConfigMap| is_so(&file_of(map));
    file_of(&cluster.wait((NAMESPACE, &name), "the file is so", is_so).await)
}

#[test]
fn ports_that_stay_keep_their_pod_ports() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(group("out", json!({ "type": "egress", "replicas": 1 }))).await;
        let of = |target: &str, ports: &[u16]| {
            let ports: Vec<_> = ports
                .iter()
                .map(|port| json!({ "port": port, "name": format!("p{port}"), "protocol": "TCP" }))
                .collect();
            egress("web", "out", target, json!(ports))
        };
        cluster.apply(of("100.64.0.9", &[80, 81])).await;
        let first =
            wait_file(cluster, "out", |file| pod_port(file, "shop-web", 81).is_some()).await;
        wait_told(cluster, "web", "Configured", "True/").await;
        start_replica(cluster, "out", 0).await;
        carry(cluster, "out", 0, None).await;
        let before = wait_told(cluster, "web", "Ready", "True/ReadyToRouteTraffic").await;
        cluster.apply(of("100.64.0.9", &[81, 82])).await;
        let second =
            wait_file(cluster, "out", |file| pod_port(file, "shop-web", 82).is_some()).await;
        assert_eq!(pod_port(&second, "shop-web", 81), pod_port(&first, "shop-web", 81));
        assert_eq!(pod_port(&second, "shop-web", 80), None);
        // What the pod does is no longer what is asked for.
        let after = wait_told(cluster, "web", "Ready", "False/NotReadyToRouteTraffic").await;
        assert_ne!(
            conditions(&after)[1].0,
            conditions(&before)[1].0,
            "the configuration is another"
        );
        carry(cluster, "out", 0, None).await;
        wait_told(cluster, "web", "Ready", "True/ReadyToRouteTraffic").await;
        // Nor when the target is another one.
        cluster.apply(of("db.tail1.ts.net", &[81, 82])).await;
        wait_told(cluster, "web", "Ready", "False/NotReadyToRouteTraffic").await;
        let third = file(cluster, "out").await;
        assert_eq!(
            third["shop-web"]["tailnetTarget"],
            json!({ "ip": "", "fqdn": "db.tail1.ts.net" })
        );
        assert_eq!(third["shop-web"]["ports"], second["shop-web"]["ports"]);
    });
}

#[test]
fn a_service_moves_between_groups_and_leaves_them() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        for name in ["one", "two"] {
            cluster.apply(group(name, json!({ "type": "egress", "replicas": 1 }))).await;
        }
        let ports = json!([{ "port": 80, "protocol": "TCP" }]);
        let on = |group: &str| egress("web", group, "100.64.0.9", ports.clone());
        cluster.apply(on("one")).await;
        wait_told(cluster, "web", "Configured", "True/ConfiguredFor:ProxyGroup:one:").await;
        let first = child(cluster, "web").await.name_any();
        cluster.apply(on("two")).await;
        wait_told(cluster, "web", "Configured", "True/ConfiguredFor:ProxyGroup:two:").await;
        cluster.wait_gone::<Service>(NAMESPACE, &first).await;
        wait_file(cluster, "one", |file| file.get("shop-web").is_none()).await;
        wait_file(cluster, "two", |file| file.get("shop-web").is_some()).await;
        let second = child(cluster, "web").await;
        let user: Service = cluster.api("shop").get("web").await.unwrap();
        let leads_to = user.spec.unwrap().external_name.unwrap();
        assert!(leads_to.starts_with(&second.name_any()), "{leads_to}");

        // On its own: a proxy is made for it, and the group forgets it.
        let mut own = on("two");
        own["metadata"]["annotations"] = json!({ "tailscale.com/tailnet-ip": "100.64.0.9" });
        cluster.apply(own).await;
        let set = cluster.stateful_set("web").await.name_any();
        wait_file(cluster, "two", |file| file.get("shop-web").is_none()).await;
        cluster.wait_condition("web", "True/ProxyCreated").await;
        // And back.
        cluster.apply(on("two")).await;
        cluster.end_pods(&set).await;
        let back =
            wait_told(cluster, "web", "Configured", "True/ConfiguredFor:ProxyGroup:two:").await;
        assert!(crate::cluster::condition(&back).0.is_empty(), "it has no proxy of its own");
        // Nothing at all.
        let mut plain = on("two");
        plain["metadata"].as_object_mut().unwrap().remove("annotations");
        cluster.apply(plain).await;
        cluster
            .wait(("shop", "web"), "it is as it was", |service: &Service| {
                service.finalizers().is_empty() && conditions(service)[0].0.is_empty()
            })
            .await;
        wait_file(cluster, "two", |file| file.get("shop-web").is_none()).await;
        let slices: Api<EndpointSlice> = cluster.api(NAMESPACE);
        assert!(slices.list(&ListParams::default()).await.unwrap().items.is_empty());
    });
}

#[test]
fn a_group_ends_before_its_services_and_comes_back() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let out = group("out", json!({ "type": "egress", "replicas": 1 }));
        cluster.apply(out.clone()).await;
        let ports = json!([{ "port": 80, "protocol": "TCP" }]);
        cluster.apply(egress("web", "out", "100.64.0.9", ports.clone())).await;
        wait_told(cluster, "web", "Configured", "True/").await;
        start_replica(cluster, "out", 0).await;
        carry(cluster, "out", 0, None).await;
        wait_told(cluster, "web", "Ready", "True/ReadyToRouteTraffic").await;
        delete(cluster, "out").await;
        cluster.end_pods("out").await;
        crate::bed::end_pod(cluster, "out-0").await;
        wait_gone(cluster, "out").await;
        let told =
            conditions(&wait_told(cluster, "web", "Valid", "Unknown/ProxyGroupNotReady").await);
        assert!(told[1].0.is_empty() && told[2].0 == "False/ClusterResourcesNotReady", "{told:?}");
        let slices: Api<EndpointSlice> = cluster.api(NAMESPACE);
        assert!(slices.list(&ListParams::default()).await.unwrap().items.is_empty());
        cluster.apply(out).await;
        wait_told(cluster, "web", "Configured", "True/").await;
        start_replica(cluster, "out", 0).await;
        carry(cluster, "out", 0, None).await;
        wait_told(cluster, "web", "Ready", "True/ReadyToRouteTraffic").await;
        // The Service goes while the group is gone.
        delete(cluster, "out").await;
        cluster.end_pods("out").await;
        crate::bed::end_pod(cluster, "out-0").await;
        wait_gone(cluster, "out").await;
        cluster.delete::<Service>("shop", "web").await;
        cluster.wait_gone::<Service>("shop", "web").await;
        crate::bed::assert_nothing_left(cluster).await;
    });
}

#[test]
fn what_upstreams_operator_made_goes_on_and_is_taken_over() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let labels = json!({ "tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "svc",
            "tailscale.com/parent-resource": "db", "tailscale.com/parent-resource-ns": "shop",
            "tailscale.com/proxy-group": "out", "tailscale.com/svc-type": "egress" });
        cluster
            .apply(json!({ "apiVersion": "v1", "kind": "Service",
                "metadata": { "name": "ts-db-abcde", "namespace": NAMESPACE, "labels": labels },
                "spec": { "ports": [
                    { "name": "tailscale-unnamed", "port": 5432, "targetPort": 10432, "protocol": "TCP" },
                    { "name": "tailscale-health-check", "port": 9002, "targetPort": 9002, "protocol": "TCP" }] } }))
            .await;
        let entry = json!({ "shop-db": { "healthCheckEndpoint": "http://ts-db-abcde.tailscale.svc.cluster.local:9002/healthz",
            "tailnetTarget": { "ip": "", "fqdn": "db.tail1.ts.net" },
            "ports": [{ "protocol": "TCP", "matchPort": 10432, "targetPort": 5432 }] } });
        let bytes = k8s_openapi::ByteString(entry.to_string().into_bytes());
        let group_labels = json!({ "tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "proxygroup",
            "tailscale.com/parent-resource": "out" });
        cluster
            .apply(json!({ "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": "out-egress-config", "namespace": NAMESPACE, "labels": group_labels },
                "binaryData": { "egress-services": bytes } }))
            .await;
        // The group is taken over first: the Service's target goes on.
        cluster.apply(group("out", json!({ "type": "egress", "replicas": 1 }))).await;
        cluster.stateful_set("out").await;
        cluster.wait_idle("proxygroup").await;
        assert_eq!(file(cluster, "out").await, entry);
        let ports = json!([{ "port": 5432, "protocol": "TCP" }]);
        cluster.apply(egress("db", "out", "db.tail1.ts.net", ports)).await;
        wait_told(cluster, "db", "Configured", "True/ConfiguredFor:ProxyGroup:out:").await;
        assert_eq!(child(cluster, "db").await.name_any(), "ts-db-abcde");
        assert_eq!(file(cluster, "out").await, entry);
        start_replica(cluster, "out", 0).await;
        carry(cluster, "out", 0, None).await;
        let taken = child(cluster, "db").await;
        cluster
            .wait((NAMESPACE, "ts-db-abcde-ipv4"), "it is led to", |slice: &EndpointSlice| {
                !slice.endpoints.is_empty()
            })
            .await;
        assert_eq!(led_to(cluster, &taken, "ipv4").await, ["10.244.0.10"]);
        // Upstream's finalizer for names keeps nothing.
        let services: Api<Service> = cluster.api(NAMESPACE);
        let patch = Patch::Merge(
            json!({ "metadata": { "finalizers": ["tailscale.com/dns-records-reconciler"] } }),
        );
        services.patch("ts-db-abcde", &PatchParams::default(), &patch).await.unwrap();
        cluster.wait_idle("service").await;
        cluster.delete::<Service>("shop", "db").await;
        cluster.wait_gone::<Service>(NAMESPACE, "ts-db-abcde").await;
    });
}
