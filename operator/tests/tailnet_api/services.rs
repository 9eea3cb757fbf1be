//! Tailscale Services: what another operator writes is never overwritten unseen.

use operator::tailnet_api::{Deleted, ServiceName, TailnetApi, VipService};
use proxy_testbed::tailnet::{Fault, KeyOptions};

use crate::bed::{Bed, DELETE_SERVICE, PUT_SERVICE};

fn name() -> ServiceName {
    "svc:web".parse().unwrap()
}

fn web() -> VipService {
    let owner = r#"{"ownerRefs":[{"operatorID":"n1CNTRL"}]}"#;
    VipService {
        ports: vec!["tcp:443".to_owned()],
        tags: vec!["tag:k8s".to_owned()],
        comment: "made by a test".to_owned(),
        annotations: [("tailscale.com/owner-references".to_owned(), owner.to_owned())].into(),
        ..VipService::new(name())
    }
}

/// Creates, reads, replaces and deletes a Service.
async fn live(api: &dyn TailnetApi) {
    assert!(api.vip_service(&name()).await.unwrap_err().is_not_found());
    let made = api.put_vip_service(&web(), None).await.unwrap();
    let families: Vec<_> = made.addresses.iter().map(std::net::IpAddr::is_ipv6).collect();
    assert_eq!(families, [false, true]);
    assert!(web().is_met_by(&made), "{made:?}");
    assert_eq!(api.vip_service(&name()).await.unwrap(), made);
    assert!(api.vip_services().await.unwrap()[0].same_content(&made));

    let more = VipService { ports: vec!["tcp:443".into(), "tcp:80".into()], ..web() };
    let changed = api.put_vip_service(&more, Some(&made)).await.unwrap();
    assert_eq!(changed.addresses, made.addresses, "kept though none were asked for");
    assert_eq!(changed.ports, more.ports);

    let stale = api.put_vip_service(&web(), Some(&made)).await.unwrap_err();
    assert!(stale.is_conflict(), "{stale}");
    assert!(api.put_vip_service(&web(), None).await.unwrap_err().is_conflict());
    assert!(api.delete_vip_service(&made).await.unwrap_err().is_conflict());
    assert_eq!(api.vip_service(&name()).await.unwrap(), changed, "untouched");

    assert_eq!(api.delete_vip_service(&changed).await.unwrap(), Deleted::Now);
    assert_eq!(api.delete_vip_service(&changed).await.unwrap(), Deleted::Already);
    assert!(api.put_vip_service(&more, Some(&changed)).await.unwrap_err().is_conflict());
    assert!(api.vip_services().await.unwrap().is_empty());
}

#[test]
fn a_service_lives_without_versions() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| live(&*api).await);
}

#[test]
fn a_service_lives_with_versions() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.tailnet.set_etags(true).unwrap();
    bed.run(async |api| {
        live(&*api).await;
        let made = api.put_vip_service(&web(), None).await.unwrap();
        assert!(made.version.is_some());
    });
}

#[test]
fn another_writer_at_the_same_time_is_found_out() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        bed.plan(PUT_SERVICE, 1, &Fault::Meddle);
        let lost = api.put_vip_service(&web(), None).await.unwrap_err();
        assert!(lost.is_conflict(), "{lost}");
        assert!(lost.to_string().contains("write the Tailscale Service svc:web"), "{lost}");
        // Read again, decided again, it is ours.
        let seen = api.vip_service(&name()).await.unwrap();
        assert_eq!(seen.comment, "changed by another client");
        api.put_vip_service(&web(), Some(&seen)).await.unwrap();
    });
}

#[test]
fn a_write_whose_answer_was_lost_is_done_once() {
    kernel_or_skip!();
    for etags in [false, true] {
        let bed = Bed::new();
        bed.tailnet.set_etags(etags).unwrap();
        bed.run(async |api| {
            let made = api.put_vip_service(&web(), None).await.unwrap();
            let more = VipService { comment: "again".to_owned(), ..web() };
            bed.start_counting();
            bed.plan(PUT_SERVICE, 1, &Fault::Lost);
            let changed = api.put_vip_service(&more, Some(&made)).await.unwrap();
            assert_eq!(changed.comment, "again");
            assert_eq!(bed.counted([PUT_SERVICE]), [2]);
            bed.plan(DELETE_SERVICE, 1, &Fault::Lost);
            // Whether the first request was done cannot be told; that the Service is gone can.
            api.delete_vip_service(&changed).await.unwrap();
            assert!(api.vip_services().await.unwrap().is_empty());
        });
    }
}

#[test]
fn nodes_that_advertise_a_service_of_the_api_serve_it() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        let made = api.put_vip_service(&web(), None).await.unwrap();
        let tags = vec!["tag:k8s".to_owned()];
        let key = bed.tailnet.auth_key(&KeyOptions { tags, ..KeyOptions::default() }).unwrap();
        let host = bed.tailnet.node("host").unwrap();
        host.up(&key, &[]).unwrap();
        host.cli(&["serve", "--service=svc:web", "--tcp=443", "127.0.0.1:8443"]).unwrap();
        proxy_testbed::poll_until(
            proxy_testbed::DEADLINE,
            "the Service's address is served",
            || {
                let served = bed.tailnet.find("host").map(|node| node.served).unwrap_or_default();
                served.contains(&format!("{}/32", made.addresses[0]))
            },
        )
        .unwrap();
    });
}
