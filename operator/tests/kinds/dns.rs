//! DNSConfigs: the nameserver that is made, and what is told.

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Service, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{Api, Resource as _, ResourceExt as _};
use operator::crd::DnsConfig;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NAMESPACE, in_cluster},
    cluster_wide::{ClusterWide, condition, delete, wait, wait_so},
    made::Made,
};

impl ClusterWide for DnsConfig {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }
}

pub(crate) fn config(name: &str, nameserver: &Value) -> Value {
    json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "DNSConfig",
        "metadata": { "name": name }, "spec": { "nameserver": nameserver } })
}

fn address(config: &DnsConfig) -> Option<String> {
    config.status.as_ref()?.nameserver.as_ref()?.ip.clone()
}

async fn check(cluster: &Cluster, file: &str) {
    Made::with("tailscale.com/parent-resource-type=nameserver")
        .add::<ServiceAccount>(cluster)
        .await
        .add::<ConfigMap>(cluster)
        .await
        .add::<Service>(cluster)
        .await
        .add::<Deployment>(cluster)
        .await
        .check(file);
}

#[test]
fn a_nameserver_is_made_as_it_is_asked_for_and_left_alone_then() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let bare = config("dns", &json!({}));
        cluster.apply(bare.clone()).await;
        let made: DnsConfig = wait(cluster, "dns", "True/NameserverCreated@1").await;
        assert_eq!(made.finalizers(), ["tailscale.com/finalizer"]);
        let service =
            cluster.wait((NAMESPACE, "nameserver"), "it is there", |_: &Service| true).await;
        assert_eq!(address(&made), service.spec.unwrap().cluster_ip);
        check(cluster, "nameserver.yaml").await;
        cluster.wait_idle("nameserver").await;
        cluster.take_writes();
        for number in 0..10 {
            cluster.touch("nameserver", &bare, number).await;
        }
        cluster.wait_idle("nameserver").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());

        // What somebody deletes or changes is made again.
        for _ in 0..2 {
            cluster.delete::<Deployment>(NAMESPACE, "nameserver").await;
            cluster.wait((NAMESPACE, "nameserver"), "it is back", |_: &Deployment| true).await;
        }
        cluster
            .apply(
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "records.json": "{}" },
                "metadata": { "name": "dnsrecords", "namespace": NAMESPACE } }),
            )
            .await;
        cluster
            .wait((NAMESPACE, "dnsrecords"), "the records are back", |map: &ConfigMap| {
                map.data.as_ref().unwrap()["records.json"].contains("v1alpha1")
            })
            .await;

        let all = json!({
            "replicas": 2, "image": { "repo": "registry.example/op", "tag": "v9" },
            "service": { "clusterIP": "10.96.200.53" },
            "pod": { "tolerations": [{ "key": "dns", "operator": "Exists" }],
                "nodeSelector": { "disk": "ssd" }, "imagePullSecrets": [{ "name": "pull" }],
                "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution":
                    { "nodeSelectorTerms": [{ "matchExpressions":
                        [{ "key": "a", "operator": "Exists" }] }] } } } },
        });
        cluster.apply(config("dns", &all)).await;
        // A Service keeps its address, and that is said.
        let kept: DnsConfig = wait(cluster, "dns", "True/NameserverCreated@2").await;
        assert_eq!(address(&kept), address(&made));
        let told = condition(&kept).1;
        assert!(
            told.contains("spec.nameserver.service.clusterIP") && told.contains("10.96.200.53"),
            "{told}"
        );
        cluster.delete::<Service>(NAMESPACE, "nameserver").await;
        let moved = |config: &DnsConfig| address(config).as_deref() == Some("10.96.200.53");
        wait_so(cluster, "dns", "the address that was asked for", moved).await;
        check(cluster, "nameserver_changed.yaml").await;

        // The finalizer keeps nothing: what was made goes with its owner.
        delete::<DnsConfig>(cluster, "dns").await;
    });
}

#[test]
fn of_several_the_oldest_has_the_nameserver_and_the_others_are_told() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        cluster.apply(config("b", &json!({}))).await;
        let first: DnsConfig = wait(cluster, "b", "True/NameserverCreated@1").await;
        // Creation times have seconds: one of the same second would win by its name.
        let second = first.creation_timestamp().unwrap().0.as_second();
        while k8s_openapi::jiff::Timestamp::now().as_second() <= second {
            tokio::task::yield_now().await;
        }
        cluster.apply(config("a", &json!({ "replicas": 3 }))).await;
        let other: DnsConfig = wait(cluster, "a", "False/MultipleDNSConfigsPresent@1").await;
        let told = condition(&other).1;
        assert!(told.contains("`b`") && told.contains("delete the other"), "{told}");
        assert_eq!(cluster.wait_event("a", "MultipleDNSConfigsPresent").await, told);
        assert_eq!(address(&other), None);
        cluster.wait_idle("nameserver").await;
        assert_eq!(
            condition(&wait::<DnsConfig>(cluster, "b", "True/NameserverCreated@1").await).1,
            "NameserverCreated"
        );
        let of = async || {
            let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
            api.get("nameserver").await.unwrap()
        };
        assert_eq!(of().await.owner_references()[0].name, "b");
        cluster.take_writes();
        for number in 0..10 {
            cluster.touch("nameserver", &config("a", &json!({ "replicas": 3 })), number).await;
        }
        cluster.wait_idle("nameserver").await;
        assert_eq!(cluster.take_writes(), Vec::<String>::new());
        assert_eq!(cluster.events("a", "MultipleDNSConfigsPresent").await.len(), 1);

        delete::<DnsConfig>(cluster, "b").await;
        let taken: DnsConfig = wait(cluster, "a", "True/NameserverCreated@1").await;
        let deployment = of().await;
        assert_eq!(deployment.spec.as_ref().unwrap().replicas, Some(3));
        let owners: Vec<_> = deployment.owner_references().iter().map(|one| &one.uid).collect();
        assert_eq!(owners, [taken.meta().uid.as_ref().unwrap()]);
    });
}

#[test]
fn what_the_api_server_refuses_is_told_with_field_and_reason() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        let outside = json!({ "service": { "clusterIP": "192.0.2.1" } });
        cluster.apply(config("dns", &outside)).await;
        let failed: DnsConfig = wait(cluster, "dns", "False/NameserverCreationFailed@1").await;
        let told = condition(&failed).1;
        assert!(told.contains("apply Service tailscale/nameserver"), "{told}");
        assert!(told.contains("spec.clusterIPs") && told.contains("192.0.2.1"), "{told}");
        assert_eq!(cluster.wait_event("dns", "NameserverCreationFailed").await, told);
        cluster.apply(config("dns", &json!({ "replicas": 1 }))).await;
        wait::<DnsConfig>(cluster, "dns", "True/NameserverCreated@2").await;
    });
}
