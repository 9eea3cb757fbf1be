//! The program: what it says of itself, and how it starts and ends.

use std::process::{Command, Stdio};

use proxy_testbed::{ApiServer, DEADLINE};
use serde_json::json;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sluice-operator");

#[test]
fn its_help_names_the_variables_of_the_contract_and_bad_settings_end_it() {
    let help = Command::new(PROGRAM).arg("--help").output().unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(help.status.success());
    for name in [
        "OPERATOR_NAMESPACE",
        "OPERATOR_SERVICE_ACCOUNT_NAME",
        "PROXY_IMAGE",
        "PROXY_TAGS",
        "PROXY_FIREWALL_MODE",
        "PROXY_DEFAULT_CLASS",
        "PROXY_PRIORITY_CLASS_NAME",
        "OPERATOR_DEFAULT_LOAD_BALANCER",
        "OPERATOR_INGRESS_CLASS_NAME",
        "OPERATOR_LOGIN_SERVER",
        "OPERATOR_LOGGING",
        "CLIENT_ID_FILE",
    ] {
        assert!(text.contains(name), "{name} is not in {text}");
    }
    let bare = Command::new(PROGRAM).env_clear().output().unwrap();
    let said = String::from_utf8(bare.stderr).unwrap();
    assert!(
        !bare.status.success() && said.contains("set CLIENT_ID_FILE and CLIENT_SECRET_FILE"),
        "{said}"
    );
    let unclear =
        Command::new(PROGRAM).env("OPERATOR_DEFAULT_LOAD_BALANCER", "maybe").output().unwrap();
    assert!(!unclear.status.success());
    let tags = Command::new(PROGRAM).env("PROXY_TAGS", "tag:a, k8s").output().unwrap();
    let said = String::from_utf8(tags.stderr).unwrap();
    assert!(!tags.status.success() && said.contains("`k8s` is not a tag: write `tag:`"), "{said}");
}

#[test]
fn it_gets_ready_and_ends_when_it_is_told_to() {
    kernel_or_skip!();
    let server = ApiServer::start().unwrap();
    let account = server.account("tailscale", "operator").unwrap();
    for definition in operator::crd::definitions() {
        server.apply(&serde_json::to_value(definition).unwrap()).unwrap();
    }
    let group = "rbac.authorization.k8s.io";
    server
        .apply(&json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding",
            "metadata": { "name": "operator" },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "kind": "ServiceAccount", "name": "operator", "namespace": "tailscale" }],
        }))
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": {
            "server": format!("https://{}", proxy_testbed::kubernetes::ADDRESS),
            "certificate-authority": server.authority() } }],
        "users": [{ "name": "c", "user": { "token": account.token() } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
    });
    let config = file("config", &config.to_string());
    let (id, secret) = (file("id", "id"), file("secret", "s3cr3t"));
    let output = server
        .run(async || {
            let child = tokio::process::Command::new(PROGRAM)
                .env_clear()
                .env("KUBECONFIG", &config)
                .env("OPERATOR_NAMESPACE", "tailscale")
                .env("CLIENT_ID_FILE", &id)
                .env("CLIENT_SECRET_FILE", &secret)
                .env("OPERATOR_LISTEN", "127.0.0.1:9002")
                .env("OPERATOR_LOGGING", "debug")
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .unwrap();
            let ready = async {
                while !asks("/readyz").await.starts_with("HTTP/1.1 200") {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            };
            tokio::time::timeout(DEADLINE, ready).await.expect("it is ready");
            assert!(asks("/healthz").await.starts_with("HTTP/1.1 200"));
            assert!(asks("/metrics").await.contains("sluice_operator_reconciliations_total"));
            let process = nix::unistd::Pid::from_raw(child.id().unwrap().try_into().unwrap());
            nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM).unwrap();
            tokio::time::timeout(DEADLINE, child.wait_with_output())
                .await
                .expect("it ends")
                .unwrap()
        })
        .unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    // A line is an object, and tells no secret.
    for line in log.lines() {
        let line: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert!(line["level"].is_string(), "{line}");
    }
    assert!(log.contains("started") && log.contains("stopped"), "{log}");
    assert!(!log.contains("s3cr3t") && !log.contains(account.token()), "{log}");
}

/// The whole answer; empty without one.
async fn asks(path: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let Ok(mut stream) = tokio::net::TcpStream::connect("127.0.0.1:9002").await else {
        return String::new();
    };
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
