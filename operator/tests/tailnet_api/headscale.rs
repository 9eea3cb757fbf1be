//! The same, at a control server that is Headscale.

use operator::tailnet_api::{
    ControlServer, Credentials, Deleted, DeviceId, Failure, Feature, KeyRequest, Retry, Settings,
    Source, VipService,
};
use proxy_testbed::tailnet::{AuthKey, Fault};
use secrecy::ExposeSecret as _;

use crate::bed::Bed;

const KEY: &str = "hskey-api-first";

fn headscale(bed: &Bed, user: Option<&str>) -> Settings {
    bed.tailnet.set_api_keys(&[KEY]).unwrap();
    bed.write("api_key", KEY);
    let api_key = Source::File(bed.file("api_key"));
    bed.settings(Credentials::Headscale { api_key, user: user.map(str::to_owned) })
}

#[test]
fn a_minted_key_logs_a_node_in_with_its_tags_and_deleting_it_removes_it() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.with(headscale(&bed, None), async |api| {
        assert_eq!(api.control_server(), ControlServer::Headscale);
        let key = api.create_key(&KeyRequest::for_proxy(["tag:k8s"])).await.unwrap();
        assert!(api.keys().await.unwrap()[0].usable);
        let node = bed.tailnet.node("proxy").unwrap();
        node.up(&AuthKey::made(&key.id, key.secret.expose_secret()), &[]).unwrap();
        let devices = api.devices().await.unwrap();
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].tags, ["tag:k8s"]);
        assert_eq!((&*devices[0].name, &*devices[0].hostname), ("proxy", "proxy"));
        assert_eq!(devices[0].addresses, node.addresses().unwrap());
        assert_eq!(api.device(&devices[0].id).await.unwrap(), devices[0]);
        assert!(!api.keys().await.unwrap()[0].usable, "used up");
        assert_eq!(api.delete_device(&devices[0].id).await.unwrap(), Deleted::Now);
        assert!(bed.tailnet.nodes().unwrap().is_empty());
        assert_eq!(api.delete_device(&devices[0].id).await.unwrap(), Deleted::Already);
    });
}

#[test]
fn a_node_of_another_control_server_is_not_there() {
    kernel_or_skip!();
    let bed = Bed::new();
    let call = "DELETE /api/v1/node/{id}";
    bed.with(headscale(&bed, None), async |api| {
        // Headscale cannot read the number of such a node.
        bed.plan(call, 1, &Fault::Status(400, ""));
        let foreign = DeviceId::new("n1CNTRL");
        assert_eq!(api.delete_device(&foreign).await.unwrap(), Deleted::Already);
        bed.plan(call, 1, &Fault::Status(400, ""));
        let error = api.delete_device(&DeviceId::new("7")).await.unwrap_err();
        assert_eq!(error.reason(), "Invalid", "a number is not refused for its form");
    });
}

#[test]
fn keys_belong_to_the_user_that_is_configured() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.with(headscale(&bed, Some("ops@example.com")), async |api| {
        let request = KeyRequest::for_proxy(["tag:k8s"]);
        let error = api.create_key(&request).await.unwrap_err();
        assert!(error.to_string().contains(r#"no user "ops@example.com""#), "{error}");
        // A node that its user lets in makes the user known.
        let options = proxy_testbed::tailnet::KeyOptions {
            user: Some("ops@example.com".into()),
            ..Default::default()
        };
        bed.tailnet.node("own").unwrap().up(&bed.tailnet.auth_key(&options).unwrap(), &[]).unwrap();
        api.create_key(&request).await.unwrap();
        // Headscale's untagged keys need a user, and this one has it.
        let key = api.create_key(&KeyRequest::for_proxy(Vec::<String>::new())).await.unwrap();
        let node = bed.tailnet.node("proxy").unwrap();
        node.up(&AuthKey::made(&key.id, key.secret.expose_secret()), &[]).unwrap();
        assert!(bed.tailnet.find("proxy").unwrap().tags.is_empty());
    });
}

#[test]
fn what_headscale_does_not_have_is_named_and_nothing_is_asked() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.with(headscale(&bed, None), async |api| {
        let name = "svc:web".parse().unwrap();
        let web = VipService::new("svc:web".parse().unwrap());
        for error in [
            api.vip_services().await.unwrap_err(),
            api.vip_service(&name).await.unwrap_err(),
            api.put_vip_service(&web, None).await.unwrap_err(),
            api.delete_vip_service(&web).await.unwrap_err(),
        ] {
            assert_eq!(error.failure, Failure::Unsupported(Feature::VipServices));
            assert_eq!(error.retry(), Retry::OnChange);
            assert!(error.to_string().contains("Tailscale Services"), "{error}");
        }
        assert!(bed.tailnet.take_calls().unwrap().is_empty());
        bed.tailnet.set_policy("{}").unwrap();
        assert_eq!(api.policy().await.unwrap().text, "{}");
    });
}

#[test]
fn a_rotated_api_key_is_used_at_once() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.with(headscale(&bed, None), async |api| {
        api.devices().await.unwrap();
        bed.tailnet.set_api_keys(&["second"]).unwrap();
        let error = api.devices().await.unwrap_err();
        assert_eq!(error.reason(), "Unauthorized");
        assert!(!format!("{error} {error:?} {api:?}").contains(KEY));
        bed.write("api_key", "second\n");
        api.devices().await.unwrap();
    });
}
