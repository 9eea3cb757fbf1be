//! The benchmark's kernel programs: what makes packets, what counts them, and the rungs of the ladder that need a
//! program of their own. Kept apart from the product's programs, so that neither can influence the other.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(
    not(target_arch = "bpf"),
    allow(dead_code, reason = "host builds check and unit-test only")
)]
#![allow(clippy::needless_pass_by_value, reason = "an entry point is given its context by value")]

mod frame;
mod maps;

use aya_ebpf::{
    bindings::xdp_action::{XDP_ABORTED, XDP_DROP},
    helpers::bpf_redirect,
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};

use crate::maps::{CONFIG, Tally, tally};

const TC_ACT_SHOT: i32 = 2;

#[cfg(not(target_arch = "bpf"))]
fn main() {}

/// Makes one frame of the workload and sends it out of the configured device. The whole header is written each
/// time: live frames are recycled with whatever the receiving side left in them.
#[xdp]
fn bench_generate(ctx: XdpContext) -> u32 {
    let Some(config) = CONFIG.get(0) else { return XDP_ABORTED };
    let Some(next) = maps::next_flow(config.flows) else { return XDP_ABORTED };
    match frame::write(&ctx, config, next) {
        Some(()) => redirect(config.ifindex),
        None => XDP_ABORTED,
    }
}

/// Counts and drops: the sink of every rung, and at the router the ceiling of the ladder. With a number of flows in
/// its configuration it first proves each frame: addresses, TTL and both checksums computed in full.
#[xdp]
fn bench_sink(ctx: XdpContext) -> u32 {
    let Some(config) = CONFIG.get(0) else { return XDP_ABORTED };
    tally(Tally::PACKETS, 1);
    if config.flows > 0 && !frame::is_right(&ctx, config) {
        tally(Tally::WRONG, 1);
    }
    XDP_DROP
}

/// The least that a forwarder must do: new Ethernet addresses, out of the other device.
#[xdp]
fn bench_redirect(ctx: XdpContext) -> u32 {
    let Some(config) = CONFIG.get(0) else { return XDP_ABORTED };
    match frame::write_macs(&ctx, config) {
        Some(()) => redirect(config.ifindex),
        None => XDP_ABORTED,
    }
}

/// The sink of the TUN rig, where packets are socket buffers and may be GSO super-packets.
#[classifier]
fn bench_tc_sink(ctx: TcContext) -> i32 {
    tally(Tally::PACKETS, 1);
    tally(Tally::BYTES, u64::from(ctx.len()));
    TC_ACT_SHOT
}

fn redirect(ifindex: u32) -> u32 {
    // SAFETY: a helper call with plain numbers.
    unsafe { bpf_redirect(ifindex, 0) as u32 }
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
