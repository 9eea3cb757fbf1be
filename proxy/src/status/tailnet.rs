//! What `/v1/status` says of a pod on a tailnet.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};

/// The node and tailscaled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TailnetStatus {
    /// The state of tailscaled: `Running`, `NeedsLogin`; none before it has told.
    pub state: Option<String>,
    /// Whether tailscaled answers now. What follows is what it said last.
    pub connected: bool,
    /// How often tailscaled ended unexpectedly and was started again.
    pub restarts: u64,
    /// Why there is no TUN device, if user-space networking was not asked for.
    pub tun: Option<String>,
    /// Stable identifier of the node.
    pub id: Option<String>,
    /// Fully qualified name of the node.
    pub name: Option<String>,
    /// What is the matter with its name.
    pub name_conflict: Option<String>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// How many peers it sees.
    pub peers: usize,
    /// The routes that it advertises.
    pub routes: Vec<String>,
    /// The Tailscale Services that it says it serves.
    pub services: Vec<String>,
    /// The name that its HTTPS certificate is for, if the tailnet gives any.
    pub https_endpoint: Option<String>,
    /// What tailscaled warns of, by code.
    pub warnings: BTreeMap<String, String>,
    /// What is wrong with files of the configuration.
    pub config_errors: Vec<String>,
    /// Certificates of what is served over TLS.
    pub certificates: Vec<CertificateStatus>,
    /// Why the state Secret is not up to date.
    pub secret_error: Option<String>,
}

/// Where an entry's traffic is to go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetStatus {
    /// The entry's name: the `rule` of its counters.
    pub rule: String,
    /// As configured: an address, a name, a prefix.
    pub target: String,
    /// What it stands for now.
    pub addresses: Vec<IpAddr>,
    /// Whether rules for it are in force.
    pub installed: bool,
    /// Why not, or not whole: a stable word.
    pub reason: Option<String>,
    /// Why not, or not whole, and what would help.
    pub message: Option<String>,
}

/// A certificate of what is served over TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CertificateStatus {
    /// The name that it is for.
    pub name: String,
    /// Whether there is a valid one.
    pub ready: bool,
    /// Why there is none: a stable word.
    pub reason: Option<String>,
    /// Why there is none, and what happens next.
    pub message: Option<String>,
}
