//! Counters as the kernel keeps them: one per series, per CPU, summed by the reader.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Index of a [`Counter`] in the counter array. Index 0 is never handed out: it means "not counted".
pub type CounterIndex = u32;

/// Packets, bytes (IP length: header included, no link header) and new flows of one series.
///
/// "Original" is the direction of the flow's first packet, "reply" the other. A packet is counted as seen at
/// the hook before translation; a GSO super-packet is one packet.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Counter {
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
    /// Packets of this series that were dropped, for whatever reason.
    pub dropped: u64,
}
map_type!(Counter, 48);
