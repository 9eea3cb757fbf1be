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

/// How many flows may live at once, TCP connections and UDP sessions together, and how many descriptors they may take.
#[derive(Debug, Default)]
pub(super) struct Capacity {
    live: Gauge,
    files: Gauge,
    /// How often a flow had to wait or was refused for want of descriptors.
    exhausted: AtomicU64,
}

#[derive(Debug, Default)]
struct Gauge {
    used: AtomicU32,
    max: AtomicU32,
}

impl Gauge {
    fn take(&self, n: u32) -> bool {
        let max = self.max.load(Relaxed);
        let more = |used: u32| used.checked_add(n).filter(|used| *used <= max);
        self.used.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give(&self, n: u32) {
        self.used.fetch_sub(n, Relaxed);
    }
}

/// Room for one flow, given back on drop.
#[derive(Debug)]
pub(super) struct Permit {
    capacity: Arc<Capacity>,
    files: u32,
}

impl Capacity {
    /// Changes the limits; flows above lowered ones live on.
    pub(super) fn set_max(&self, flows: u32, files: u32) {
        self.live.max.store(flows, Relaxed);
        self.files.max.store(files, Relaxed);
    }

    /// Live flows.
    pub(super) fn live(&self) -> u32 {
        self.live.used.load(Relaxed)
    }

    /// The limit.
    pub(super) fn max(&self) -> u32 {
        self.live.max.load(Relaxed)
    }

    /// Room for a new flow that takes so many descriptors, if there is any.
    pub(super) fn take(self: &Arc<Self>, files: u32) -> Option<Permit> {
        if !self.live.take(1) {
            return None;
        }
        if !self.files.take(files) {
            self.live.give(1);
            if self.exhausted() {
                tracing::warn!("{}", self.shortage().unwrap_or_default());
            }
            return None;
        }
        Some(Permit { capacity: Arc::clone(self), files })
    }

    /// Counts that descriptors were wanting; true the first time, which is worth a line in the log.
    pub(super) fn exhausted(&self) -> bool {
        self.exhausted.fetch_add(1, Relaxed) == 0
    }

    /// What to tell if descriptors have been wanting.
    pub(super) fn shortage(&self) -> Option<String> {
        let times = self.exhausted.load(Relaxed);
        let files = self.files.max.load(Relaxed);
        (times > 0).then(|| {
            format!(
                "descriptors ran out {times} times; flows may take {files} and a TCP connection takes 2: raise the \
                 limit of open files (ulimit -n, LimitNOFILE)"
            )
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.capacity.files.give(self.files);
        self.capacity.live.give(1);
    }
}
