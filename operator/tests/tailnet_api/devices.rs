//! Keys let real devices in; deleted devices are gone.

use std::time::Duration;

use operator::tailnet_api::{Deleted, DeviceId, KeyRequest};
use proxy_testbed::tailnet::AuthKey;
use secrecy::ExposeSecret as _;

use crate::bed::Bed;

#[test]
fn a_minted_key_logs_a_device_in_with_its_tags_and_deleting_it_removes_it() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        let request = KeyRequest {
            description: "for the test".to_owned(),
            expiry: Some(Duration::from_hours(1)),
            ..KeyRequest::for_proxy(["tag:k8s", "tag:web"])
        };
        let key = api.create_key(&request).await.unwrap();
        assert!(key.expires.is_some());
        assert!(!format!("{key:?}").contains(key.secret.expose_secret()));
        let listed = api.keys().await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].tags, ["tag:k8s", "tag:web"]);
        assert_eq!(listed[0].description, "for the test");
        assert!(listed[0].usable);
        let life = listed[0].expires.unwrap().duration_since(listed[0].created.unwrap());
        assert!((3598..=3600).contains(&life.as_secs()), "{life:?}");

        let node = bed.tailnet.node("proxy").unwrap();
        node.up(&AuthKey::made(&key.id, key.secret.expose_secret()), &[]).unwrap();
        let devices = api.devices().await.unwrap();
        assert_eq!(devices.len(), 1);
        let device = &devices[0];
        assert_eq!(device.tags, ["tag:k8s", "tag:web"]);
        assert_eq!(device.name, "proxy.tailnet.ts.net");
        assert_eq!(device.hostname, "proxy");
        assert_eq!(device.addresses, node.addresses().unwrap());
        assert_eq!(device.connected, Some(true));
        assert_eq!(api.device(&device.id).await.unwrap(), *device);
        assert_eq!(device.id.as_str(), bed.tailnet.find("proxy").unwrap().stable_id);
        assert!(!api.keys().await.unwrap()[0].usable, "used up");

        assert_eq!(api.delete_device(&device.id).await.unwrap(), Deleted::Now);
        assert!(bed.tailnet.nodes().unwrap().is_empty());
        assert!(api.device(&device.id).await.unwrap_err().is_not_found());
        node.wait_status("the node is logged out", |status| {
            status.get("BackendState").is_some_and(|state| state == "NeedsLogin")
        })
        .unwrap();
    });
}

#[test]
fn what_is_not_there_counts_as_deleted_and_odd_ids_stay_in_their_path() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.tailnet.add_fakes(3, "fake").unwrap();
    bed.run(async |api| {
        for id in ["nNobodyCNTRL", "../tailnet/-/keys", "a b/c?d=e#f", "ü"] {
            let id = DeviceId::new(id);
            assert_eq!(api.delete_device(&id).await.unwrap(), Deleted::Already, "{id}");
            assert!(api.device(&id).await.unwrap_err().is_not_found(), "{id}");
        }
        assert_eq!(api.devices().await.unwrap().len(), 3);
    });
    assert_eq!(bed.counted([crate::bed::DELETE_DEVICE, "/api/"]), [4, 0]);
}

#[test]
fn a_large_tailnet_is_listed_whole() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.tailnet.add_fakes(5000, "fake").unwrap();
    bed.run(async |api| {
        let devices = api.devices().await.unwrap();
        assert_eq!(devices.len(), 5000);
        assert!(devices.iter().all(|device| device.addresses.len() == 2));
    });
}

#[test]
fn the_policy_is_read_with_its_version() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.tailnet.set_policy("{} // nothing").unwrap();
    bed.run(async |api| {
        let first = api.policy().await.unwrap();
        assert_eq!(first.text, "{} // nothing");
        bed.tailnet.set_policy("{}").unwrap();
        let second = api.policy().await.unwrap();
        assert_eq!(second.text, "{}");
        assert!(first.version.is_some());
        assert_ne!(first.version, second.version);
    });
}
