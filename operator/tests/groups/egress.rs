//! Egress Services: what is made, and what users are told.

use k8s_openapi::api::{
    core::v1::{ConfigMap, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::json;

use crate::{
    bed::{group, start_replica},
    cluster::{NAMESPACE, in_cluster},
    egress_bed::{carry, child, conditions, egress, file, file_of, led_to, wait_told},
    golden,
};

#[test]
fn a_service_is_led_to_the_proxies_that_do_what_it_asks_for() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let ports = json!([{ "port": 5432, "targetPort": 15432, "name": "pg" },
            { "port": 9002, "name": "own", "protocol": "TCP" }, { "port": 53, "protocol": "UDP", "name": "dns" }]);
        let service = egress("db", "out", "db.tail1.ts.net", ports);
        cluster.apply(service.clone()).await;
        // The group comes later.
        let waits = wait_told(cluster, "db", "Valid", "Unknown/ProxyGroupNotReady").await;
        assert!(
            conditions(&waits)[1].0.is_empty() && conditions(&waits)[2].0.starts_with("False/")
        );
        let note = cluster.wait_event("db", "ProxyGroupNotFound").await;
        assert!(note.contains("ProxyGroup `out` does not exist: create it"), "{note}");
        cluster.apply(group("out", json!({ "type": "egress" }))).await;
        let made = wait_told(cluster, "db", "Ready", "Unknown/ClusterResourcesNotReady").await;
        let told = conditions(&made);
        assert_eq!(told[0].0, "True/EgressSvcValid");
        let hash = told[1].0.strip_prefix("True/ConfiguredFor:ProxyGroup:out:Config:").unwrap();
        assert!(hash.len() == 64, "{told:?}");
        assert_eq!(told[2].1, "pod out-0 of the ProxyGroup is not there");
        let child_service = child(cluster, "db").await;
        let name = child_service.name_any();
        assert_eq!(
            made.spec.as_ref().unwrap().external_name.as_deref(),
            Some(format!("{name}.tailscale.svc.cluster.local").as_str())
        );
        assert_eq!(made.finalizers(), ["tailscale.com/finalizer"]);

        // Each family has its own; a pod counts once it has told that it serves.
        start_replica(cluster, "out", 0).await;
        start_replica(cluster, "out", 1).await;
        let none = wait_told(cluster, "db", "Ready", "False/NotReadyToRouteTraffic").await;
        assert_eq!(conditions(&none)[2].1, "0 of 2 replicas route traffic");
        carry(cluster, "out", 0, None).await;
        wait_told(cluster, "db", "Ready", "True/PartiallyReadyToRouteTraffic").await;
        carry(cluster, "out", 1, None).await;
        let all = wait_told(cluster, "db", "Ready", "True/ReadyToRouteTraffic").await;
        assert_eq!(conditions(&all)[2].1, "2 of 2 replicas route traffic");
        assert_eq!(led_to(cluster, &child_service, "ipv4").await, ["10.244.0.10", "10.244.0.11"]);
        assert_eq!(led_to(cluster, &child_service, "ipv6").await, ["fd00:244::10", "fd00:244::11"]);
        let suffix = name.rsplit('-').next().unwrap();
        let pods: Api<k8s_openapi::api::core::v1::Pod> = cluster.api(NAMESPACE);
        let mut uids = Vec::new();
        for pod in ["out-0", "out-1"] {
            uids.push(pods.get(pod).await.unwrap().uid().unwrap());
        }
        let config = golden::objects(cluster, "db").await;
        golden::compare("groups", "egress_service.yaml", &config, |text| {
            let text = text.replace(&format!("-{suffix}"), "-SUFFIX").replace(hash, "HASH");
            let text = text.replace(&uids[0], "UID of out-0").replace(&uids[1], "UID of out-1");
            without_ports(&text)
        });
        let entry = &file(cluster, "out").await["shop-db"];
        assert_eq!(entry["tailnetTarget"], json!({ "ip": "", "fqdn": "db.tail1.ts.net" }));
        let url = format!("http://{name}.tailscale.svc.cluster.local:9003/healthz");
        assert_eq!(entry["healthCheckEndpoint"], url);
        let targets: Vec<_> = entry["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["targetPort"].clone())
            .collect();
        assert!(targets.contains(&json!(15432)) && !targets.contains(&json!(5432)), "{entry}");

        // A target that is gone: nobody is led there, and it is told. Then the Service goes, and all that was made for it.
        for ordinal in [0, 1] {
            carry(cluster, "out", ordinal, Some(&[])).await;
        }
        wait_told(cluster, "db", "Ready", "False/NotReadyToRouteTraffic").await;
        assert!(led_to(cluster, &child_service, "ipv4").await.is_empty());
        cluster.delete::<Service>("shop", "db").await;
        cluster.wait_gone::<Service>("shop", "db").await;
        let is_gone = |map: &ConfigMap| file_of(map).as_object().unwrap().is_empty();
        cluster.wait((NAMESPACE, "out-egress-config"), "its key is gone", is_gone).await;
        cluster.wait_gone::<Service>(NAMESPACE, &name).await;
        let slices: Api<EndpointSlice> = cluster.api(NAMESPACE);
        assert!(slices.list(&ListParams::default()).await.unwrap().items.is_empty());
    });
}

/// Which ports of the pods a Service has follows from its UID.
fn without_ports(text: &str) -> String {
    let mut hidden = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("10").filter(|_| !rest.is_empty()) {
        let (before, from) = rest.split_at(at);
        hidden.push_str(before);
        let digits: String = from.chars().take_while(char::is_ascii_digit).collect();
        let starts = before.chars().last().is_none_or(|letter| !letter.is_ascii_digit());
        let is_port = starts && digits.len() == 5 && digits.starts_with("10");
        hidden.push_str(if is_port { "POD-PORT" } else { &digits });
        rest = &from[digits.len()..];
    }
    hidden + rest
}

#[test]
fn an_idle_service_is_not_written_to() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(group("out", json!({ "type": "egress", "replicas": 1 }))).await;
        let ports = json!([{ "port": 80, "protocol": "TCP" }]);
        let one = egress("web", "out", "100.64.0.9", ports.clone());
        let other = egress("db", "out", "db.tail1.ts.net", ports);
        cluster.apply(one.clone()).await;
        cluster.apply(other.clone()).await;
        cluster.stateful_set("out").await;
        for name in ["web", "db"] {
            wait_told(cluster, name, "Configured", "True/").await;
        }
        start_replica(cluster, "out", 0).await;
        carry(cluster, "out", 0, None).await;
        for name in ["web", "db"] {
            wait_told(cluster, name, "Ready", "True/ReadyToRouteTraffic").await;
        }
        cluster.wait_idle("proxygroup").await;
        cluster.wait_idle("service").await;
        assert!(!cluster.take_writes().is_empty(), "writes are not noted");
        for number in 0..10 {
            for service in [&one, &other] {
                // The user's own name for the target is applied again: it is the proxies' again.
                let mut service = service.clone();
                service["spec"].as_object_mut().unwrap().remove("externalName");
                cluster.touch("service", &service, number).await;
            }
            let group = group("out", json!({ "type": "egress", "replicas": 1 }));
            cluster.touch("proxygroup", &group, number).await;
        }
        cluster.wait_idle("proxygroup").await;
        cluster.wait_idle("service").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());
    });
}

#[test]
fn what_cannot_be_done_is_told() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(group("out", json!({ "type": "egress", "replicas": 0 }))).await;
        cluster.apply(group("in", json!({ "type": "ingress", "replicas": 0 }))).await;
        let ports = json!([{ "port": 80, "protocol": "TCP" }]);
        let mut bad = egress("bad", "out", "here", ports.clone());
        bad["metadata"]["annotations"]["tailscale.com/tailnet-fqdn"] = json!("db");
        cluster.apply(bad).await;
        let told = conditions(&wait_told(cluster, "bad", "Valid", "False/EgressSvcInvalid").await);
        assert!(told[0].1.contains("are both set") && told[0].1.contains("`here` is not an IP"));
        assert!(told[1].0.is_empty());
        assert_eq!(cluster.wait_event("bad", "INVALIDSERVICE").await, told[0].1);
        cluster.apply(egress("wrong", "in", "100.64.0.9", ports.clone())).await;
        let told =
            conditions(&wait_told(cluster, "wrong", "Valid", "False/EgressSvcInvalid").await);
        assert!(told[0].1.contains("ProxyGroup `in` is of type ingress, name one of type egress"));
        // Nobody carries anything, as was asked for.
        cluster.apply(egress("none", "out", "100.64.0.9", ports.clone())).await;
        wait_told(cluster, "none", "Ready", "False/NoProxiesConfigured").await;
        // Put right, it is served.
        cluster.apply(egress("wrong", "out", "100.64.0.9", ports)).await;
        wait_told(cluster, "wrong", "Configured", "True/ConfiguredFor:ProxyGroup:out:").await;
        let many: Vec<_> = (1..=998)
            .map(|port| json!({ "port": port, "name": format!("p{port}"), "protocol": "TCP" }))
            .collect();
        cluster.apply(egress("many", "out", "100.64.0.9", json!(many))).await;
        wait_told(cluster, "many", "Configured", "True/").await;
        let one_more = json!([{ "port": 1, "protocol": "TCP" }]);
        cluster.apply(egress("late", "out", "100.64.0.9", one_more)).await;
        let told = conditions(
            &wait_told(cluster, "late", "Configured", "False/ConfigurationFailed").await,
        );
        assert!(told[1].1.contains("have no ports left: move Services to another one"), "{told:?}");
        cluster.wait_event("late", "ConfigurationFailed").await;
        let child_service = child(cluster, "none").await;
        assert_eq!(child_service.spec.unwrap().ip_families.unwrap(), ["IPv4", "IPv6"]);
    });
}
