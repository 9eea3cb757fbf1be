//! The chart: rendered by helm and compared with files that people have read, and the manifests made of it. Needs helm,
//! which `cargo xtask testbed helm` builds. That a real API server takes what is rendered is seen in `operator/tests`.
#![cfg(test)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use proxy_testbed_programs::HELM;

/// Where a release of the golden files is.
const NAMESPACE: &str = "tailscale";

/// helm itself knows none: a cluster would tell it.
const KUBERNETES: &str = "1.34.4";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// helm, with nothing of whoever runs the tests.
fn helm(command: &str, arguments: &[&str]) -> Output {
    let program = HELM.find().unwrap().join("helm");
    let nowhere = "/nonexistent";
    Command::new(program)
        .arg(command)
        .args(arguments)
        .args(["--kube-version", KUBERNETES])
        .env_clear()
        .envs([("HOME", nowhere), ("KUBECONFIG", nowhere), ("HELM_PLUGINS", nowhere)])
        .output()
        .unwrap()
}

fn chart() -> String {
    repository("deploy/chart").to_str().unwrap().to_owned()
}

/// What is rendered with these further arguments.
fn render(arguments: &[&str]) -> Result<String, String> {
    let chart = chart();
    let mut all = vec!["release", &chart, "--namespace", NAMESPACE];
    all.extend(arguments);
    let output = helm("template", &all);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Compares with a file, or writes it.
fn compare(path: &Path, text: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(found == text, "{} is out of date: run `cargo xtask generate`", path.display());
}

/// Without lines that say from which template something came, and those that are empty.
fn tidy(rendered: &str) -> String {
    let kept = rendered.lines().map(str::trim_end);
    kept.filter(|line| !line.is_empty() && !line.starts_with("# Source: "))
        .fold(String::new(), |text, line| text + line + "\n")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut all: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

#[test]
fn what_is_rendered_is_what_was_read() {
    let folder = repository("xtask/tests/chart");
    let values = names(&folder.join("values"));
    for name in &values {
        let file = folder.join("values").join(name);
        let rendered = render(&["--values", file.to_str().unwrap(), "--set", "installCRDs=false"]);
        compare(&folder.join("golden").join(name), &tidy(&rendered.unwrap()));
    }
    assert_eq!(names(&folder.join("golden")), values, "a file without its values");
}

#[test]
fn the_definitions_are_part_of_it_as_they_are() {
    let rendered = render(&[]).unwrap();
    for name in names(&repository("deploy/crds")) {
        let definition = fs::read_to_string(repository("deploy/crds").join(&name)).unwrap();
        assert!(rendered.contains(definition.trim_end()), "{name} is not in it as it is");
    }
    assert!(!render(&["--set", "installCRDs=false"]).unwrap().contains("CustomResourceDefinition"));
}

#[test]
fn the_manifests_are_what_the_chart_renders() {
    let note = "# Made from deploy/chart by `cargo xtask generate`; apply deploy/crds as well.\n";
    let namespace =
        format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n---\n");
    let secret = format!(
        "# Fill in the OAuth client, or delete this and make the Secret yourself.\napiVersion: v1\nkind: Secret\n\
         metadata:\n  name: operator-oauth\n  namespace: {NAMESPACE}\nstringData:\n  client_id: \"\"\n  client_secret: \"\"\n"
    );
    let operator = tidy(&render(&["--set", "installCRDs=false"]).unwrap());
    let folder = repository("deploy/manifests");
    compare(&folder.join("operator.yaml"), &format!("{note}{namespace}{secret}{operator}"));
    let only = [
        "--set",
        "apiServerProxyConfig.allowImpersonation=true",
        "--show-only",
        "templates/impersonation.yaml",
    ];
    let rights = tidy(&render(&only).unwrap());
    compare(&folder.join("authproxy-rbac.yaml"), &format!("{note}{rights}"));
    assert_eq!(names(&folder), ["authproxy-rbac.yaml", "operator.yaml"]);
}

#[test]
fn helm_finds_nothing_wrong_and_the_version_is_the_workspaces() {
    let output = helm("lint", &[&chart(), "--strict"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !said.contains("[WARNING]"), "{said}");
    let metadata = fs::read_to_string(repository("deploy/chart/Chart.yaml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    for line in [format!("version: {version}"), format!("appVersion: \"{version}\"")] {
        assert!(metadata.lines().any(|own| own == line), "{line}: {metadata}");
    }
}

#[test]
fn a_wrong_value_is_refused_by_its_name() {
    for (set, told) in [
        (
            "operatorConfig.logging=loud",
            "at '/operatorConfig/logging': value must be one of 'info', 'debug', 'dev'",
        ),
        ("operatorConfig.replicas=two", "at '/operatorConfig/replicas': got string, want integer"),
        (
            "operatorConfig.defaultTags[0]=k8s",
            "at '/operatorConfig/defaultTags/0': 'k8s' does not match pattern",
        ),
        ("operatorConfg.logging=info", "additional properties 'operatorConfg' not allowed"),
        ("proxyConfig.firewallMode=ipset", "at '/proxyConfig/firewallMode': value must be one of"),
        (
            "proxyConfig.defaultTags=k8s",
            "at '/proxyConfig/defaultTags': 'k8s' does not match pattern",
        ),
        ("apiServerProxyConfig.mode=yes", "at '/apiServerProxyConfig/mode': value must be one of"),
        ("ingressClass.name=", "at '/ingressClass/name': minLength"),
        (
            "loginServer=headscale.example",
            "at '/loginServer': 'headscale.example' does not match pattern",
        ),
        (
            "operatorConfig.image.digest=latest",
            "at '/operatorConfig/image/digest': 'latest' does not match pattern",
        ),
        (
            "operatorConfig.image.repository=tailscale/k8s-operator",
            "operatorConfig.image.repository is `tailscale/k8s-operator`, which is the image of Tailscale's operator: leave it out",
        ),
        (
            "proxyConfig.image.repo=ghcr.io/tailscale/tailscale",
            "proxyConfig.image.repository is `ghcr.io/tailscale/tailscale`",
        ),
        ("oauth.clientId=k123", "oauth.clientSecret is empty: set it beside oauth.clientId"),
        (
            "oauth.audience=a",
            "oauth.clientId is empty: oauth.audience needs the ID of the client there",
        ),
        (
            "headscale.apiKeySecret.name=h",
            "loginServer is empty: headscale.apiKeySecret needs the URL",
        ),
        (
            "loginServer=https://h.example,oauth.clientId=k123,oauth.clientSecret=s,headscale.apiKeySecret.name=h",
            "headscale.apiKeySecret.name: either Headscale's API key or an OAuth client",
        ),
        (
            "operatorConfig.extraEnv[0].name=TS_EXPERIMENTAL_KUBE_API_EVENTS,operatorConfig.extraEnv[0].value=true",
            "operatorConfig.extraEnv: TS_EXPERIMENTAL_KUBE_API_EVENTS was removed",
        ),
    ] {
        let refused = render(&["--set", set]).expect_err(set);
        assert!(refused.contains(told), "{set}: {refused}");
    }
}
