//! What was measured.

use serde::Serialize;

use super::way::{Role, Way};

/// What a number says. `Cpu` is processor time for each gigabyte (10^9 bytes) that the stream or streams carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    Stream1,
    Stream8,
    Cpu1Tailscaled,
    Cpu1Agent,
    Cpu1Machine,
    Cpu8Tailscaled,
    Cpu8Agent,
    Cpu8Machine,
    /// Of 200-byte datagrams at a steady pace.
    UdpLost,
    /// Datagrams of 1200 bytes that arrive while the sender sends as it can.
    UdpFlood,
    Rr,
    RrP50,
    RrP99,
    Crr,
    CrrP50,
    CrrP99,
    MemoryAgent,
    MemoryTailscaled,
    /// From the process's start to the first byte through it.
    Start,
}

impl Measure {
    /// All, as tables have them.
    pub const ALL: [Self; 19] = [
        Self::Stream1,
        Self::Stream8,
        Self::Cpu1Tailscaled,
        Self::Cpu1Agent,
        Self::Cpu1Machine,
        Self::Cpu8Tailscaled,
        Self::Cpu8Agent,
        Self::Cpu8Machine,
        Self::UdpLost,
        Self::UdpFlood,
        Self::Rr,
        Self::RrP50,
        Self::RrP99,
        Self::Crr,
        Self::CrrP50,
        Self::CrrP99,
        Self::MemoryAgent,
        Self::MemoryTailscaled,
        Self::Start,
    ];

    /// What people call it, with its unit.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Stream1 => "TCP, 1 stream, Gbit/s",
            Self::Stream8 => "TCP, 8 streams, Gbit/s",
            Self::Cpu1Tailscaled => "1 stream: tailscaled, CPU s/GB",
            Self::Cpu1Agent => "1 stream: agent, CPU s/GB",
            Self::Cpu1Machine => "1 stream: machine, CPU s/GB",
            Self::Cpu8Tailscaled => "8 streams: tailscaled, CPU s/GB",
            Self::Cpu8Agent => "8 streams: agent, CPU s/GB",
            Self::Cpu8Machine => "8 streams: machine, CPU s/GB",
            Self::UdpLost => "UDP 200 B at 20 000/s, lost %",
            Self::UdpFlood => "UDP 1200 B flood, arrived /s",
            Self::Rr => "request-response, /s",
            Self::RrP50 => "request-response, p50 us",
            Self::RrP99 => "request-response, p99 us",
            Self::Crr => "connect-request-response, /s",
            Self::CrrP50 => "connect-request-response, p50 us",
            Self::CrrP99 => "connect-request-response, p99 us",
            Self::MemoryAgent => "agent, resident MB",
            Self::MemoryTailscaled => "tailscaled, resident MB",
            Self::Start => "start to first byte, ms",
        }
    }

    /// Digits behind the point that mean something.
    pub const fn digits(self) -> usize {
        match self {
            Self::Stream1
            | Self::Stream8
            | Self::Cpu1Tailscaled
            | Self::Cpu1Machine
            | Self::Cpu8Tailscaled
            | Self::Cpu8Machine
            | Self::UdpLost => 2,
            Self::Cpu1Agent | Self::Cpu8Agent => 4,
            Self::MemoryAgent | Self::MemoryTailscaled => 1,
            _ => 0,
        }
    }
}

/// One number a round, of one way in one role.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    pub measure: Measure,
    pub way: Way,
    pub role: Option<Role>,
    pub values: Vec<f64>,
}
