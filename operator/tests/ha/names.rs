//! Names that several want: objects of the cluster, operators of other clusters, people.

use k8s_openapi::api::{core::v1::Service, networking::v1::Ingress};
use operator::{
    build::ingress_config::File,
    tailnet_api::{VipService, owner::OWNERS},
};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NAMESPACE, in_cluster},
    group::{Group, create_secret, vip, wait_vip},
    ingresses::{backend, ingress, plain},
    services::service,
};

fn owners(service: &VipService) -> Vec<String> {
    let value: Value = serde_json::from_str(&service.annotations[OWNERS]).unwrap();
    let all = value["ownerRefs"].as_array().unwrap().iter();
    all.map(|owner| owner["operatorID"].as_str().unwrap().to_owned()).collect()
}

/// A Tailscale Service as others have it.
fn theirs(name: &str, owners: &[&str]) -> VipService {
    let mut service = VipService::new(name.parse().unwrap());
    service.addresses = vec!["100.100.1.1".parse().unwrap(), "fd7a::1".parse().unwrap()];
    service.ports = vec!["tcp:443".into()];
    service.tags = vec!["tag:k8s".into()];
    if !owners.is_empty() {
        let all: Vec<_> = owners.iter().map(|id| json!({ "operatorID": id })).collect();
        service.annotations.insert(OWNERS.into(), json!({ "ownerRefs": all }).to_string());
    }
    service
}

async fn touch(cluster: &Cluster, mut object: Value) {
    object["metadata"]["annotations"]["example.com/touched"] = json!("again");
    cluster.apply(object).await;
}

#[test]
fn a_name_is_that_of_who_has_it_and_goes_over_to_who_waits() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        backend(cluster, "web", "10.96.0.81").await;
        let group = Group::start(cluster, "in", 1).await;
        let http = json!({ "tailscale.com/http-endpoint": "enabled" });
        cluster.apply(ingress("first", "web", http.clone())).await;
        group.wait_offered(&["svc:web"]).await;
        let addresses = vip(cluster, "svc:web").await.unwrap().addresses;
        cluster.apply(ingress("second", "web.example.com", http.clone())).await;
        let told = cluster.wait_event("second", "InvalidIngressConfiguration").await;
        assert!(told.contains("`web` is that of Ingress shop/first already"), "{told}");
        let spec = json!({ "clusterIP": "10.96.0.90", "ports": [{ "port": 80 }] });
        let third = json!({ "tailscale.com/hostname": "Web" });
        cluster.apply(service("third", third, spec)).await;
        let told = cluster.wait_event("third", "IngressSvcInvalid").await;
        assert!(
            told.contains("Ingress shop/first") && told.contains("tailscale.com/hostname"),
            "{told}"
        );
        cluster.wait_idle("ingress").await;
        assert!(cluster.events("first", "InvalidIngressConfiguration").await.is_empty());
        assert_eq!(group.entries(File::Ingress).await.len(), 0, "nothing half-made");

        // Who is next has it without a gap.
        cluster.delete::<Ingress>("shop", "first").await;
        cluster.wait_gone::<Ingress>("shop", "first").await;
        let next = |ingress: &Ingress| {
            let record = ingress.metadata.annotations.as_ref();
            record.is_some_and(|all| all.contains_key("sluice.dev/provisioned"))
        };
        cluster.wait(("shop", "second"), "it has the name", next).await;
        cluster.wait_idle("ingress").await;
        assert_eq!(vip(cluster, "svc:web").await.unwrap().addresses, addresses);
        group.wait_offered(&["svc:web"]).await;
        // Another kind serves it in another way.
        cluster.delete::<Ingress>("shop", "second").await;
        let mapped = json!({ "IPv4Mapping": { "TailscaleServiceIP": addresses[0], "ClusterIP": "10.96.0.90" } });
        group.wait_entry(File::Ingress, "svc:web", Some(&mapped)).await;
        group.wait_entry(File::Serve, "svc:web", None).await;
        let service = wait_vip(cluster, "svc:web", |service| {
            service.is_some_and(|service| service.ports == ["do-not-validate"])
        });
        assert_eq!(service.await.unwrap().addresses, addresses);
        cluster.delete::<Service>("shop", "third").await;
        cluster.wait_gone::<Service>("shop", "third").await;
        assert_eq!(vip(cluster, "svc:web").await, None);
        assert_eq!(group.entries(File::Ingress).await.len(), 0);
    });
}

#[test]
fn operators_share_a_name_and_a_persons_is_left_alone() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        backend(cluster, "web", "10.96.0.81").await;
        let group = Group::start(cluster, "in", 1).await;
        cluster.tailnet.set_vip_service(theirs("svc:web", &["n7CNTRL"]));
        cluster.tailnet.set_vip_service(theirs("svc:hand", &[]));
        let shared = ingress("site", "web", json!({}));
        cluster.apply(shared.clone()).await;
        let both = |service: Option<&VipService>| {
            service.is_some_and(|service| owners(service).len() == 2)
        };
        let service = wait_vip(cluster, "svc:web", both).await.unwrap();
        assert_eq!(owners(&service)[0], "n7CNTRL");
        assert!(owners(&service)[1].ends_with("/tailscale"), "{:?}", owners(&service));
        assert_eq!(service.addresses, theirs("svc:web", &[]).addresses);

        let hand = ingress("hand", "hand", json!({}));
        cluster.apply(hand.clone()).await;
        let told = cluster.wait_event("hand", "InvalidTailscaleService").await;
        assert!(
            told.contains("svc:hand") && told.contains("delete it, or choose another name"),
            "{told}"
        );
        cluster.wait_idle("ingress").await;
        assert_eq!(vip(cluster, "svc:hand").await.unwrap(), theirs("svc:hand", &[]));
        assert_eq!(group.entries(File::Serve).await.len(), 1, "nothing half-made");
        cluster.delete::<Ingress>("shop", "hand").await;
        cluster.wait_gone::<Ingress>("shop", "hand").await;
        assert!(vip(cluster, "svc:hand").await.is_some());

        cluster.delete::<Ingress>("shop", "site").await;
        cluster.wait_gone::<Ingress>("shop", "site").await;
        let left = vip(cluster, "svc:web").await.unwrap();
        assert_eq!(owners(&left), ["n7CNTRL"]);
        // The others have gone meanwhile: the last one deletes it.
        cluster.apply(shared).await;
        wait_vip(cluster, "svc:web", both).await;
        let mut alone = vip(cluster, "svc:web").await.unwrap();
        let own = owners(&alone)[1].clone();
        alone.annotations = theirs("svc:web", &[&own]).annotations;
        cluster.tailnet.set_vip_service(alone);
        cluster.delete::<Ingress>("shop", "site").await;
        cluster.wait_gone::<Ingress>("shop", "site").await;
        assert_eq!(vip(cluster, "svc:web").await, None);
    });
}

/// R41: the operator's device, and with it its identity, is lost.
#[test]
fn what_was_owned_as_a_device_stays_owned_when_the_device_is_lost() {
    kernel_or_skip!();
    in_cluster(&[], async |cluster| {
        backend(cluster, "web", "10.96.0.81").await;
        let state = json!({ "metadata": { "name": "operator" }, "stringData": {
            "_current-profile": "profile-1", "profile-1": json!({ "Config": { "NodeID": "n1CNTRL" } }).to_string() } });
        create_secret(cluster, serde_json::from_value(state).unwrap()).await;
        cluster.tailnet.set_vip_service(theirs("svc:web", &["n1CNTRL"]));
        let group = Group::start(cluster, "in", 1).await;
        let object = ingress("site", "web", json!({}));
        cluster.apply(object.clone()).await;
        group.wait_entry(File::Serve, "svc:web", Some(&plain("web"))).await;
        let service = vip(cluster, "svc:web").await.unwrap();
        let [own] = &owners(&service)[..] else { panic!("{service:?}") };
        assert!(own.ends_with("/tailscale"), "what cannot be lost owns it: {own}");
        cluster.delete::<k8s_openapi::api::core::v1::Secret>(NAMESPACE, "operator").await;
        touch(cluster, object).await;
        cluster.wait_idle("ingress").await;
        assert!(cluster.events("site", "InvalidTailscaleService").await.is_empty());
        cluster.delete::<Ingress>("shop", "site").await;
        cluster.wait_gone::<Ingress>("shop", "site").await;
        assert_eq!(vip(cluster, "svc:web").await, None);
    });
}
