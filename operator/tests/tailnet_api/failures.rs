//! What a control server can answer other than what was asked for, or not at all.

use std::time::{Duration, Instant};

use futures::future::join_all;
use operator::tailnet_api::{
    DeviceId, Failure, Feature, KeyRequest, Patience, Retry, Settings, VipService,
};
use proxy_testbed::tailnet::Fault;

use crate::bed::{Bed, DELETE_DEVICE, DEVICES, MAKE_KEY, PUT_SERVICE};

#[test]
fn a_passing_failure_of_a_repeatable_call_is_not_seen() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        api.devices().await.unwrap();
        for fault in [
            Fault::Status(500, ""),
            Fault::Status(503, "0"),
            Fault::Status(429, "1"),
            Fault::HangUp,
            Fault::Lost,
        ] {
            bed.start_counting();
            bed.plan(DEVICES, 1, &fault);
            let begun = Instant::now();
            api.devices().await.unwrap();
            assert_eq!(bed.counted([DEVICES]), [2], "{fault:?}");
            if matches!(fault, Fault::Status(429, _)) {
                assert!(begun.elapsed() >= Duration::from_secs(1), "the server's pause is kept");
            }
        }
    });
}

#[test]
fn a_lasting_failure_is_told_after_a_bounded_number_of_calls() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        for fault in [Fault::Status(500, ""), Fault::HangUp] {
            bed.start_counting();
            bed.plan(DEVICES, 100, &fault);
            let error = api.devices().await.unwrap_err();
            assert_eq!(error.reason(), "Unavailable", "{error}");
            assert_eq!(error.retry(), Retry::Backoff);
            assert!(error.to_string().contains("list devices at https://198.18.0.1"), "{error}");
            assert_eq!(bed.counted([DEVICES]), [4]);
            bed.tailnet.clear_faults().unwrap();
        }
    });
}

#[test]
fn a_long_pause_is_the_callers_and_holds_for_all() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        bed.plan(DEVICES, 1, &Fault::Status(503, "3600"));
        let error = api.devices().await.unwrap_err();
        assert_eq!(error.retry(), Retry::After(Duration::from_hours(1)), "{error}");
        assert_eq!(bed.counted([DEVICES]), [1]);
        bed.plan(DEVICES, 1, &Fault::Status(429, "3600"));
        let error = api.devices().await.unwrap_err();
        assert_eq!(error.retry(), Retry::After(Duration::from_hours(1)), "{error}");
        // Whoever asks next is told without asking the server.
        let error = api.delete_device(&DeviceId::new("n1CNTRL")).await.unwrap_err();
        let Retry::After(rest) = error.retry() else { panic!("{error}") };
        assert!(rest > Duration::from_mins(59) && rest < Duration::from_hours(1), "{rest:?}");
        assert_eq!(bed.counted([DEVICES, DELETE_DEVICE]), [1, 0]);
    });
}

#[test]
fn requests_under_way_are_bounded() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        api.policy().await.unwrap();
        bed.plan(DEVICES, 100, &Fault::Silence);
        let asked = join_all((0..40).map(|_| api.devices()));
        assert!(tokio::time::timeout(Duration::from_secs(1), asked).await.is_err());
        assert_eq!(bed.counted([DEVICES]), [16]);
        // Those who have given up have given back their turn.
        bed.tailnet.clear_faults().unwrap();
        api.devices().await.unwrap();
    });
}

#[test]
fn what_a_server_of_the_same_api_does_not_have_is_named() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        for (call, feature) in [
            ("GET /api/v2/tailnet/-/vip-services", Feature::VipServices),
            (PUT_SERVICE, Feature::VipServices),
            ("GET /api/v2/tailnet/-/acl", Feature::Policy),
        ] {
            bed.plan(call, 1, &Fault::Status(404, ""));
            let web = VipService::new("svc:web".parse().unwrap());
            let error = match feature {
                Feature::Policy => api.policy().await.unwrap_err(),
                Feature::VipServices if call == PUT_SERVICE => {
                    api.put_vip_service(&web, None).await.unwrap_err()
                }
                Feature::VipServices => api.vip_services().await.unwrap_err(),
            };
            assert_eq!(error.failure, Failure::Unsupported(feature));
        }
    });
}

#[test]
fn a_key_is_not_asked_for_twice_unless_surely_none_was_made() {
    kernel_or_skip!();
    let bed = Bed::new();
    let request = KeyRequest::for_proxy(["tag:k8s"]);
    bed.run(async |api| {
        for fault in [Fault::Status(500, ""), Fault::HangUp, Fault::Lost] {
            bed.start_counting();
            bed.plan(MAKE_KEY, 1, &fault);
            assert_eq!(api.create_key(&request).await.unwrap_err().reason(), "Unavailable");
            assert_eq!(bed.counted([MAKE_KEY]), [1], "{fault:?}");
        }
        bed.plan(MAKE_KEY, 1, &Fault::Status(429, "0"));
        api.create_key(&request).await.unwrap();
        assert_eq!(bed.counted([MAKE_KEY]), [2]);
        assert_eq!(api.keys().await.unwrap().len(), 2, "the lost one and the last one");
    });
}

#[test]
fn silence_ends_with_the_call() {
    kernel_or_skip!();
    let bed = Bed::new();
    let patience = Patience { call: Duration::from_millis(500), ..Patience::default() };
    bed.with(Settings { patience, ..bed.oauth() }, async |api| {
        api.devices().await.unwrap();
        bed.plan(DEVICES, 1, &Fault::Silence);
        let begun = Instant::now();
        let error = api.devices().await.unwrap_err();
        assert!(error.to_string().contains("no answer within 0.5 s"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(5));
        api.devices().await.unwrap();
    });
}

#[test]
fn a_server_that_is_away_is_named_and_found_again() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        api.devices().await.unwrap();
        bed.tailnet.pause().unwrap();
        // Its closed connection may be found out by using it; the next one is refused.
        let error = api.devices().await.unwrap_err();
        assert_eq!(error.reason(), "Unavailable");
        assert!(error.to_string().contains("refused"), "{error}");
        bed.tailnet.resume().unwrap();
        api.create_key(&KeyRequest::for_proxy(["tag:k8s"])).await.unwrap();
    });
}

#[test]
fn what_is_refused_says_why_and_is_not_repeated() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        let error = api.create_key(&KeyRequest::for_proxy(["k8s"])).await.unwrap_err();
        assert_eq!(error.reason(), "Invalid");
        assert!(error.to_string().contains("requested tags [k8s] are invalid"), "{error}");
        let id = DeviceId::new("n1CNTRL");
        for (status, reason) in
            [(403, "Forbidden"), (409, "Conflict"), (412, "Conflict"), (418, "Invalid")]
        {
            bed.start_counting();
            bed.plan(DELETE_DEVICE, 1, &Fault::Status(status, ""));
            let error = api.delete_device(&id).await.unwrap_err();
            assert_eq!(error.reason(), reason);
            assert!(error.to_string().contains("planned by the test"), "{error}");
            assert_eq!(bed.counted([DELETE_DEVICE]), [1]);
        }
    });
}

#[test]
fn an_answer_of_something_else_is_no_success() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        bed.plan("GET /api/v2/device/{id}", 1, &Fault::Status(200, ""));
        let error = api.device(&DeviceId::new("n1CNTRL")).await.unwrap_err();
        assert_eq!(error.reason(), "MalformedAnswer");
        assert!(error.to_string().contains("nodeId"), "{error}");
        bed.plan(DEVICES, 1, &Fault::Status(302, ""));
        assert!(matches!(api.devices().await.unwrap_err().failure, Failure::Malformed(_)));
    });
}

#[test]
fn a_server_whose_authority_is_unknown_is_told_nothing() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.with(Settings { authorities: None, ..bed.oauth() }, async |api| {
        let error = api.devices().await.unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");
        assert_eq!(bed.counted([crate::bed::TOKEN]), [0]);
    });
}
