//! The program: what it says of itself, and how it starts and ends.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::bed::{PROGRAM, in_cluster};

#[test]
fn its_help_names_the_variables_of_the_contract_and_bad_settings_end_it() {
    let help = Command::new(PROGRAM).arg("--help").output().unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(help.status.success());
    for name in [
        "OPERATOR_NAMESPACE",
        "OPERATOR_SERVICE_ACCOUNT_NAME",
        "POD_NAME",
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
    in_cluster(async |bed| {
        let mut operator = bed.start("a", 9002);
        operator.wait_ready().await;
        assert!(operator.asks("/healthz").await.starts_with("HTTP/1.1 200"));
        let metrics = operator.asks("/metrics").await;
        assert!(metrics.contains("sluice_operator_reconciliations_total"), "{metrics}");
        operator.signal(Signal::SIGTERM);
        let good = operator.wait_end().await;
        let log = operator.log();
        assert!(good, "{log}");
        // A line is an object, and tells no secret.
        for line in log.lines() {
            let line: serde_json::Value =
                serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
            assert!(line["level"].is_string(), "{line}");
        }
        assert!(log.contains("started") && log.contains("stopped"), "{log}");
        assert!(!log.contains("forbidden"), "the chart does not allow this: {log}");
        assert!(!log.contains("s3cr3t") && !log.contains(bed.account.token()), "{log}");
    });
}
