//! Growth between two looks, as a table and as lines.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;

use crate::counters::{Parent, Port, Report, Reports};

/// What a port carries.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Rate<'a> {
    #[serde(flatten)]
    parent: &'a Parent,
    mode: Option<&'a str>,
    rule: &'a str,
    from: &'a str,
    protocol: &'a str,
    port: &'a str,
    original_packets_per_second: f64,
    original_bytes_per_second: f64,
    reply_packets_per_second: f64,
    reply_bytes_per_second: f64,
    flows: u64,
    dropped: u64,
}

type Key<'a> = (&'a Parent, &'a str, &'a str, &'a str, &'a str);

fn key<'a>(report: &'a Report, port: &'a Port) -> Key<'a> {
    (&report.parent, &port.rule, &port.from, &port.protocol, &port.port)
}

fn ports(reports: &Reports) -> impl Iterator<Item = (&Report, &Port)> {
    reports.parents.iter().flat_map(|report| report.ports.iter().map(move |port| (report, port)))
}

/// Of every port.
pub(super) fn rates<'a>(before: &Reports, now: &'a Reports, seconds: f64) -> Vec<Rate<'a>> {
    let old: BTreeMap<_, _> =
        ports(before).map(|(report, port)| (key(report, port), port)).collect();
    let rate = |(report, port): (&'a Report, &'a Port)| {
        let old = old.get(&key(report, port));
        let per_second = |pick: fn(&Port) -> u64| {
            // What was not there before has no rate yet.
            let before = old.map_or_else(|| pick(port), |old| pick(old));
            pick(port).saturating_sub(before) as f64 / seconds.max(f64::EPSILON)
        };
        Rate {
            parent: &report.parent,
            mode: report.mode.as_deref(),
            rule: &port.rule,
            from: &port.from,
            protocol: &port.protocol,
            port: &port.port,
            original_packets_per_second: per_second(|port| port.original_packets),
            original_bytes_per_second: per_second(|port| port.original_bytes),
            reply_packets_per_second: per_second(|port| port.reply_packets),
            reply_bytes_per_second: per_second(|port| port.reply_bytes),
            flows: port.flows,
            dropped: port.dropped,
        }
    };
    ports(now).map(rate).collect()
}

/// For people. What is wrong follows the table.
pub(super) fn table(reports: &Reports, rates: &[Rate<'_>]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "KIND", "OBJECT", "MODE", "RULE", "FROM", "PROTO", "PORT", "PKT/S >", "B/S >", "PKT/S <",
        "B/S <", "FLOWS", "DROPS",
    ]);
    for rate in rates {
        table.add_row([
            rate.parent.kind.clone(),
            object(rate.parent),
            rate.mode.unwrap_or("unknown").to_owned(),
            rate.rule.to_owned(),
            rate.from.to_owned(),
            rate.protocol.to_owned(),
            rate.port.to_owned(),
            format!("{:.0}", rate.original_packets_per_second),
            format!("{:.0}", rate.original_bytes_per_second),
            format!("{:.0}", rate.reply_packets_per_second),
            format!("{:.0}", rate.reply_bytes_per_second),
            rate.flows.to_string(),
            rate.dropped.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(7) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.chain(troubles(reports)).collect()
}

fn troubles(reports: &Reports) -> impl Iterator<Item = String> {
    reports.parents.iter().flat_map(|report| {
        let whose = format!("{} {}", report.parent.kind, object(&report.parent));
        let pods = report
            .pods
            .iter()
            .filter_map(|pod| Some(format!("{}: {}", pod.name, pod.error.as_ref()?)));
        let targets = report.targets.iter().filter(|target| !target.ready).map(|target| {
            let why = target.message.as_ref().or(target.reason.as_ref());
            format!("{} is not reached: {}", target.target, why.map_or("no reason", String::as_str))
        });
        pods.chain(targets).map(|trouble| format!("{whose}: {trouble}\n")).collect::<Vec<_>>()
    })
}

fn object(parent: &Parent) -> String {
    if parent.namespace.is_empty() {
        parent.name.clone()
    } else {
        format!("{}/{}", parent.namespace, parent.name)
    }
}
