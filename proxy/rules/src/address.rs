//! Sides, protocols and port ranges.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a packet came from.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The tailnet: the TUN device.
    Tailnet,
    /// The cluster (or, for a host-network connector, the local network): the Ethernet device.
    Cluster,
}

impl Side {
    /// The opposite side.
    pub const fn other(self) -> Self {
        match self {
            Self::Tailnet => Self::Cluster,
            Self::Cluster => Self::Tailnet,
        }
    }

    /// Label of metrics and reports.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Tailnet => "tailnet",
            Self::Cluster => "cluster",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// A transport protocol that rules can name.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP echo on IPv4 addresses, ICMPv6 echo on IPv6 addresses. Has no ports.
    Icmp,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Icmp];

    /// Label of metrics and reports.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        }
    }

    /// The number that map keys use (ICMPv6 has ICMP's).
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => proxy_ebpf_common::protocol::TCP,
            Self::Udp => proxy_ebpf_common::protocol::UDP,
            Self::Icmp => proxy_ebpf_common::protocol::ICMP,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// An inclusive range of ports. `ANY` also matches packets without ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Every port, and packets without ports.
    pub const ANY: Self = Self { first: 0, last: u16::MAX };

    /// The range, unless it is empty or contains port 0.
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first == 0 || first > last { None } else { Some(Self { first, last }) }
    }

    /// One port, unless it is 0.
    pub const fn single(port: u16) -> Option<Self> {
        Self::new(port, port)
    }

    /// First port.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// Last port.
    pub const fn last(self) -> u16 {
        self.last
    }

    /// Whether it names exactly one port.
    pub const fn is_single(self) -> bool {
        self.first == self.last
    }

    /// Whether it is `ANY`.
    pub const fn is_any(self) -> bool {
        self.first == 0
    }

    /// Number of ports.
    pub const fn count(self) -> u32 {
        self.last as u32 - self.first as u32 + 1
    }

    /// Whether the port lies in the range.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Whether the two ranges share a port.
    pub const fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_any(), self.is_single()) {
            (true, _) => f.pad("any"),
            (_, true) => write!(f, "{}", self.first),
            _ => write!(f, "{}-{}", self.first, self.last),
        }
    }
}
