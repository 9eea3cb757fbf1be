//! What is told of traffic: `/v1/counters`, and what `top` reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Parent;

/// All that proxies were made for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reports {
    /// In order of kind, namespace and name.
    pub parents: Vec<Report>,
}

/// What the proxies of one object have carried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The object.
    #[serde(flatten)]
    pub parent: Parent,
    /// `ebpf`, `nftables` or `userspace`; `mixed` where replicas differ, and nothing while none has told.
    pub mode: Option<String>,
    /// Why no better one.
    pub reason: Option<String>,
    /// Content hash of the rules that all replicas have in force.
    pub generation: Option<String>,
    /// The replicas.
    pub pods: Vec<PodReport>,
    /// Sums over the replicas, those that are gone too.
    pub ports: Vec<Port>,
    /// Packets that were dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Where traffic goes, and whether it can.
    pub targets: Vec<Target>,
}

/// A replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodReport {
    /// Its pod's name.
    pub name: String,
    /// Whether it carries traffic as configured.
    pub ready: bool,
    /// Its data path.
    pub mode: Option<String>,
    /// Why it was not read the last time.
    pub error: Option<String>,
}

/// The traffic of a port. Bytes are lengths of IP packets; `original` is the direction of a flow's first packet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// The rule that carries it.
    pub rule: String,
    /// The side that flows start from.
    pub from: String,
    /// The protocol, or `any`.
    pub protocol: String,
    /// The port, a range `first-last`, or `any`.
    pub port: String,
    /// Packets in the original direction.
    pub original_packets: u64,
    /// Bytes in the original direction.
    pub original_bytes: u64,
    /// Packets of replies.
    pub reply_packets: u64,
    /// Bytes of replies.
    pub reply_bytes: u64,
    /// Flows begun.
    pub flows: u64,
    /// Packets dropped.
    pub dropped: u64,
}

/// Where traffic goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// As configured.
    pub target: String,
    /// Whether all replicas have rules for it in force.
    pub ready: bool,
    /// Why not, in one word.
    pub reason: Option<String>,
    /// Why not, and what to do.
    pub message: Option<String>,
}
