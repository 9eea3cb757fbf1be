//! The readers of what the kernel and its tools say, fed with bytes instead: for fuzzing. Each is the one that the process
//! itself uses.

use crate::{
    conntrack,
    data_path::{ebpf::neigh, nftables::counters},
};

/// Reads a datagram of ctnetlink; how many messages it holds, if it can be read.
pub fn conntrack(datagram: &[u8]) -> Option<usize> {
    let entries = conntrack::entries(datagram).ok()?;
    // What the states of an entry stand for is read later than the entry.
    let _states = entries.iter().flatten().map(conntrack::Entry::state).count();
    Some(entries.len())
}

/// Reads a datagram of rtnetlink; how many messages it holds, if it can be read.
pub fn route(datagram: &[u8]) -> Option<usize> {
    neigh::messages(datagram).ok().map(|messages| messages.len())
}

/// Reads the table's sets and counters as `nft -j list` prints them; whether they can be read.
pub fn nft(sets: &str, counters: &str) -> bool {
    counters::parse(sets, counters).is_ok()
}
