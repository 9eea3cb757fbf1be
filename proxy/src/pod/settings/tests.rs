//! Whole environments, good and bad, and what becomes of them: files in `tests/golden/settings`.

use std::{
    collections::BTreeMap, ffi::OsString, fmt::Write as _, os::unix::ffi::OsStringExt as _,
    path::Path,
};

use super::*;

/// What becomes of an environment, as text.
fn outcome(text: &str) -> String {
    let variables: BTreeMap<_, _> = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_once('=').unwrap())
        .collect();
    let lookup = |name: &str| variables.get(name).map(OsString::from);
    match Settings::from_env(&lookup, Path::new("/")) {
        Ok(settings) => {
            let warnings = settings.warnings.clone();
            let mut text = format!("{:#?}\n", Settings { warnings: Vec::new(), ..settings });
            for warning in warnings {
                writeln!(text, "warning: {warning}").unwrap();
            }
            text
        }
        Err(errors) => format!("{errors}\n"),
    }
}

#[test]
fn environments_become_what_the_files_say() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/settings");
    let mut count = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "env") {
            continue;
        }
        let wanted = outcome(&std::fs::read_to_string(&path).unwrap());
        let golden = path.with_extension("txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&golden, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(wanted, found, "{}: run with UPDATE_GOLDEN=1", path.display());
        assert!(!found.contains("s3cret"), "{}: a secret is shown", golden.display());
        count += 1;
    }
    assert!(count >= 9, "environments are missing from {}", directory.display());
}

#[test]
fn bytes_that_are_no_text_are_an_error_that_names_the_variable() {
    let lookup = |name: &str| (name == "TS_HOSTNAME").then(|| OsString::from_vec(vec![0xff]));
    let errors = Settings::from_env(&lookup, Path::new("/")).unwrap_err();
    assert_eq!(errors.to_string(), "TS_HOSTNAME: is not UTF-8: set it to plain text");
}

/// Each pair upstream refuses, alone in an environment that is good otherwise.
#[test]
fn each_bad_combination_is_one_error() {
    let cases = [
        ("TS_DEST_IP=10.0.0.1\nTS_EXPERIMENTAL_DEST_DNS_NAME=a.b", "TS_EXPERIMENTAL_DEST_DNS_NAME"),
        ("TS_TAILNET_TARGET_IP=100.64.0.1\nTS_TAILNET_TARGET_FQDN=a.b", "TS_TAILNET_TARGET_FQDN"),
        ("TS_DEST_IP=0.0.0.0", "TS_DEST_IP: `0.0.0.0` is not the address of one host"),
        ("TS_TAILNET_TARGET_IP=ff02::1", "TS_TAILNET_TARGET_IP: `ff02::1`"),
        ("TS_ID_TOKEN=a", "TS_ID_TOKEN"),
        ("TS_AUDIENCE=a", "TS_AUDIENCE"),
        ("TS_CLIENT_ID=i\nTS_ID_TOKEN=a\nTS_CLIENT_SECRET=b", "TS_ID_TOKEN"),
        ("TS_CLIENT_ID=i\nTS_ID_TOKEN=a\nTS_AUDIENCE=b", "TS_ID_TOKEN"),
        ("TS_CLIENT_ID=i\nTS_AUDIENCE=a\nTS_CLIENT_SECRET=b", "TS_AUDIENCE"),
        ("TS_AUTHKEY=k\nTS_CLIENT_SECRET=b", "TS_CLIENT_SECRET"),
        ("TS_AUTH_KEY=k\nTS_CLIENT_ID=b", "TS_CLIENT_ID"),
        ("EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS=1\nPOD_IP=10.0.0.1", CLUSTER),
        ("EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS=1\nTS_SERVE_CONFIG=/x", CLUSTER),
        ("TS_HEALTHCHECK_ADDR_PORT=:80", "TS_HEALTHCHECK_ADDR_PORT"),
        ("TS_HEALTHCHECK_ADDR_PORT=[::]:80\nTS_ENABLE_HEALTH_CHECK=1", "TS_HEALTHCHECK_ADDR_PORT"),
        ("TS_LOCAL_ADDR_PORT=9002\nTS_ENABLE_METRICS=1", "TS_LOCAL_ADDR_PORT"),
        ("TS_LOCAL_ADDR_PORT=9002\nTS_ENABLE_HEALTH_CHECK=1", "TS_LOCAL_ADDR_PORT"),
        ("TS_DEBUG_ADDR_PORT=localhost:1", "TS_DEBUG_ADDR_PORT"),
        ("TS_BOOT_TIMEOUT=60", "TS_BOOT_TIMEOUT"),
        ("TS_EXPERIMENTAL_ENABLE_FORWARDING_OPTIMIZATIONS=1", "TS_EXPERIMENTAL_ENABLE_FORWARDING"),
        ("SLUICE_INGRESS_PORTS=tcp:80,443", "SLUICE_INGRESS_PORTS: `443`"),
        ("SLUICE_INGRESS_PORTS=sctp:80", "SLUICE_INGRESS_PORTS: `sctp:80`"),
        ("SLUICE_EGRESS_PORTS=udp:9-8", "SLUICE_EGRESS_PORTS: `udp:9-8`"),
        ("SLUICE_EGRESS_PORTS=tcp:0", "SLUICE_EGRESS_PORTS: `tcp:0`"),
        ("SLUICE_EGRESS_PORTS=tcp:1-1025", "SLUICE_EGRESS_PORTS: 1025 ports"),
        ("POD_IPS=", "POD_IPS"),
        ("POD_IPS=10.0.0.1,10.0.0.2", "POD_IPS"),
        ("POD_IPS=10.0.0.1,2001:db8::1,10.0.0.2", "POD_IPS"),
    ];
    for (environment, variable) in cases {
        let said = outcome(environment);
        assert!(said.starts_with(variable) && said.lines().count() == 1, "{environment}: {said}");
    }
}

const CLUSTER: &str = "EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS";

/// With a config file for `tailscaled`, each variable that says what the file says is refused by name.
#[test]
fn nothing_that_the_config_file_says_may_be_said_twice() {
    for variable in [
        "TS_ACCEPT_DNS=0",
        "TS_EXTRA_ARGS=--accept-dns=false",
        "TS_EXTRA_ARGS=--ssh",
        "TS_AUTHKEY=k",
        "TS_ROUTES=",
        "TS_HOSTNAME=web",
        "TS_CLIENT_ID=i",
        "TS_CLIENT_SECRET=s",
    ] {
        let said = outcome(&format!("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR=/etc/c\n{variable}"));
        let name = variable.split('=').next().unwrap();
        let wanted = format!(
            "{name}: cannot be combined with TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR: unset one of the two\n"
        );
        assert_eq!(said, wanted);
    }
}
