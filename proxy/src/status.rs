//! `/v1/status`: what is installed, not what is wanted. Fields are only ever added within a version.

use std::collections::BTreeMap;

use proxy_rules::{Series, Snapshot, validate::ConfigError};
use serde::{Deserialize, Serialize};

mod tailnet;

pub use self::tailnet::{CertificateStatus, TailnetStatus, TargetStatus};
use crate::engine::State;

/// The version of the document.
pub const VERSION: u32 = 1;

/// The whole document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of this document.
    pub version: u32,
    /// Version of the program.
    pub program: String,
    /// Whether traffic is carried as configured.
    pub ready: bool,
    /// What readiness waits for, each open (`true`) or not.
    pub latches: BTreeMap<String, bool>,
    /// Content hash of the table in force.
    pub generation: Option<String>,
    /// The data path.
    pub data_path: DataPathStatus,
    /// The rules file.
    pub config: ConfigStatus,
    /// By rule of the table in force.
    pub rules: Vec<RuleStatus>,
    /// Counters by series.
    pub ports: Vec<PortStatus>,
    /// Dropped packets by reason.
    pub drops: BTreeMap<String, u64>,
    /// The flow table.
    pub flows: FlowStatus,
    /// The process.
    pub process: ProcessStatus,
    /// The node and tailscaled, of a proxy on a tailnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tailnet: Option<TailnetStatus>,
    /// Where each entry's traffic is to go, and whether it can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetStatus>,
}

/// The data path in force, and why not another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataPathStatus {
    /// Which one carries the table.
    pub kind: Option<String>,
    /// Those wanted, in order.
    pub wanted: Vec<String>,
    /// Whether `POST /v1/data-path` decided, not the configuration.
    pub forced: bool,
    /// Why better ones are not in use.
    pub refusals: Vec<RefusalStatus>,
    /// What is carried differently than the rules say.
    pub notes: Vec<String>,
    /// Paths that still carry flows from before a switch.
    pub draining: Vec<String>,
    /// Why the latest table is not in force.
    pub error: Option<String>,
    /// Switches since the process began.
    pub switches: u64,
}

/// Why a data path is not in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RefusalStatus {
    /// Which.
    pub kind: String,
    /// The sort of reason.
    pub reason: String,
    /// What is missing and what would help.
    pub message: String,
}

/// The rules file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConfigStatus {
    /// Its path.
    pub file: String,
    /// Content hash of its table, if it is valid.
    pub generation: Option<String>,
    /// What is wrong with it, at most the first hundred; the table in force is then an earlier one.
    pub errors: Vec<String>,
    /// How many things are wrong with it.
    pub error_count: usize,
}

/// A rule of the table in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleStatus {
    /// Its name.
    pub rule: String,
    /// Whether it carries traffic now.
    pub installed: bool,
    /// Why not, or why only in part: a stable word.
    pub reason: Option<String>,
}

/// Counters of one series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortStatus {
    /// The rule.
    pub rule: String,
    /// The side that flows start from.
    pub from: String,
    /// The protocol, or `any`.
    pub protocol: String,
    /// The port, a range `first-last`, or `any`.
    pub port: String,
    /// Packets in the flows' original direction.
    pub original_packets: u64,
    /// Bytes in the flows' original direction.
    pub original_bytes: u64,
    /// Packets in the reply direction.
    pub reply_packets: u64,
    /// Bytes in the reply direction.
    pub reply_bytes: u64,
    /// Flows created.
    pub flows: u64,
    /// Packets dropped.
    pub dropped: u64,
}

/// The flow table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowStatus {
    /// Live flows.
    pub live: Option<u64>,
    /// Capacity.
    pub max: Option<u64>,
}

/// The process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Effective capabilities of use to data paths.
    pub capabilities: Vec<String>,
    /// Where a bpffs is mounted and writable.
    pub bpffs: Option<String>,
    /// Resident memory in bytes.
    pub resident_bytes: Option<u64>,
}

impl DataPathStatus {
    /// From the engine's state.
    pub fn of(state: &State) -> Self {
        let labels = |kinds: &[crate::data_path::Kind]| {
            kinds.iter().map(|kind| kind.label().to_owned()).collect()
        };
        let refusals = state.refusals.iter().map(|refusal| RefusalStatus {
            kind: refusal.kind.label().to_owned(),
            reason: refusal.reason.to_owned(),
            message: refusal.message.clone(),
        });
        Self {
            kind: state.kind.map(|kind| kind.label().to_owned()),
            wanted: labels(&state.wanted),
            forced: state.forced,
            refusals: refusals.collect(),
            notes: state.notes.clone(),
            draining: labels(&state.draining),
            error: state.error.clone().or_else(|| state.trouble.clone()),
            switches: state.switches,
        }
    }
}

impl ConfigStatus {
    /// How many errors are listed.
    pub const LISTED: usize = 100;

    /// With these errors.
    pub fn set_errors<'a>(&mut self, errors: impl ExactSizeIterator<Item = &'a ConfigError>) {
        self.error_count = errors.len();
        self.errors = errors.take(Self::LISTED).map(ToString::to_string).collect();
    }
}

/// The port label of a series.
pub fn port(series: &Series) -> String {
    match (series.port, series.last_port) {
        (None, _) => "any".to_owned(),
        (Some(port), None) => port.to_string(),
        (Some(first), Some(last)) => format!("{first}-{last}"),
    }
}

/// Counters as the document has them.
pub fn ports(snapshot: &Snapshot) -> Vec<PortStatus> {
    let row = |(series, count): (&Series, &proxy_rules::Count)| PortStatus {
        rule: series.rule.to_string(),
        from: series.from.label().to_owned(),
        protocol: series.protocol.map_or("any", proxy_rules::Protocol::label).to_owned(),
        port: port(series),
        original_packets: count.original_packets,
        original_bytes: count.original_bytes,
        reply_packets: count.reply_packets,
        reply_bytes: count.reply_bytes,
        flows: count.flows,
        dropped: count.dropped,
    };
    snapshot.series.iter().map(row).collect()
}

/// By rule: whether it can carry traffic.
pub fn rules(state: &State) -> Vec<RuleStatus> {
    use proxy_rules::{Action, BackendState};
    let Some(table) = &state.table else { return Vec::new() };
    let mut rules = BTreeMap::new();
    for rule in table.rules() {
        let starved = match &rule.action {
            Action::Dnat { backends, .. } => {
                !backends.list.iter().any(|backend| backend.state == BackendState::Ready)
            }
            _ => false,
        };
        *rules.entry(rule.id.to_string()).or_insert(false) |= starved;
    }
    let installed = state.kind.is_some();
    let status = |(rule, starved): (String, bool)| RuleStatus {
        rule,
        installed,
        reason: if !installed {
            Some("no_data_path".to_owned())
        } else if starved {
            Some("no_ready_backend".to_owned())
        } else {
            None
        },
    };
    rules.into_iter().map(status).collect()
}
