//! Many egress Services on one ProxyGroup: what that costs.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    bed::{group, start_replica},
    cluster::{Cluster, NAMESPACE, in_cluster},
    egress_bed::{carry, conditions, egress, file_of},
};

const SERVICES: usize = 200;

/// How often what was written: method and kind.
fn tally(writes: &[String]) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for write in writes {
        let (method, path) = write.split_once(' ').unwrap();
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        let after = parts.iter().position(|part| *part == "namespaces").map_or(3, |at| at + 2);
        let place = if parts.get(after - 1) == Some(&"shop") { "user's " } else { "" };
        let kind = parts.get(after).copied().unwrap_or("?");
        let status = if parts.last() == Some(&"status") { "/status" } else { "" };
        *all.entry(format!("{method} {place}{kind}{status}")).or_default() += 1;
    }
    all
}

async fn wait_all(cluster: &Cluster, wanted: &str) {
    for number in 0..SERVICES {
        let name = format!("s{number}");
        let is_so = |service: &Service| conditions(service)[2].0.starts_with(wanted);
        cluster.wait(("shop", &name), wanted, is_so).await;
    }
}

#[test]
fn many_services_cost_a_few_writes_each_and_one_file() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(group("out", json!({ "type": "egress", "replicas": 1 }))).await;
        cluster.stateful_set("out").await;
        start_replica(cluster, "out", 0).await;
        cluster.wait_idle("proxygroup").await;
        cluster.take_writes();
        for number in 0..SERVICES {
            let ports = json!([{ "port": 80, "protocol": "TCP" }]);
            let service =
                egress(&format!("s{number}"), "out", &format!("100.64.1.{number}"), ports);
            cluster.apply(service).await;
        }
        let is_full = |map: &ConfigMap| file_of(map).as_object().unwrap().len() == SERVICES;
        cluster.wait((NAMESPACE, "out-egress-config"), "all are in the file", is_full).await;
        wait_all(cluster, "False/NotReadyToRouteTraffic").await;
        cluster.wait_idle("service").await;
        cluster.wait_idle("proxygroup").await;
        let made = tally(&cluster.take_writes());
        println!("{SERVICES} Services are made: {made:?}");
        let of = |what: &str| made.get(what).copied().unwrap_or_default();
        // What the cache does not know yet is applied once more, to no effect.
        let about = |number: usize| number..=number + number / 2;
        assert!(about(SERVICES).contains(&of("PATCH services")), "one Service each");
        assert!(about(2 * SERVICES).contains(&of("PATCH endpointslices")), "one a family");
        assert!(of("PATCH configmaps") <= SERVICES / 4, "written together");
        assert!(about(2 * SERVICES).contains(&of("PATCH user's services")), "finalizer and name");
        assert!(of("PATCH user's services/status") <= 2 * SERVICES);
        assert_eq!(of("PATCH statefulsets"), 0, "no pod restarts for a Service");
        // All pods' ports are different.
        let map: ConfigMap = cluster.api(NAMESPACE).get("out-egress-config").await.unwrap();
        let file = file_of(&map);
        let ports: std::collections::BTreeSet<_> = file
            .as_object()
            .unwrap()
            .values()
            .map(|one| one["ports"][0]["matchPort"].as_u64())
            .collect();
        assert_eq!(ports.len(), SERVICES);

        carry(cluster, "out", 0, None).await;
        wait_all(cluster, "True/ReadyToRouteTraffic").await;
        cluster.wait_idle("proxygroup").await;
        cluster.wait_idle("service").await;
        let served = tally(&cluster.take_writes());
        println!("one replica serves them: {served:?}");
        assert!(about(2 * SERVICES).contains(&served["PATCH endpointslices"]), "{served:?}");
        let services: Api<Service> = cluster.api("shop");

        // One of them changes: the others are not written to.
        let touch = Patch::Merge(
            json!({ "metadata": { "annotations": { "tailscale.com/tailnet-ip": "100.64.2.1" } } }),
        );
        services.patch("s7", &PatchParams::default(), &touch).await.unwrap();
        let changed =
            |map: &ConfigMap| file_of(map)["shop-s7"]["tailnetTarget"]["ip"] == "100.64.2.1";
        cluster.wait((NAMESPACE, "out-egress-config"), "the change", changed).await;
        cluster.wait_idle("proxygroup").await;
        cluster.wait_idle("service").await;
        let change = tally(&cluster.take_writes());
        println!("one changes: {change:?}");
        assert!(change.values().sum::<usize>() <= 8, "{change:?}");
    });
}
