//! Sums as Prometheus reads them.

use std::fmt::{self, Write as _};

use super::{Parent, Port, Reports};

/// A family of counters of ports: name, help, and its values by direction.
type Family = (&'static str, &'static str, &'static [(&'static str, fn(&Port) -> u64)]);

const FAMILIES: [Family; 4] = [
    (
        "sluice_forwarded_packets_total",
        "Packets that proxies have carried.",
        &[("original", |port| port.original_packets), ("reply", |port| port.reply_packets)],
    ),
    (
        "sluice_forwarded_bytes_total",
        "Bytes that proxies have carried, as lengths of IP packets.",
        &[("original", |port| port.original_bytes), ("reply", |port| port.reply_bytes)],
    ),
    ("sluice_flows_total", "Flows that have begun.", &[("", |port| port.flows)]),
    (
        "sluice_refused_packets_total",
        "Packets of a port that were dropped.",
        &[("", |port| port.dropped)],
    ),
];

/// All of it.
pub(super) fn metrics(reports: &Reports) -> String {
    let mut text = String::new();
    // A String takes everything.
    let _ = write(&mut text, reports);
    text
}

fn write(text: &mut String, reports: &Reports) -> fmt::Result {
    for (name, help, values) in FAMILIES {
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter")?;
        for report in &reports.parents {
            for port in &report.ports {
                for (direction, value) in values {
                    let mut labels = of(&report.parent);
                    for (key, value) in [
                        ("rule", &port.rule),
                        ("from", &port.from),
                        ("protocol", &port.protocol),
                        ("port", &port.port),
                    ] {
                        label(&mut labels, key, value)?;
                    }
                    if !direction.is_empty() {
                        label(&mut labels, "direction", direction)?;
                    }
                    writeln!(text, "{name}{{{labels}}} {}", value(port))?;
                }
            }
        }
    }
    let name = "sluice_dropped_packets_total";
    writeln!(text, "# HELP {name} Packets that proxies have dropped.\n# TYPE {name} counter")?;
    for report in &reports.parents {
        for (reason, packets) in &report.drops {
            let mut labels = of(&report.parent);
            label(&mut labels, "reason", reason)?;
            writeln!(text, "{name}{{{labels}}} {packets}")?;
        }
    }
    let name = "sluice_proxies";
    writeln!(text, "# HELP {name} Proxies that run, by their data path.\n# TYPE {name} gauge")?;
    for report in &reports.parents {
        let mut modes = std::collections::BTreeMap::<&str, u64>::new();
        for pod in &report.pods {
            *modes.entry(pod.mode.as_deref().unwrap_or("unknown")).or_default() += 1;
        }
        for (mode, count) in modes {
            let mut labels = of(&report.parent);
            label(&mut labels, "mode", mode)?;
            writeln!(text, "{name}{{{labels}}} {count}")?;
        }
    }
    Ok(())
}

fn of(parent: &Parent) -> String {
    let mut labels = String::new();
    for (key, value) in
        [("kind", &parent.kind), ("namespace", &parent.namespace), ("name", &parent.name)]
    {
        let _ = label(&mut labels, key, value);
    }
    labels
}

fn label(labels: &mut String, key: &str, value: &str) -> fmt::Result {
    if !labels.is_empty() {
        labels.push(',');
    }
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    write!(labels, "{key}=\"{value}\"")
}
