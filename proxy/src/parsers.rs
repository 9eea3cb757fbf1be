//! The readers of what the kernel and its tools say, fed with bytes instead: for fuzzing. Each is the one that the process
//! itself uses.

use crate::{
    conntrack,
    data_path::{
        ebpf::neigh,
        nftables::counters,
        userspace::{client_header, socks, step::Step},
    },
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

/// Reads what tailscaled says before a connection that it forwards: how many bytes it would take more, or whether it is a
/// client's address.
pub fn client_header(bytes: &[u8]) -> Result<bool, usize> {
    told(&client_header::client(bytes))
}

/// The same of what a SOCKS5 server answers.
pub fn socks_answer(bytes: &[u8]) -> Result<bool, usize> {
    told(&socks::answer(bytes))
}

fn told<T>(step: &Step<T>) -> Result<bool, usize> {
    match step {
        Step::More(more) => Err(*more),
        Step::Done(_) => Ok(true),
        Step::Bad(_) => Ok(false),
    }
}

/// Reads a datagram of a SOCKS5 server; the length of its payload.
pub fn socks_datagram(bytes: &[u8]) -> Option<usize> {
    socks::datagram(bytes).map(|(_, payload)| payload.len())
}
