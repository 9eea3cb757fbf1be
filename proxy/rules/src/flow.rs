//! A live flow, independent of the data path that carries it: how flows move from one path to another.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use crate::{Protocol, RuleId, Side};

/// A live flow. Ports are the identifier for ICMP echo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The rule that carries it, where the path knows it.
    pub rule: Option<RuleId>,
    /// Protocol.
    pub protocol: Protocol,
    /// The side of the first packet.
    pub from: Side,
    /// Source of the original direction before translation.
    pub client: SocketAddr,
    /// Destination of the original direction before translation.
    pub frontend: SocketAddr,
    /// Source of the original direction after translation.
    pub source: SocketAddr,
    /// Destination of the original direction after translation.
    pub backend: SocketAddr,
    /// How far it has come.
    pub state: FlowState,
    /// Time since its last packet.
    pub idle: Duration,
}

impl Flow {
    /// Whether the destination is translated.
    pub fn is_dnat(&self) -> bool {
        self.frontend != self.backend
    }

    /// Whether the source is translated.
    pub fn is_snat(&self) -> bool {
        self.client != self.source
    }

    /// The address family, by the client.
    pub fn is_ipv6(&self) -> bool {
        matches!(self.client.ip(), IpAddr::V6(_))
    }
}

/// How far a flow has come. Time-outs are those of the kernel's conntrack
/// (net/netfilter/nf_conntrack_proto_{tcp,udp,icmp}.c, 6.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowState {
    /// TCP: a SYN without answer. 120 s.
    SynSent,
    /// TCP: SYN and SYN-ACK. 60 s.
    SynReceived,
    /// TCP: both sides have acknowledged. 5 days.
    Established,
    /// TCP: one side has sent FIN. 120 s.
    FinWait,
    /// TCP: both sides have sent FIN. 120 s.
    TimeWait,
    /// TCP: reset. 10 s.
    Closed,
    /// UDP or ICMP: one direction only. 30 s.
    Unreplied,
    /// UDP or ICMP: both directions. 120 s UDP, 30 s ICMP.
    Replied,
}

impl FlowState {
    /// How long a flow in this state may be idle.
    pub const fn timeout(self, protocol: Protocol) -> Duration {
        Duration::from_secs(match (self, protocol) {
            (Self::Established, _) => 432_000,
            (Self::SynSent | Self::FinWait | Self::TimeWait, _)
            | (Self::Replied, Protocol::Udp) => 120,
            (Self::SynReceived, _) => 60,
            (Self::Closed, _) => 10,
            (Self::Unreplied | Self::Replied, _) => 30,
        })
    }

    /// Whether it is protected when the table runs full.
    pub const fn is_assured(self) -> bool {
        matches!(self, Self::Established | Self::FinWait | Self::Replied)
    }
}
