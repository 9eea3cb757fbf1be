//! Counters and the flow limit.
//!
//! What is counted differs from the other paths where sockets do not show packets: of TCP, a read that returned data
//! is a packet, and its payload the bytes. A datagram is a packet, with the length of the IP packet that carried it.

use std::{
    array,
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use proxy_rules::{Count, DropReason, Series};

/// A direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the client.
    Original,
    /// From the backend.
    Reply,
}

/// The counter of one series.
#[derive(Debug, Default)]
pub(super) struct Tally {
    original: PerDirection,
    reply: PerDirection,
    flows: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct PerDirection {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    /// A packet.
    pub(super) fn packet(&self, direction: Direction, bytes: u64) {
        let counter = match direction {
            Direction::Original => &self.original,
            Direction::Reply => &self.reply,
        };
        counter.packets.fetch_add(1, Relaxed);
        counter.bytes.fetch_add(bytes, Relaxed);
    }

    /// A new flow.
    pub(super) fn flow(&self) {
        self.flows.fetch_add(1, Relaxed);
    }

    /// What has been counted.
    pub(super) fn count(&self) -> Count {
        Count {
            original_packets: self.original.packets.load(Relaxed),
            original_bytes: self.original.bytes.load(Relaxed),
            reply_packets: self.reply.packets.load(Relaxed),
            reply_bytes: self.reply.bytes.load(Relaxed),
            flows: self.flows.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
        }
    }
}

/// Every counter of the path. A series is kept when its rule goes, so that it never runs backwards if the rule comes
/// back.
#[derive(Debug)]
pub(super) struct Counters {
    series: Mutex<BTreeMap<Series, Arc<Tally>>>,
    drops: [AtomicU64; DropReason::SLOTS as usize],
}

impl Default for Counters {
    fn default() -> Self {
        Self { series: Mutex::default(), drops: array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Counters {
    /// The counter of a series.
    pub(super) fn tally(&self, series: &Series) -> Arc<Tally> {
        let mut all = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(series.clone()).or_default())
    }

    /// A connection or datagram that was turned away.
    pub(super) fn dropped(&self, reason: DropReason, tally: Option<&Arc<Tally>>) {
        if let Some(slot) = self.drops.get(reason as usize) {
            slot.fetch_add(1, Relaxed);
        }
        if let Some(tally) = tally {
            tally.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Dropped packets by reason.
    pub(super) fn drops(&self) -> BTreeMap<DropReason, u64> {
        let count = |reason: &DropReason| {
            let packets = self.drops.get(*reason as usize)?.load(Relaxed);
            (packets > 0).then_some((*reason, packets))
        };
        DropReason::ALL.iter().filter_map(count).collect()
    }
}

/// How many flows may live at once, TCP connections and UDP sessions together.
#[derive(Debug, Default)]
pub(super) struct Capacity {
    live: AtomicU32,
    max: AtomicU32,
}

/// Room for one flow, given back on drop.
#[derive(Debug)]
pub(super) struct Permit(Arc<Capacity>);

impl Capacity {
    /// Changes the limit; flows above a lowered one live on.
    pub(super) fn set_max(&self, max: u32) {
        self.max.store(max, Relaxed);
    }

    /// Live flows.
    pub(super) fn live(&self) -> u32 {
        self.live.load(Relaxed)
    }

    /// The limit.
    pub(super) fn max(&self) -> u32 {
        self.max.load(Relaxed)
    }

    /// Room for a new flow, if there is any.
    pub(super) fn take(self: &Arc<Self>) -> Option<Permit> {
        let max = self.max.load(Relaxed);
        self.live.fetch_update(Relaxed, Relaxed, |live| (live < max).then_some(live + 1)).ok()?;
        Some(Permit(Arc::clone(self)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Relaxed);
    }
}
