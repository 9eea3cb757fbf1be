//! What was measured, in a form for tables, plots and JSON alike.

use clap::ValueEnum;
use serde::Serialize;

use crate::{rung::Rung, stats};

/// What a number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Nanoseconds for a 60-byte UDP frame.
    Packet,
    /// Nanoseconds for a 46-byte UDP packet written to a TUN device.
    TunUdp,
    /// Nanoseconds for a TCP super-packet of 16 KiB written to a TUN device.
    TunTcpGso,
    /// Nanoseconds for a UDP super-packet of 6000 bytes written to a TUN device.
    TunUdpUso,
    /// One TCP stream, Gbit/s.
    TcpStream,
    /// Transactions a second on one connection.
    TcpRr,
    /// The same, microseconds that half of the transactions stay under.
    TcpRrP50,
    /// 99 of 100.
    TcpRrP99,
    /// 999 of 1000.
    TcpRrP999,
    /// Connections a second, one request each.
    TcpCrr,
    /// The same, microseconds that half of the connections stay under.
    TcpCrrP50,
    /// 99 of 100.
    TcpCrrP99,
    /// 999 of 1000.
    TcpCrrP999,
    /// Milliseconds until a table is in force, from an empty one.
    ApplyCold,
    /// Milliseconds until one changed backend is in force.
    ApplyChange,
}

impl Measure {
    /// What its numbers are.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Packet | Self::TunUdp | Self::TunTcpGso | Self::TunUdpUso => "ns",
            Self::TcpStream => "Gbit/s",
            Self::TcpRr | Self::TcpCrr => "/s",
            Self::TcpRrP50
            | Self::TcpRrP99
            | Self::TcpRrP999
            | Self::TcpCrrP50
            | Self::TcpCrrP99
            | Self::TcpCrrP999 => "us",
            Self::ApplyCold | Self::ApplyChange => "ms",
        }
    }

    /// What people call it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Packet => "UDP 60 B, per packet",
            Self::TunUdp => "TUN, UDP 46 B, per packet",
            Self::TunTcpGso => "TUN, TCP GSO 16 KiB, per super-packet",
            Self::TunUdpUso => "TUN, UDP USO 6000 B, per super-packet",
            Self::TcpStream => "TCP, one stream",
            Self::TcpRr => "TCP request-response",
            Self::TcpRrP50 => "TCP request-response, p50",
            Self::TcpRrP99 => "TCP request-response, p99",
            Self::TcpRrP999 => "TCP request-response, p99.9",
            Self::TcpCrr => "TCP connect-request-response",
            Self::TcpCrrP50 => "TCP connect-request-response, p50",
            Self::TcpCrrP99 => "TCP connect-request-response, p99",
            Self::TcpCrrP999 => "TCP connect-request-response, p99.9",
            Self::ApplyCold => "apply, from empty",
            Self::ApplyChange => "apply, one backend changed",
        }
    }
}

/// One rung with one workload.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    pub measure: Measure,
    pub rung: Rung,
    pub flows: u32,
    pub ports: u16,
    /// One number a round.
    pub values: Vec<f64>,
    /// Packets sent, and of these lost, over all rounds.
    pub sent: u64,
    pub lost: u64,
    /// Packets that arrived with a wrong header, checksum or length, of those that were looked at.
    pub wrong: u64,
    pub verified: u64,
    /// Packets that the path's own counters saw, beside `sent`; ours only.
    pub counted: Option<u64>,
}

impl Series {
    /// Without numbers yet.
    pub const fn new(measure: Measure, rung: Rung, flows: u32, ports: u16) -> Self {
        Self {
            measure,
            rung,
            flows,
            ports,
            values: Vec::new(),
            sent: 0,
            lost: 0,
            wrong: 0,
            verified: 0,
            counted: None,
        }
    }

    /// The median.
    pub fn median(&self) -> Option<f64> {
        stats::quantile(&self.values, 0.5)
    }
}
