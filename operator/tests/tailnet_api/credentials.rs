//! Credentials: fetched once for all, anew when they were rotated or are refused, never shown.

use std::time::Duration;

use futures::future::join_all;
use operator::tailnet_api::{Credentials, Failure, Settings, Source};
use proxy_testbed::tailnet::{Fault, Identity};

use crate::bed::{Bed, CLIENT, DEVICES, EXCHANGE, TOKEN, logged};

#[test]
fn many_at_once_fetch_one_token() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        let asked = join_all((0..20).map(|_| api.devices())).await;
        assert!(asked.iter().all(Result::is_ok), "{asked:?}");
        assert_eq!(bed.counted([TOKEN, DEVICES]), [1, 20]);
        // Refused at the same time, still one.
        bed.tailnet.expire_tokens().unwrap();
        let asked = join_all((0..20).map(|_| api.devices())).await;
        assert!(asked.iter().all(Result::is_ok), "{asked:?}");
        assert_eq!(bed.counted([TOKEN]), [1]);
    });
}

#[test]
fn many_at_once_are_told_of_one_failure() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        bed.plan(TOKEN, 100, &Fault::Status(500, ""));
        let asked = join_all((0..20).map(|_| api.devices())).await;
        for outcome in asked {
            assert_eq!(outcome.unwrap_err().reason(), "Unavailable");
        }
        assert_eq!(bed.counted([TOKEN, DEVICES]), [4, 0]);
        bed.tailnet.clear_faults().unwrap();
        api.devices().await.unwrap();
    });
}

#[test]
fn a_token_is_fetched_again_before_it_ends() {
    kernel_or_skip!();
    let bed = Bed::new();
    // Told to end at once, and good for a while at the server.
    bed.tailnet.set_token_lifetime(Duration::from_millis(999)).unwrap();
    bed.run(async |api| {
        for _ in 0..3 {
            api.devices().await.unwrap();
        }
        assert_eq!(bed.counted([TOKEN, DEVICES]), [3, 3]);
    });
}

#[test]
fn rotated_credentials_are_used_at_once() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        api.devices().await.unwrap();
        bed.start_counting();
        bed.tailnet.set_clients(&[(CLIENT.0, "second")]).unwrap();
        bed.write("client_secret", "second\n");
        api.devices().await.unwrap();
        assert_eq!(bed.counted([TOKEN, DEVICES]), [1, 1], "without being refused first");
        api.devices().await.unwrap();
        assert_eq!(bed.counted([TOKEN, DEVICES]), [0, 1]);
    });
}

#[test]
fn credentials_that_are_away_take_no_good_token() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        api.devices().await.unwrap();
        std::fs::remove_file(bed.file("client_secret")).unwrap();
        api.devices().await.unwrap();
        bed.tailnet.expire_tokens().unwrap();
        let error = api.devices().await.unwrap_err();
        assert_eq!(error.reason(), "MissingCredentials");
        assert!(error.to_string().contains("client_secret"), "{error}");
        bed.write("client_secret", CLIENT.1);
        api.devices().await.unwrap();
    });
}

#[test]
fn refused_credentials_are_told_apart_from_refused_tokens() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        bed.tailnet.set_clients(&[(CLIENT.0, "other")]).unwrap();
        let error = api.devices().await.unwrap_err();
        assert!(matches!(error.failure, Failure::Unauthorized(_)), "{error}");
        assert_eq!(bed.counted([TOKEN, DEVICES]), [1, 0]);
        bed.tailnet.set_clients(&[CLIENT]).unwrap();
        // A server that refuses good tokens is asked twice and no more.
        bed.plan(DEVICES, 100, &Fault::Status(401, ""));
        let error = api.devices().await.unwrap_err();
        assert!(matches!(error.failure, Failure::Unauthorized(_)), "{error}");
        assert_eq!(bed.counted([TOKEN, DEVICES]), [2, 2]);
    });
}

fn identity(bed: &Bed) -> Settings {
    let token = Source::File(bed.file("token"));
    bed.settings(Credentials::WorkloadIdentity { id: "kFederated".to_owned(), token })
}

#[test]
fn a_projected_token_is_exchanged_and_read_anew_for_each_exchange() {
    kernel_or_skip!();
    let bed = Bed::new();
    let expect = |token: &str| {
        let identity =
            Identity { token: token.to_owned(), subject: String::new(), audience: String::new() };
        bed.tailnet.set_identities(&[("kFederated", identity)]).unwrap();
    };
    bed.with(identity(&bed), async |api| {
        let error = api.devices().await.unwrap_err();
        assert_eq!(error.reason(), "MissingCredentials", "{error}");
        bed.write("token", "first");
        expect("first");
        api.devices().await.unwrap();
        // The token's renewal by kubelet is no reason to ask for another access token.
        bed.write("token", "second");
        expect("second");
        api.devices().await.unwrap();
        assert_eq!(bed.counted([EXCHANGE, TOKEN]), [1, 0]);
        bed.tailnet.expire_tokens().unwrap();
        api.devices().await.unwrap();
        assert_eq!(bed.counted([EXCHANGE, TOKEN]), [1, 0]);
        expect("third");
        bed.tailnet.expire_tokens().unwrap();
        let error = api.devices().await.unwrap_err();
        assert_eq!(error.reason(), "Unauthorized", "{error}");
    });
}

#[test]
fn no_secret_is_shown_or_logged() {
    kernel_or_skip!();
    let bed = Bed::new();
    bed.run(async |api| {
        api.devices().await.unwrap();
        let mut shown = vec![format!("{api:?}")];
        assert!(shown[0].contains("client_secret"), "the file is named: {shown:?}");
        bed.write("client_secret", "rotated-secret");
        shown.push(api.devices().await.unwrap_err().to_string());
        bed.write("client_secret", CLIENT.1);
        shown.push(format!("{api:?}"));
        api.devices().await.unwrap();
        shown.push(format!("{api:?} {:?}", bed.oauth()));
        let logged = logged();
        assert!(logged.contains("credentials were rotated"), "{logged}");
        assert!(logged.contains("Unauthorized"), "{logged}");
        for text in shown.into_iter().chain([logged]) {
            for secret in [CLIENT.1, "tskey-api-", "rotated-secret"] {
                assert!(!text.contains(secret), "{secret} is in {text}");
            }
        }
    });
}
