//! One rule: what matches, and what happens.

use std::{fmt, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use proxy_ebpf_common::DropReason;

use crate::{PortRange, Protocol, Side};

/// Name of a rule, from the configuration. Several rules may share it (one entry with several ports or both
/// address families): their counters are added up by protocol and port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(Arc<str>);

impl RuleId {
    /// A rule id.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One rule of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name; also the name of its counters.
    pub id: RuleId,
    /// Which side the flow's first packet comes from.
    pub from: Side,
    /// What matches.
    pub matches: Match,
    /// What happens.
    pub action: Action,
    /// Count each port of a range by itself (at most 4096 ports a rule).
    pub count_per_port: bool,
}

impl Rule {
    /// Whether each port of its range is a series of its own.
    pub const fn counts_each_port(&self) -> bool {
        self.count_per_port && !self.matches.ports.is_any() && !self.matches.ports.is_single()
    }
}

/// Conditions on a flow's first packet; all must hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Match {
    /// The protocol; `None` = any of TCP, UDP and ICMP echo.
    pub protocol: Option<Protocol>,
    /// Destination address.
    pub dst: IpNet,
    /// Destination port; anything but `ANY` needs a protocol with ports.
    pub ports: PortRange,
    /// Source address, one of these; empty = any.
    pub src: Vec<IpNet>,
}

/// What happens to a flow that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The destination becomes a backend; the packet leaves by the other side.
    Dnat {
        /// Where to.
        backends: Backends,
        /// What becomes of the source.
        snat: Snat,
        /// Begin the connection to the backend with a PROXY protocol version 2 header (user space only, TCP).
        proxy_protocol: bool,
    },
    /// The destination stays: subnet route, exit node.
    Forward {
        /// The side it leaves by.
        to: Side,
        /// What becomes of the source.
        snat: Snat,
    },
    /// Refused, and the sender told: TCP reset, else ICMP port unreachable.
    Reject,
    /// Dropped in silence.
    Drop(DropReason),
}

/// What becomes of the source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Snat {
    /// It stays.
    Keep,
    /// The own address of the link that the packet leaves by.
    Masquerade,
    /// This address.
    To(IpAddr),
}

/// The backends of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backends {
    /// In canonical order (address, port).
    pub list: Vec<Backend>,
    /// What a client's flows have in common.
    pub affinity: Affinity,
}

/// One backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// Address, of the frontend's family.
    pub address: IpAddr,
    /// Port; `None` = the frontend's.
    pub port: Option<u16>,
    /// Share of new flows relative to the others, 1 to 100.
    pub weight: u16,
    /// Whether it takes new flows.
    pub state: BackendState,
}

/// Whether a backend takes new flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackendState {
    /// It does.
    Ready,
    /// It keeps the flows it has.
    Draining,
}

/// What decides the backend of a new flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Affinity {
    /// The whole tuple.
    Flow,
    /// The client's address alone: all its flows go to one backend.
    ClientIp,
}
