//! The API server of tests is a real one: it keeps, refuses, is silent, goes and comes back. Needs root, etcd and the
//! programs of `cargo xtask testbed`; with SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::ListParams};
use proxy_testbed::{
    ApiServer, DEADLINE, Tailnet,
    kubernetes::{Account, Asked, NAME, rule},
    poll_until,
};

macro_rules! kernel_or_skip {
    () => {
        if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
            eprintln!("skipped: SKIP_KERNEL_TESTS=1");
            return;
        }
    };
}

/// The content of a Secret, as an account sees it: its keys, or the HTTP status of the refusal.
fn seen(server: &ApiServer, account: &Account, name: &str) -> Result<Vec<String>, u16> {
    let read = async || {
        let client = server.client(account.token()).unwrap();
        let api: Api<Secret> = Api::namespaced(client, &account.namespace);
        api.get(name).await
    };
    match server.run(read).unwrap() {
        Ok(secret) => Ok(secret.data.unwrap_or_default().into_keys().collect()),
        Err(kube::Error::Api(status)) => Err(status.code),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn an_account_may_do_what_its_role_names_and_nothing_else() {
    kernel_or_skip!();
    let server = ApiServer::start().unwrap();
    let account = server.account("pods", "proxy").unwrap();
    for name in ["state", "other"] {
        server.make_secret("pods", name, &[("a", "1"), ("b", "2")]).unwrap();
    }
    assert_eq!(seen(&server, &account, "state"), Err(403));

    server.allow(&account, &[rule("secrets", &["state"], &["get"])]).unwrap();
    poll_until(DEADLINE, "the role holds", || seen(&server, &account, "state").is_ok()).unwrap();
    assert_eq!(seen(&server, &account, "state"), Ok(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(seen(&server, &account, "other"), Err(403));
    let list = async || {
        let client = server.client(account.token()).unwrap();
        Api::<Secret>::namespaced(client, "pods").list(&ListParams::default()).await.is_ok()
    };
    assert!(!server.run(list).unwrap(), "a rule that names a Secret allowed to list all");

    let before = server.secret("pods", "state").unwrap().unwrap();
    assert_eq!(before.text("b"), "2");
    let after = server.change_secret("pods", "state", &[("a", None), ("b", Some("3"))]).unwrap();
    assert_ne!(after.version, before.version);
    assert_eq!((after.data.contains_key("a"), after.text("b")), (false, "3"));
    // Changed while it is waited for, and before.
    std::thread::scope(|scope| {
        let wait =
            || server.wait_secret(("pods", "state"), DEADLINE, "b is 4", |s| s.text("b") == "4");
        let waits = scope.spawn(wait);
        server.wait_secret(("pods", "state"), DEADLINE, "b is 3", |s| s.text("b") == "3").unwrap();
        server.change_secret("pods", "state", &[("b", Some("4"))]).unwrap();
        waits.join().unwrap().unwrap();
    });
    let within = Duration::from_millis(1);
    let never = server.wait_secret(("pods", "state"), within, "b is 5", |s| s.text("b") == "5");
    let told = format!("{:?}", never.unwrap_err());
    assert!(told.contains("b is 5") && !told.contains("\"4\""), "{told}");

    server.allow(&account, &[]).unwrap();
    poll_until(DEADLINE, "the role is gone", || seen(&server, &account, "state") == Err(403))
        .unwrap();
    let is_granted =
        |asked: &Asked| asked.verb == "get" && asked.name == "state" && asked.code == 200;
    poll_until(DEADLINE, "the audit log tells", || {
        let asked = server.asked(&account).unwrap();
        asked.iter().any(is_granted) && asked.iter().any(|asked| asked.code == 403)
    })
    .unwrap();
    server.delete_secret("pods", "state").unwrap();
    assert_eq!(server.secret("pods", "state").unwrap(), None);
}

#[test]
fn it_is_silent_and_gone_and_comes_back_with_what_it_kept() {
    kernel_or_skip!();
    let server = ApiServer::start().unwrap();
    let account = server.account("pods", "proxy").unwrap();
    server.allow(&account, &[rule("secrets", &["state"], &["get"])]).unwrap();
    server.make_secret("pods", "state", &[("a", "1")]).unwrap();
    poll_until(DEADLINE, "the role holds", || seen(&server, &account, "state").is_ok()).unwrap();

    let ask = async || {
        let client = server.client(account.token()).unwrap();
        let api: Api<Secret> = Api::namespaced(client, "pods");
        tokio::time::timeout(Duration::from_millis(500), api.get("state")).await
    };
    server.pause().unwrap();
    assert!(server.run(ask).unwrap().is_err(), "it answered though it was stopped");
    server.resume().unwrap();
    assert!(matches!(server.run(ask).unwrap(), Ok(Ok(_))));

    server.kill().unwrap();
    let start = Instant::now();
    assert!(matches!(server.run(ask).unwrap(), Ok(Err(_))), "refused, not silent");
    assert!(start.elapsed() < DEADLINE);
    server.launch().unwrap();
    // The same certificate and key: the token still holds.
    assert_eq!(seen(&server, &account, "state"), Ok(vec!["a".to_owned()]));
}

#[test]
fn a_pod_beside_a_tailnet_reaches_it_as_pods_do() {
    kernel_or_skip!();
    let tailnet = Tailnet::start().unwrap();
    let server = tailnet.start_api_server().unwrap();
    let account = server.account("pods", "proxy").unwrap();
    let mut underlay = tailnet.underlay("pod-0").unwrap();
    server.furnish(&mut underlay, &account, "uid-1").unwrap();
    // Its files, its name, its address: by a program that knows nothing of the testbed.
    let script = format!(
        "cd /var/run/secrets/kubernetes.io/serviceaccount && cat namespace && test -s token && \
         grep -q CERTIFICATE ca.crt && echo \" $POD_NAME $POD_UID $KUBERNETES_SERVICE_HOST\" && getent hosts {NAME} && \
         : < /dev/tcp/$KUBERNETES_SERVICE_HOST/$KUBERNETES_SERVICE_PORT"
    );
    let output = underlay.command("bash").unwrap().args(["-c", &script]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.starts_with("pods pod-0 uid-1 198.18.0.2\n198.18.0.2 "), "{printed}");
}
