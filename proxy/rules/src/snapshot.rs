//! Counters at one moment, independent of the data path that counted.

use std::collections::BTreeMap;

use crate::{DropReason, Protocol, Rule, RuleId, Side};

/// What one counter is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Series {
    /// The rule.
    pub rule: RuleId,
    /// The side that its flows start from.
    pub from: Side,
    /// The protocol; `None` for rules on every protocol.
    pub protocol: Option<Protocol>,
    /// First port of the rule's range (or the port itself where each is counted); `None` = any port.
    pub port: Option<u16>,
    /// Last port, where the series covers a range.
    pub last_port: Option<u16>,
}

impl Series {
    /// The series of a rule; of one port of it, where each is counted by itself.
    pub fn of(rule: &Rule, port: Option<u16>) -> Self {
        let ports = rule.matches.ports;
        let named = !ports.is_any();
        Self {
            rule: rule.id.clone(),
            from: rule.from,
            protocol: rule.matches.protocol,
            port: port.or(named.then_some(ports.first())),
            last_port: (port.is_none() && named && !ports.is_single()).then_some(ports.last()),
        }
    }
}

/// What was counted. "Original" is the direction of the flow's first packet. Packets are as seen at the hook (a GSO
/// super-packet is one), bytes are IP length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets in the original direction.
    pub original_packets: u64,
    /// Bytes in the original direction.
    pub original_bytes: u64,
    /// Packets in the reply direction.
    pub reply_packets: u64,
    /// Bytes in the reply direction.
    pub reply_bytes: u64,
    /// Flows created.
    pub flows: u64,
    /// Packets of the series that were dropped.
    pub dropped: u64,
}

impl Count {
    fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            original_packets: f(self.original_packets, other.original_packets),
            original_bytes: f(self.original_bytes, other.original_bytes),
            reply_packets: f(self.reply_packets, other.reply_packets),
            reply_bytes: f(self.reply_bytes, other.reply_bytes),
            flows: f(self.flows, other.flows),
            dropped: f(self.dropped, other.dropped),
        }
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, u64::wrapping_add)
    }

    /// The growth since an earlier count; a counter that went back counts as zero growth.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }
}

/// Every counter of one data path at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// By series.
    pub series: BTreeMap<Series, Count>,
    /// Dropped packets by reason, whatever the rule.
    pub drops: BTreeMap<DropReason, u64>,
    /// Live flows now, where the path knows.
    pub live_flows: Option<u64>,
    /// Capacity of the flow table for each family, where there is one.
    pub max_flows: Option<u64>,
}

impl Snapshot {
    /// The sum by series and reason; gauges are `other`'s. For counters that outlive a data path.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        for (series, count) in &other.series {
            let sum = self.series.entry(series.clone()).or_default();
            *sum = sum.plus(*count);
        }
        for (reason, packets) in &other.drops {
            *self.drops.entry(*reason).or_default() += packets;
        }
        Self { live_flows: other.live_flows, max_flows: other.max_flows, ..self }
    }
}
