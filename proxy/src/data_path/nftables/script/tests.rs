//! Golden scripts, and what two images make of each other.

use std::{fs, path::PathBuf};

use proxy_rules::{Affinity, Interfaces, PortRange, RuleId, Settings, Unmatched};

use super::*;
use crate::data_path::nftables::apply;

fn settings() -> Settings {
    Settings {
        interfaces: Interfaces { tailnet: vec!["tun0".into()], cluster: vec!["eth0".into()] },
        protected: vec!["100.64.0.9/32".parse().unwrap(), "2001:db8:64::9/128".parse().unwrap()],
        ..Settings::default()
    }
}

fn matches(protocol: Option<Protocol>, dst: &str, ports: PortRange) -> Match {
    Match { protocol, dst: dst.parse().unwrap(), ports, src: Vec::new() }
}

fn port(port: u16) -> PortRange {
    PortRange::single(port).unwrap()
}

fn backends(list: &[(&str, Option<u16>)]) -> Backends {
    let list = list
        .iter()
        .map(|(address, port)| Backend {
            address: address.parse().unwrap(),
            port: *port,
            weight: 1,
            state: BackendState::Ready,
        })
        .collect();
    Backends { list, affinity: Affinity::Flow }
}

fn rule(id: &str, from: Side, matches: Match, action: Action) -> Rule {
    Rule { id: RuleId::new(id), from, matches, action, count_per_port: false }
}

fn dnat(list: &[(&str, Option<u16>)], snat: Snat) -> Action {
    Action::Dnat { backends: backends(list), snat, proxy_protocol: false }
}

fn ingress() -> Vec<Rule> {
    let (tcp, udp) = (Some(Protocol::Tcp), Some(Protocol::Udp));
    let web = &[("198.51.100.1", Some(8080))];
    vec![
        rule(
            "web",
            Side::Tailnet,
            matches(tcp, "100.64.0.9/32", port(80)),
            dnat(web, Snat::Masquerade),
        ),
        rule(
            "web6",
            Side::Tailnet,
            matches(tcp, "2001:db8:64::9/128", port(80)),
            dnat(&[("2001:db8:1::1", None)], Snat::Keep),
        ),
        rule(
            "dns",
            Side::Tailnet,
            matches(udp, "100.64.0.9/32", port(53)),
            dnat(&[("198.51.100.1", Some(53)), ("198.51.100.2", Some(5353))], Snat::Keep),
        ),
        rule(
            "ping",
            Side::Tailnet,
            matches(Some(Protocol::Icmp), "100.64.0.9/32", PortRange::ANY),
            dnat(web, Snat::Keep),
        ),
    ]
}

fn overlapping() -> Vec<Rule> {
    let tcp = Some(Protocol::Tcp);
    let forward = || Action::Forward { to: Side::Cluster, snat: Snat::Masquerade };
    let mut limited = rule(
        "limited",
        Side::Tailnet,
        matches(tcp, "203.0.113.0/24", port(443)),
        Action::Forward { to: Side::Cluster, snat: Snat::To("198.51.100.9".parse().unwrap()) },
    );
    limited.matches.src =
        vec!["100.64.0.0/25".parse().unwrap(), "100.64.0.128/25".parse().unwrap()];
    let mut counted = rule(
        "counted",
        Side::Cluster,
        matches(tcp, "198.51.100.3/32", PortRange::new(9000, 9001).unwrap()),
        dnat(&[("100.64.0.20", None)], Snat::Masquerade),
    );
    counted.count_per_port = true;
    vec![
        limited,
        counted,
        rule("exit", Side::Tailnet, matches(None, "0.0.0.0/0", PortRange::ANY), forward()),
        rule("exit6", Side::Tailnet, matches(None, "::/0", PortRange::ANY), forward()),
        rule(
            "no-smtp",
            Side::Tailnet,
            matches(tcp, "0.0.0.0/0", port(25)),
            Action::Drop(DropReason::RuleDrop),
        ),
        rule(
            "no-admin",
            Side::Tailnet,
            matches(tcp, "203.0.113.7/32", PortRange::new(8000, 8999).unwrap()),
            Action::Reject,
        ),
        rule(
            "drained",
            Side::Cluster,
            matches(tcp, "198.51.100.3/32", port(22)),
            dnat(&[], Snat::Keep),
        ),
    ]
}

fn host() -> Host {
    Host {
        closed4: ["eth0".to_owned()].into(),
        sysctls: [("net/ipv4/conf/eth0/forwarding".to_owned(), "0".to_owned())].into(),
        ..Host::default()
    }
}

fn image(rules: Vec<Rule>, settings: Settings) -> Image {
    Image::new(&RuleTable::new(rules, settings), &host(), &Image::default())
}

/// Compares with a file, or writes it when `UPDATE_GOLDEN=1`.
fn golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(&path, text).unwrap();
    }
    let want = fs::read_to_string(&path).unwrap_or_default();
    assert!(want == text, "{name} differs: run with UPDATE_GOLDEN=1 and review the change\n{text}");
}

/// Has the kernel check a script, unless the machine's tests are told to do without.
fn kernel_accepts(script: &str) {
    if std::env::var_os("SKIP_KERNEL_TESTS").is_none_or(|value| value != "1") {
        apply::check(script).unwrap();
    }
}

#[test]
fn an_ingress_table_is_as_recorded() {
    let script = image(ingress(), settings()).script();
    golden("ingress.nft", &script);
    kernel_accepts(&script);
}

#[test]
fn overlapping_rules_are_as_recorded() {
    let settings =
        Settings { unmatched: Unmatched::Pass, fragments: Fragments::Drop, ..settings() };
    let script = image(overlapping(), settings).script();
    golden("overlapping.nft", &script);
    kernel_accepts(&script);
}

#[test]
fn an_empty_table_is_accepted() {
    kernel_accepts(&image(Vec::new(), Settings::default()).script());
}

#[test]
fn a_changed_backend_changes_two_elements() {
    let old = image(ingress(), settings());
    let mut rules = ingress();
    rules[0].action = dnat(&[("198.51.100.7", Some(8080))], Snat::Masquerade);
    let new = Image::new(&RuleTable::new(rules, settings()), &host(), &old);
    golden("changed_backend.nft", &new.difference(&old));
}

#[test]
fn a_removed_rule_keeps_its_counters_for_one_apply() {
    let old = image(ingress(), settings());
    let table = RuleTable::new(ingress().split_off(1), settings());
    let new = Image::new(&table, &host(), &old);
    assert_eq!(new.retiring.len(), 1);
    assert!(!new.difference(&old).contains("count_"), "{}", new.difference(&old));
    let after = Image::new(&table, &host(), &new);
    assert!(after.retiring.is_empty());
    assert_eq!(after.difference(&new).matches("delete element").count(), 4);
    assert_eq!(Image::new(&table, &host(), &after).difference(&after), "");
}

#[test]
fn changed_settings_refill_the_chains_and_leave_the_sets() {
    let old = image(ingress(), settings());
    let settings = Settings { fragments: Fragments::Drop, ..settings() };
    let table = RuleTable::new(ingress(), settings);
    let new = Image::new(&table, &host(), &old);
    let script = new.difference(&old);
    assert!(script.starts_with("flush chain inet sluice"));
    assert!(!script.contains("delete table") && !script.contains("delete element"));
    assert!(old.difference(&new).ends_with("delete chain inet sluice fragments\n"));
}
