//! Configuration and counters. `benches::kernel` has the user side of both layouts.

use aya_ebpf::{
    macros::map,
    maps::{Array, PerCpuArray},
};

/// What the programs of one instance do. Addresses, ports and Ethernet addresses are in network order.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Config {
    /// Ethernet, IPv4 and UDP header; the generator adds source address and ports, and fixes the sums.
    pub(crate) header: [u8; 42],
    /// Always zero.
    pub(crate) reserved: u16,
    /// Number of flows.
    pub(crate) flows: u32,
    /// Number of destination ports, used in turn by the flows.
    pub(crate) ports: u32,
    /// The device to send out of.
    pub(crate) ifindex: u32,
    /// IPv4 header sum of the template, without the low half of the source address, folded.
    pub(crate) ip_sum: u32,
    /// UDP sum of the template with pseudo-header, without what varies, folded.
    pub(crate) udp_sum: u32,
}

/// Slots of `TALLY`.
pub(crate) struct Tally;

impl Tally {
    pub(crate) const PACKETS: u32 = 0;
    pub(crate) const BYTES: u32 = 1;
    pub(crate) const WRONG: u32 = 2;
}

#[map(name = "bench_config")]
pub(crate) static CONFIG: Array<Config> = Array::with_max_entries(1, 0);
#[map(name = "bench_next")]
static NEXT: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);
#[map(name = "bench_tally")]
static TALLY: PerCpuArray<u64> = PerCpuArray::with_max_entries(3, 0);

/// Adds to one of this CPU's counters.
pub(crate) fn tally(slot: u32, amount: u64) {
    if let Some(counter) = TALLY.get_ptr_mut(slot) {
        // SAFETY: a per-CPU slot; the program runs to its end on this CPU.
        unsafe { *counter += amount };
    }
}

/// The flow of the next frame: 0, 1, .. `flows` - 1, 0, ..
pub(crate) fn next_flow(flows: u32) -> Option<u32> {
    let next = NEXT.get_ptr_mut(0)?;
    // SAFETY: a per-CPU slot; the program runs to its end on this CPU.
    unsafe {
        let flow = if *next < flows { *next } else { 0 };
        *next = flow + 1;
        Some(flow)
    }
}
