//! Rules files: what is accepted, what is refused, and how it is said.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "test")]

use std::{fmt::Write, path::PathBuf, time::Instant};

use proxy_rules::{
    Action, Protocol, Side, Snat,
    config::{Config, PathKind, Xdp, schema},
    validate::{ConfigError, parse, validate},
};

const HEAD: &str = "apiVersion: sluice.dev/v1\nkind: ProxyRules\n";

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn valid(body: &str) -> Config {
    validate(&format!("{HEAD}{body}")).unwrap()
}

fn errors(body: &str) -> Vec<ConfigError> {
    validate(&format!("{HEAD}{body}")).unwrap_err().iter().cloned().collect()
}

/// The only error, as `path: problem: remedy`.
fn error(body: &str) -> String {
    let list = errors(body);
    assert_eq!(list.len(), 1, "{list:#?}");
    list[0].to_string()
}

/// An ingress entry with these extra lines.
fn ingress(lines: &str) -> String {
    let mut body = "ingress:\n- name: web\n".to_owned();
    for line in lines.lines() {
        writeln!(body, "  {line}").unwrap();
    }
    body
}

const WEB: &str = "frontends: [100.64.0.9]\nports: [{protocol: tcp, port: 80}]\n";

#[test]
fn the_examples_are_valid_and_survive_printing() {
    let directory = repository("deploy/examples");
    let mut count = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        // Others have directories of their own.
        if path.is_dir() {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let config = validate(&text).unwrap_or_else(|e| panic!("{}:\n{e}", path.display()));
        assert!(!config.table.rules().is_empty());
        let document = parse(&text).unwrap();
        let printed = document.to_yaml().unwrap();
        assert_eq!(validate(&printed).unwrap(), config, "{printed}");
        let json = serde_json::to_string(&document).unwrap();
        assert_eq!(validate(&json).unwrap(), config, "{json}");
        count += 1;
    }
    assert!(count >= 6, "examples are missing from {}", directory.display());
}

#[test]
fn the_schema_file_is_up_to_date() {
    let path = repository("deploy/schema/proxy-rules.schema.json");
    let wanted = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{} is out of date: run with UPDATE_GOLDEN=1", path.display());
}

#[test]
fn an_entry_of_both_families_becomes_one_rule_a_frontend_and_port() {
    let config = valid(&ingress(
        "frontends: [100.64.0.9, 'fd7a::9']
ports: [{protocol: tcp, port: 443, targetPort: 8443}, {protocol: udp, port: 443}]
backends: [{address: 192.0.2.1}, {address: '2001:db8::1'}, {address: 192.0.2.2, state: draining}]",
    ));
    let rules = config.table.rules();
    assert_eq!(rules.len(), 4);
    for rule in rules {
        assert_eq!((rule.id.as_str(), rule.from), ("web", Side::Tailnet));
        let Action::Dnat { backends, snat, .. } = &rule.action else { panic!("{rule:?}") };
        assert_eq!(*snat, Snat::Masquerade);
        let is_v4 = rule.matches.dst.addr().is_ipv4();
        assert!(backends.list.iter().all(|backend| backend.address.is_ipv4() == is_v4));
        assert_eq!(backends.list.len(), if is_v4 { 2 } else { 1 });
        let target = (rule.matches.protocol == Some(Protocol::Tcp)).then_some(8443);
        assert!(backends.list.iter().all(|backend| backend.port == target));
    }
}

#[test]
fn an_egress_port_leads_to_its_target_port() {
    // R33: port 80 -> targetPort 8080 must not reach the target on 80.
    let config = valid(
        "egress: [{name: a, frontends: [192.0.2.9], ports: [{protocol: tcp, port: 80, targetPort: 8080}], \
         backends: [{address: 100.64.0.20}]}]",
    );
    let rule = &config.table.rules()[0];
    let Action::Dnat { backends, .. } = &rule.action else { panic!("{rule:?}") };
    assert_eq!((rule.from, backends.list[0].port), (Side::Cluster, Some(8080)));
}

#[test]
fn an_empty_document_has_the_defaults() {
    let config = valid("");
    assert!(config.table.rules().is_empty());
    assert_eq!(*config.table.settings(), proxy_rules::Settings::default());
    assert_eq!(config.options.data_paths, PathKind::ALL);
    assert_eq!(config.options.xdp, Xdp::Off);
}

#[test]
fn the_order_of_entries_does_not_matter() {
    let a = "{name: a, frontends: [100.64.0.1], ports: [{protocol: tcp}], backends: [{address: 192.0.2.2}, {address: 192.0.2.1}]}";
    let b = "{name: b, frontends: [100.64.0.2], ports: [{protocol: udp}], sources: [100.64.0.9, 100.64.0.8]}";
    let c = "{name: b, frontends: [100.64.0.2], ports: [{protocol: udp}], sources: [100.64.0.8, 100.64.0.9]}";
    assert_eq!(valid(&format!("ingress: [{a}, {b}]")), valid(&format!("ingress: [{c}, {a}]")));
}

#[test]
fn a_target_that_comes_back_or_changes_leaves_exactly_the_desired_rules() {
    // R23 and R25: the table is a function of the document alone, never of the tables before it.
    let with = |targets: &str| {
        valid(&format!(
            "egress: [{{name: a, frontends: [192.0.2.9], ports: [{{protocol: tcp, port: 80}}], backends: [{targets}]}}]"
        ))
        .table
    };
    let (first, gone, back) =
        (with("{address: 100.64.0.20}"), with(""), with("{address: 100.64.0.20}"));
    assert_eq!(first, back);
    assert_ne!(first.generation(), gone.generation());
    assert_eq!(with("{address: 100.64.0.21}").rules().len(), 1);
}

#[test]
fn every_mistake_is_reported_with_path_and_remedy() {
    let cases = [
        (
            format!("{WEB}colour: red"),
            "ingress[0].colour: unknown field: known fields are `affinity`, `backends`, `frontends`, `name`, `ports`, `proxyProtocol`, `snat`, `sources`",
        ),
        (
            "frontends: [100.64.0.9]\nports: [{protocol: tcp, port: 80, targetport: 1}]".to_owned(),
            "ingress[0].ports[0].targetport: unknown field: did you mean `targetPort`?",
        ),
        (
            "frontends: [100.64.0.9]\nports: [{protocol: tcp, port: 0}]".to_owned(),
            "ingress[0].ports[0].port: 0 is out of range: use a number from 1 to 65535",
        ),
        (
            "frontends: [100.64.0.9]\nports: [{protocol: tcp, port: 90-80}]".to_owned(),
            "ingress[0].ports[0].port: 90-80 is reversed: use 80-90",
        ),
        (
            "frontends: [100.64.0.9]\nports: [{protocol: tcp, port: '0'}]".to_owned(),
            "ingress[0].ports[0].port: 0 is not a port: use 1 to 65535",
        ),
        (
            "frontends: [100.64.0.9]\nports: [{protocol: tpc, port: 80}]".to_owned(),
            "ingress[0].ports[0].protocol: `tpc` is not known here: did you mean `tcp`? one of `tcp`, `udp`, `icmp`",
        ),
        (
            "frontends: [100.64.0.9]\nports: [{protocol: icmp, port: 80}]".to_owned(),
            "ingress[0].ports[0].port: ICMP has no ports: remove it",
        ),
        (
            "frontends: [100.64.0.9]\nports: [{protocol: tcp, port: 1-5000, countPerPort: true}]"
                .to_owned(),
            "ingress[0].ports[0].countPerPort: 5000 ports are too many to count each: count at most 4096 ports, or remove it",
        ),
        (
            "frontends: [100.64.0.9]\nports: [{protocol: tcp, port: 1-50, targetPort: 9}]"
                .to_owned(),
            "ingress[0].ports[0].targetPort: a range keeps its ports, it cannot have one target port: remove it, or list the ports one by one",
        ),
        (
            format!("{WEB}backends: [{{address: '2001:db8::1'}}]"),
            "ingress[0].frontends[0]: 100.64.0.9 has no IPv4 backend: add an IPv4 backend or remove the frontend",
        ),
        (
            format!("{WEB}backends: [{{address: 192.0.2.1, weight: 0}}]"),
            "ingress[0].backends[0].weight: 0 is out of range: use a number from 1 to 100",
        ),
        (
            format!("{WEB}backends: [{{address: 192.0.2.1}}, {{address: 192.0.2.1}}]"),
            "ingress[0].backends[1].address: 192.0.2.1 is given twice: give each backend once",
        ),
        (
            format!("{WEB}sources: [100.64.0.1/10]"),
            "ingress[0].sources[0]: 100.64.0.1/10 has host bits set: use 100.64.0.0/10, or 100.64.0.1 for the host alone",
        ),
        (
            format!("{WEB}sources: [100.64.0.1/33]"),
            "ingress[0].sources[0]: `100.64.0.1/33` is not a prefix: use address/length, such as 192.0.2.0/24 or 2001:db8::/32",
        ),
        (
            format!("{WEB}sources: ['2001:db8::/32']"),
            "ingress[0].frontends[0]: 100.64.0.9 can never be reached from these sources: other family: add sources of its family or remove the address",
        ),
        (
            format!("{WEB}snat: '2001:db8::1'"),
            "ingress[0].frontends[0]: 100.64.0.9 cannot be left with source 2001:db8::1: other family: use an entry for each family, or snat: masquerade",
        ),
        (
            format!("{WEB}snat: sometimes"),
            "ingress[0].snat: `sometimes` is not known here: use `keep`, `masquerade` or an address",
        ),
        (
            format!("{WEB}affinity: clientip"),
            "ingress[0].affinity: `clientip` is not known here: did you mean `clientIp`? one of `flow`, `clientIp`",
        ),
        (
            "frontends: ['::ffff:192.0.2.1']\nports: [{protocol: tcp}]".to_owned(),
            "ingress[0].frontends[0]: ::ffff:192.0.2.1 is an IPv4 address in IPv6 form: use 192.0.2.1",
        ),
        (
            "frontends: [0.0.0.0]\nports: [{protocol: tcp}]".to_owned(),
            "ingress[0].frontends[0]: 0.0.0.0 is not the address of a host: use the address of one host",
        ),
        (
            "frontends: [100.64.0.9/32]\nports: [{protocol: tcp}]".to_owned(),
            "ingress[0].frontends[0]: `100.64.0.9/32` is not an address: leave out the prefix length: 100.64.0.9",
        ),
        (
            "frontends: []\nports: [{protocol: tcp}]".to_owned(),
            "ingress[0].frontends: empty list: give at least 1",
        ),
        (
            "frontends: [100.64.0.9]".to_owned(),
            "ingress[0].ports: no ports: list what the tailnet may reach; {protocol: tcp} is every TCP port",
        ),
        (
            "ports: [{protocol: tcp}]".to_owned(),
            "ingress[0].frontends: missing field: add it (a list)",
        ),
        (
            "frontends: 100.64.0.9\nports: [{protocol: tcp}]".to_owned(),
            "ingress[0].frontends: text does not fit here: use a list",
        ),
        (
            "frontends: [1]\nports: [{protocol: tcp}]".to_owned(),
            "ingress[0].frontends[0]: a number does not fit here: write it in quotes: \"1\"",
        ),
        (
            "frontends: [100.64.0.9]\nports: [{protocol: udp}]\nproxyProtocol: true".to_owned(),
            "ingress[0].proxyProtocol: needs TCP: remove it, or serve a TCP port",
        ),
    ];
    for (lines, wanted) in cases {
        assert_eq!(error(&ingress(&lines)), wanted);
    }
}

#[test]
fn settings_are_checked() {
    let cases = [
        ("maxFlows: 5", "settings.maxFlows: 5 is out of range: use a number from 1024 to 16777216"),
        (
            "interfaces: {tailnet: [tun0], cluster: [tun0]}",
            "settings.interfaces.cluster[0]: tun0 is given twice: a device is on one side, once",
        ),
        (
            "interfaces: {tailnet: ['a b']}",
            "settings.interfaces.tailnet[0]: `a b` cannot be the name of a device: use at most 15 bytes without blanks, `/` and `:`",
        ),
        (
            "dataPath: [ebpf, iptables]",
            "settings.dataPath[1]: `iptables` is not known here: did you mean `nftables`? one of `ebpf`, `nftables`, `userspace`",
        ),
        (
            "dataPath: [ebpf, ebpf]",
            "settings.dataPath[1]: ebpf is given twice: name each data path once",
        ),
        ("dataPath: 3", "settings.dataPath: a number does not fit here: write it in quotes: \"3\""),
        (
            "snatPorts: {range: 5000-5001, reserved: [5000, '5001-5002']}",
            "settings.snatPorts.reserved: every port of 5000-5001 is reserved: reserve fewer ports or widen settings.snatPorts.range",
        ),
        (
            "bpffs: sys/fs/bpf",
            "settings.bpffs: `sys/fs/bpf` is not an absolute path: use a directory on a bpffs: /sys/fs/bpf/NAME",
        ),
        (
            "adminAddress: localhost",
            "settings.adminAddress: `localhost` is not an address with a port: use address:port, such as 127.0.0.1:9002 or [::]:9002",
        ),
        ("xdp: off\nxpd: on", "settings.xpd: unknown field: did you mean `xdp`?"),
    ];
    for (lines, wanted) in cases {
        let indented: Vec<_> = lines.lines().map(|line| format!("  {line}")).collect();
        assert_eq!(error(&format!("settings:\n{}\n", indented.join("\n"))), wanted);
    }
}

#[test]
fn overlapping_frontends_name_both_entries() {
    let message = error(
        "ingress:
- {name: a, frontends: [100.64.0.9], ports: [{protocol: tcp, port: 80}]}
- {name: b, frontends: [100.64.0.9], ports: [{protocol: udp, port: 80}, {protocol: tcp, port: 80}]}",
    );
    assert_eq!(
        message,
        "ingress[1].ports[1]: 100.64.0.9 tcp port 80 from the tailnet side, claimed by `b`, is also claimed by `a` at ingress[0].ports[0]: \
         remove one, merge their backends, or give them disjoint ports or sources"
    );
    let crossing = "ingress:
- {name: a, frontends: [100.64.0.9], ports: [{protocol: tcp, port: 80-90}, {protocol: tcp, port: 85-99}]}";
    assert!(error(crossing).contains("85-99"));
    let nested = "ingress:
- {name: a, frontends: [100.64.0.9], ports: [{protocol: tcp}], sources: [100.64.0.0/24]}
- {name: b, frontends: [100.64.0.9], ports: [{protocol: tcp}], sources: [100.64.0.7]}";
    assert!(error(nested).contains("`a`"));
    let same_name = error(
        "ingress: [{name: a, frontends: [100.64.0.9], ports: [{protocol: tcp}]}]
egress: [{name: a, frontends: [100.64.0.9]}]",
    );
    assert_eq!(
        same_name,
        "egress[0].name: `a` is already the name at ingress[0].name: give each entry its own name"
    );
}

#[test]
fn the_more_specific_may_lie_inside_the_less_specific() {
    let config = valid(
        "ingress:
- {name: a, frontends: [100.64.0.9], ports: [{protocol: tcp, port: 80}, {protocol: tcp, port: 80-90}, {protocol: tcp}]}
- {name: b, frontends: [100.64.0.9], ports: [{protocol: tcp, port: 80}], sources: [100.64.0.5]}
routes:
- {name: c, from: tailnet, destinations: [100.64.0.9/32, 100.64.0.0/24, 0.0.0.0/0]}",
    );
    let names: Vec<_> = config.table.rules().iter().map(|rule| rule.id.as_str()).collect();
    assert_eq!(names, ["b", "a", "a", "a", "c", "c", "c"]);
}

#[test]
fn errors_of_shape_do_not_hide_errors_of_meaning() {
    let list = errors(
        "color: 1
ingress:
- {name: a, frontends: [100.64.0.999], ports: [{protocol: tcp, port: 0}], wieght: 1}
- {name: a b, frontends: [100.64.0.1], ports: [{protocol: tcp, port: 9-8}], backends: [{}]}
- {}
- 7",
    );
    let paths: Vec<_> = list.iter().map(|error| error.path.as_str()).collect();
    let wanted = [
        "color",
        "ingress[0].ports[0].port",
        "ingress[0].wieght",
        "ingress[1].backends[0].address",
        "ingress[2].name",
        "ingress[2].frontends",
        "ingress[3]",
        "ingress[0].frontends[0]",
        "ingress[1].name",
        "ingress[1].ports[0].port",
    ];
    for path in wanted {
        assert!(paths.contains(&path), "{path} is missing from {paths:?}");
    }
}

#[test]
fn syntax_errors_have_line_and_column() {
    let yaml = validate("apiVersion: sluice.dev/v1\nkind: [").unwrap_err();
    let at = yaml.iter().next().unwrap().position.unwrap();
    assert_eq!((yaml.len(), at.line), (1, 2), "{yaml}");
    let json = validate("{\"kind\": 1,\n \"kind\": 2}").unwrap_err();
    assert_eq!(json.to_string(), "line 2, column 11: field `kind` is given twice: mend the syntax");
    let twice = validate("kind: ProxyRules\nkind: ProxyRules").unwrap_err();
    assert_eq!(twice.iter().next().unwrap().position.unwrap().line, 2, "{twice}");
}

#[test]
fn another_version_is_refused_by_name() {
    let text = "apiVersion: sluice.dev/v2\nkind: ProxyRules\n";
    assert_eq!(
        validate(text).unwrap_err().to_string(),
        "apiVersion: `sluice.dev/v2` is not known here: use `sluice.dev/v1`"
    );
    assert_eq!(validate("").unwrap_err().len(), 1);
}

#[test]
fn ten_thousand_errors_are_all_reported_in_little_time() {
    let mut same_frontend = String::from("ingress:\n");
    let mut same_name = String::from("ingress:\n");
    let mut unknown = String::from("ingress:\n");
    for i in 0..10_002 {
        let host = format!("100.64.{}.{}", i / 250, i % 250 + 1);
        let ports = "ports: [{protocol: tcp, port: 80}]";
        writeln!(same_frontend, "- {{name: n{i}, frontends: [100.64.0.9], {ports}}}").unwrap();
        writeln!(same_name, "- {{name: n, frontends: [{host}], {ports}}}").unwrap();
        writeln!(unknown, "- {{name: n{i}, frontends: [{host}], {ports}, prots: []}}").unwrap();
    }
    // Unoptimised code is allowed ten times as long; quadratic work would take a hundred times.
    let limit = if cfg!(debug_assertions) { 10.0 } else { 1.0 };
    for (body, wanted) in [(same_frontend, 10_001), (same_name, 10_001), (unknown, 10_002)] {
        let start = Instant::now();
        let list = errors(&body);
        assert_eq!(list.len(), wanted, "{:?}", (list.first(), list.last()));
        let seconds = start.elapsed().as_secs_f64();
        assert!(seconds < limit, "{seconds} s");
    }
}

#[test]
fn limits_hold_before_memory_is_spent() {
    let hosts: Vec<_> = (0..2000).map(|i| format!("100.64.{}.{}", i / 250, i % 250 + 1)).collect();
    let ports: Vec<_> = (1..2000).map(|port| format!("{{protocol: tcp, port: {port}}}")).collect();
    let body = format!(
        "ingress: [{{name: a, frontends: [{}], ports: [{}]}}]",
        hosts.join(", "),
        ports.join(", ")
    );
    assert!(error(&body).contains("more rules than 65536"));
}

#[test]
fn bombs_are_refused() {
    let mut aliases = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, before) in "bcdefghij".chars().zip("abcdefghi".chars()) {
        writeln!(aliases, "{name}: &{name} [{}]", vec![format!("*{before}"); 10].join(", "))
            .unwrap();
    }
    let texts = [
        aliases,
        "[".repeat(100_000),
        "{\"a\":".repeat(100_000),
        "- ".repeat(100_000),
        " ".repeat(40 << 20),
        "\u{0}\u{feff}\u{202e}: !!binary |".to_owned(),
    ];
    for text in texts {
        assert!(validate(&text).unwrap_err().len() < 100);
    }
}

#[test]
fn errors_are_lines_and_json() {
    let list = validate("kind: ProxyRules\nspec: 1").unwrap_err();
    assert_eq!(list.to_string().lines().count(), list.len());
    let json = serde_json::to_value(&list).unwrap();
    assert_eq!(json[0]["path"], "apiVersion");
    assert_eq!(json[1]["problem"], "unknown field");
}
