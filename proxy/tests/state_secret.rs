//! The state Secret at a real API server: rights by a Role that names it, one change for all that differs, and what happens
//! while the server is down, silent or refuses. Needs root, etcd and the programs of `cargo xtask testbed`; with
//! SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::PostParams};
use proxy::pod::secret::{Access, Desired, Failure, Key, StateSecret};
use proxy_testbed::{
    ApiServer,
    kubernetes::{Account, Asked, Content, rule},
};

macro_rules! kernel_or_skip {
    () => {
        if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
            eprintln!("skipped: SKIP_KERNEL_TESTS=1");
            return;
        }
    };
}

/// Attempts are up to four seconds apart where a test lets a few of them fail.
const SETTLES: Duration = Duration::from_secs(20);
/// A caller that waits for the API server takes longer than that.
const AT_ONCE: Duration = Duration::from_millis(50);
const WHERE: (&str, &str) = ("pods", "state");
/// What tailscaled keeps, and what an earlier process had installed.
const BEFORE: [(&str, &str); 6] = [
    ("_machinekey", "privkey:1"),
    ("_current-profile", "profile-1"),
    ("profile-1", "{}"),
    ("device_id", "n1"),
    ("https_endpoint", "old.ts.net"),
    ("egress-services", "old"),
];

/// A server with the Secret, and an account that may get, update and patch it.
fn world() -> (ApiServer, Account) {
    let server = ApiServer::start().unwrap();
    let account = server.account(WHERE.0, "proxy").unwrap();
    server.make_secret(WHERE.0, WHERE.1, &BEFORE).unwrap();
    server.allow(&account, &[usual()]).unwrap();
    (server, account)
}

fn usual() -> k8s_openapi::api::rbac::v1::PolicyRule {
    rule("secrets", &[WHERE.1], &["get", "update", "patch"])
}

/// As the process does it; inside of [`ApiServer::run`].
fn start(server: &ApiServer, account: &Account) -> StateSecret {
    let client = server.client(account.token()).unwrap();
    let desired = Desired::at_start(Some("uid-1"), 142, None);
    StateSecret::start(client, WHERE.0.to_owned(), WHERE.1.to_owned(), desired)
}

/// Wants a value and waits until it is there.
async fn settle(secret: &StateSecret, key: Key, value: &str) {
    let revision = secret.want(|desired| desired.set(key, value));
    assert!(secret.says(revision, SETTLES).await, "{:?}", secret.status().borrow());
}

/// The failure that is told, once its message holds one of these.
async fn failure(secret: &StateSecret, message: &[&str]) -> Failure {
    let mut status = secret.status();
    let told = |failure: &Failure| message.iter().any(|part| failure.message.contains(part));
    let wait = status.wait_for(|status| status.failure.as_ref().is_some_and(told));
    let seen = tokio::time::timeout(SETTLES, wait).await;
    let seen = seen.unwrap_or_else(|_| panic!("{message:?}: {:?}", secret.status().borrow()));
    seen.unwrap().failure.clone().unwrap()
}

fn content(server: &ApiServer) -> Content {
    server.secret(WHERE.0, WHERE.1).unwrap().unwrap()
}

/// The changes that the account has asked for, and their answers.
fn changes(server: &ApiServer, account: &Account) -> Vec<(String, u64)> {
    let asked = server.asked(account).unwrap();
    let is_change = |asked: &Asked| !matches!(asked.verb.as_str(), "get" | "list" | "watch");
    asked.into_iter().filter(is_change).map(|asked| (asked.verb, asked.code)).collect()
}

#[test]
fn a_start_is_one_change_and_what_is_said_already_is_none() {
    kernel_or_skip!();
    let (server, account) = world();
    let work = async || {
        let secret = start(&server, &account);
        let opened = secret.opened(SETTLES).await.unwrap();
        let access = Access { get: true, update: true, patch: true, create: false };
        assert_eq!((opened.access, opened.exists, opened.unusable()), (access, true, None));
        settle(&secret, Key::DeviceIps, "[\"100.64.0.1\"]").await;
        let now = content(&server);
        assert_eq!(now.text("pod_uid"), "uid-1");
        assert_eq!(now.text("tailscale_capver"), "142");
        assert_eq!(now.text("device_id"), "n1");
        assert_eq!(now.text("profile-1"), "{}");
        for gone in ["https_endpoint", "egress-services"] {
            assert!(!now.data.contains_key(gone), "{gone}: {now:?}");
        }
        let before = changes(&server, &account).len();
        assert!(before <= 2, "a reset and a value: {:?}", changes(&server, &account));

        // What is there already is not written, however often it is said: the next change is the only one.
        for _ in 0..100 {
            secret.want(|desired| desired.set(Key::DeviceIps, "[\"100.64.0.1\"]"));
            secret.want(|desired| desired.remove(Key::EgressServices));
        }
        assert_eq!(content(&server).version, now.version);
        let revision = secret.want(|desired| {
            desired.set(Key::DeviceId, "n2");
            desired.set(Key::DeviceFqdn, "pod.tailnet.ts.net.");
        });
        assert!(secret.says(revision, SETTLES).await);
        drop(secret);

        // The same process again: everything is as it is to be.
        let settled = content(&server);
        let again = start(&server, &account);
        assert!(again.says(1, SETTLES).await);
        assert_eq!(content(&server), settled);
        let changes = changes(&server, &account);
        assert_eq!(changes.len(), before + 1, "{changes:?}");
        assert!(changes.iter().all(|change| *change == ("patch".to_owned(), 200)), "{changes:?}");
    };
    server.run(work).unwrap();
}

#[test]
fn while_the_server_is_gone_or_silent_nobody_waits_and_nothing_is_lost() {
    kernel_or_skip!();
    let (server, account) = world();
    let work = async || {
        let secret = start(&server, &account);
        assert!(secret.says(1, SETTLES).await);

        server.pause().unwrap();
        let asked = Instant::now();
        let revision = secret.want(|desired| desired.set(Key::DeviceId, "n2"));
        assert!(asked.elapsed() < AT_ONCE);
        assert!(
            !secret.says(revision, Duration::from_secs(1)).await,
            "said by a server that is stopped"
        );
        server.resume().unwrap();
        assert!(secret.says(revision, SETTLES).await, "{:?}", secret.status().borrow());
        assert_eq!(content(&server).text("device_id"), "n2");

        server.kill().unwrap();
        let asked = Instant::now();
        secret.want(|desired| desired.set(Key::DeviceId, "n3"));
        let revision = secret.want(|desired| desired.set(Key::HttpsEndpoint, "pod.ts.net"));
        assert!(asked.elapsed() < AT_ONCE);
        let told = failure(&secret, &["no answer of the API server's"]).await;
        assert!(told.message.contains("pods/state") && told.attempts >= 1, "{told:?}");
        server.launch().unwrap();
        assert!(secret.says(revision, SETTLES * 2).await, "{:?}", secret.status().borrow());
        assert_eq!(secret.status().borrow().failure, None);
        let now = content(&server);
        assert_eq!((now.text("device_id"), now.text("https_endpoint")), ("n3", "pod.ts.net"));
        assert_eq!(now.text("_machinekey"), "privkey:1");
    };
    server.run(work).unwrap();
}

#[test]
fn a_refusal_is_told_and_ends_when_the_right_is_given() {
    kernel_or_skip!();
    let (server, account) = world();
    let work = async || {
        let secret = start(&server, &account);
        assert!(secret.says(1, SETTLES).await);

        // Everything is taken away from a process that runs, then all but one is given back.
        server.allow(&account, &[]).unwrap();
        wait_refused(&server, &account).await;
        let revision = secret.want(|desired| desired.set(Key::DeviceId, "n2"));
        let told = failure(&secret, &["refused", "grant the service account"]).await;
        assert!(told.message.contains("pods/state"), "{told:?}");
        server.allow(&account, &[rule("secrets", &[WHERE.1], &["get", "update"])]).unwrap();
        failure(&secret, &["grant the service account `patch`"]).await;
        assert_eq!(content(&server).text("device_id"), "n1");
        server.allow(&account, &[usual()]).unwrap();
        assert!(secret.says(revision, SETTLES * 2).await, "{:?}", secret.status().borrow());
        assert_eq!(content(&server).text("device_id"), "n2");
        assert_eq!(secret.status().borrow().failure, None);
        drop(secret);

        // A Secret that is not there may not be made by a rule that names it.
        server.delete_secret(WHERE.0, WHERE.1).unwrap();
        let secret = start(&server, &account);
        let opened = secret.opened(SETTLES).await.unwrap();
        assert!(!opened.exists && opened.unusable().is_some(), "{opened:?}");
        failure(&secret, &["grant the service account `create`"]).await;
        server.allow(&account, &[usual(), rule("secrets", &[], &["create"])]).unwrap();
        assert!(secret.says(1, SETTLES * 2).await, "{:?}", secret.status().borrow());
        assert_eq!(content(&server).text("pod_uid"), "uid-1");
    };
    server.run(work).unwrap();
}

/// Waits until the account may not read the Secret any more.
async fn wait_refused(server: &ApiServer, account: &Account) {
    let api: Api<Secret> = Api::namespaced(server.client(account.token()).unwrap(), WHERE.0);
    let wait = async {
        while !matches!(api.get(WHERE.1).await, Err(kube::Error::Api(status)) if status.code == 403)
        {
        }
    };
    tokio::time::timeout(SETTLES, wait).await.unwrap();
}

/// Another writer replaces the whole Secret again and again, as clients with optimistic locking do, while we write.
#[test]
fn two_writers_lose_nothing_of_each_other() {
    const ROUNDS: usize = 40;
    kernel_or_skip!();
    let (server, account) = world();
    let other = server.account(WHERE.0, "other").unwrap();
    server.allow(&other, &[usual()]).unwrap();
    let work = async || {
        let secret = start(&server, &account);
        assert!(secret.says(1, SETTLES).await);
        let api: Api<Secret> = Api::namespaced(server.client(other.token()).unwrap(), WHERE.0);
        let (mut conflicts, mut last) = (0, 0);
        for round in 1..=ROUNDS {
            let value = round.to_string();
            let mut found = api.get(WHERE.1).await.unwrap();
            last = secret.want(|desired| desired.set(Key::EgressServices, value.clone()));
            let bytes = k8s_openapi::ByteString(value.clone().into_bytes());
            found.data.get_or_insert_default().insert(format!("profile-{round}"), bytes);
            while let Err(error) = api.replace(WHERE.1, &PostParams::default(), &found).await {
                assert!(matches!(&error, kube::Error::Api(s) if s.code == 409), "{error}");
                conflicts += 1;
                let data = found.data.take();
                found = api.get(WHERE.1).await.unwrap();
                let kept = data.unwrap_or_default().into_iter();
                let new = kept.filter(|(key, _)| *key == format!("profile-{round}"));
                found.data.get_or_insert_default().extend(new);
            }
        }
        assert!(secret.says(last, SETTLES).await, "{:?}", secret.status().borrow());
        let now = content(&server);
        assert_eq!(now.text("egress-services"), ROUNDS.to_string());
        for round in 1..=ROUNDS {
            // The first is tailscaled's own of before, replaced.
            assert_eq!(now.text(&format!("profile-{round}")), round.to_string());
        }
        assert_eq!(now.text("_machinekey"), "privkey:1");
        println!("{conflicts} of {ROUNDS} writes met one of ours");

        // And what belongs to the node goes, whoever wrote it; everything else stays.
        secret.forget_node().await.unwrap();
        let now = content(&server);
        for gone in ["_machinekey", "_current-profile", "profile-1", "device_id"] {
            assert!(!now.data.contains_key(gone), "{gone}");
        }
        assert_eq!(now.text("profile-2"), "2");
    };
    server.run(work).unwrap();
}
