//! Workload identity by a real API server's tokens, as a `Tailnet` resource's Secret asks for it.

use std::time::Duration;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use operator::tailnet_api::{KeyRequest, resource};
use proxy_testbed::{kubernetes::rule, tailnet::Identity};

use crate::bed::{Bed, EXCHANGE};

#[test]
fn a_service_accounts_token_is_exchanged_with_no_right_but_to_make_it() {
    kernel_or_skip!();
    let bed = Bed::new();
    let server = bed.tailnet.start_api_server().unwrap();
    let account = server.account("tailscale", "operator").unwrap();
    server.allow(&account, &[rule("serviceaccounts/token", &["operator"], &["create"])]).unwrap();
    let trusted = Identity {
        token: String::new(),
        subject: "system:serviceaccount:tailscale:operator".to_owned(),
        audience: "api.tailscale.com/kFederated".to_owned(),
    };
    bed.tailnet.set_identities(&[("kFederated", trusted)]).unwrap();
    server
        .run(async || {
            let settings = |audience: &str| {
                let fields = [("client_id", "kFederated"), ("audience", audience)];
                let field =
                    |(name, value): (&str, &str)| (name.to_owned(), ByteString(value.into()));
                let data = Some(fields.into_iter().map(field).collect());
                let identity = resource::Identity {
                    client: server.client(account.token()).unwrap(),
                    namespace: account.namespace.clone(),
                    account: account.name.clone(),
                };
                let secret = Secret { data, ..Secret::default() };
                bed.settings(resource::credentials(&secret, &identity).unwrap())
            };
            let api = settings("api.tailscale.com/kFederated").connect().unwrap();
            resource::probe(&*api).await.unwrap();
            api.create_key(&KeyRequest::for_proxy(["tag:k8s"])).await.unwrap();
            assert_eq!(bed.counted([EXCHANGE]), [1]);
            bed.tailnet.expire_tokens().unwrap();
            api.devices().await.unwrap();
            assert_eq!(bed.counted([EXCHANGE]), [1]);

            let other = settings("another").connect().unwrap();
            let refused = resource::probe(&*other).await.unwrap_err();
            assert!(refused.0.iter().all(|error| error.reason() == "Unauthorized"), "{refused}");

            server.kill().unwrap();
            bed.tailnet.expire_tokens().unwrap();
            let mut away = settings("api.tailscale.com/kFederated");
            away.patience.call = Duration::from_secs(5);
            let error = away.connect().unwrap().devices().await.unwrap_err();
            assert_eq!(error.reason(), "MissingCredentials", "{error}");
            assert!(error.to_string().contains("ServiceAccount tailscale/operator"), "{error}");
        })
        .unwrap();
}
