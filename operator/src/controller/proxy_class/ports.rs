//! The node ports of a ProxyClass: each one a node port of the cluster, and nobody else's.

use std::fmt;

use super::fetch::Surroundings;
use crate::crd::{ProxyClass, proxy_class::PortRange};

const FIELD: &str = "spec.staticEndpoints.nodePort.ports";

/// Ports, both ends among them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct PortSpan {
    first: u16,
    last: u16,
}

/// Ports of another class.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Taken {
    /// The class.
    pub(super) class: String,
    /// Its ports.
    pub(super) span: PortSpan,
}

impl PortSpan {
    pub(super) fn new(first: u16, last: u16) -> Self {
        Self { first, last }
    }

    fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn is_within(self, other: Self) -> bool {
        other.first <= self.first && self.last <= other.last
    }
}

impl fmt::Display for PortSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return write!(f, "{}", self.first);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// The ports of a class, without those that are none.
pub(super) fn spans(class: &ProxyClass) -> impl Iterator<Item = PortSpan> {
    let ports = class.spec.static_endpoints.as_ref().map(|endpoints| &endpoints.node_port.ports);
    ports.into_iter().flatten().filter_map(|range| span(range).ok())
}

/// Adds what is wrong with the ports.
pub(super) fn check(class: &ProxyClass, surroundings: &Surroundings, wrong: &mut Vec<String>) {
    let Some(endpoints) = &class.spec.static_endpoints else { return };
    let ports = &endpoints.node_port.ports;
    if ports.is_empty() {
        wrong.push(format!("{FIELD}: is empty, name a port for each replica"));
    }
    let mut before: Vec<(usize, PortSpan)> = Vec::new();
    for (place, range) in ports.iter().enumerate() {
        let span = match span(range) {
            Ok(span) => span,
            Err(why) => {
                wrong.push(format!("{FIELD}[{place}].{why}"));
                continue;
            }
        };
        if let Some(range) = surroundings.node_ports.filter(|range| !span.is_within(*range)) {
            wrong.push(format!(
                "{FIELD}[{place}]: {span} is not within the cluster's node ports, use some of {range}"
            ));
        }
        for (other, _) in before.iter().filter(|(_, other)| span.overlaps(*other)) {
            wrong.push(format!(
                "{FIELD}[{place}]: {span} has ports of {FIELD}[{other}], name each port once"
            ));
        }
        for other in surroundings.taken.iter().filter(|other| span.overlaps(other.span)) {
            wrong.push(format!(
                "{FIELD}[{place}]: {span} has ports of ProxyClass `{}` ({}), use others",
                other.class, other.span
            ));
        }
        before.push((place, span));
    }
}

/// The ports, or the field that is wrong and why.
fn span(range: &PortRange) -> Result<PortSpan, String> {
    let port = |field: &str, number: i64| {
        let port = u16::try_from(number).ok().filter(|port| *port != 0);
        port.ok_or_else(|| format!("{field}: {number} is not a port, use 1 to 65535"))
    };
    let first = port("port", range.port)?;
    // 0 is none, as it is for upstream.
    let last = match range.end_port.filter(|end| *end != 0) {
        Some(end) => port("endPort", end)?,
        None => first,
    };
    if last < first {
        return Err(format!("endPort: {last} is before port {first}, exchange them"));
    }
    Ok(PortSpan { first, last })
}
