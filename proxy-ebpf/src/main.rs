//! The kernel programs: entry points only. The programs keep no policy; they look up what the rule table says.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(
    not(target_arch = "bpf"),
    allow(dead_code, reason = "host builds check and unit-test only")
)]
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "a key passed by value is copied to a stack of 512 bytes"
)]
#![expect(
    clippy::cast_ptr_alignment,
    reason = "addresses and ports are aligned by the types they stand in, which the compiler does not see"
)]
#![expect(clippy::verbose_bit_mask, reason = "masks are written as the RFCs write them")]
#![expect(
    clippy::inline_always,
    reason = "one function a program: calls cost, and the verifier follows inlined code best"
)]
#![expect(clippy::needless_pass_by_value, reason = "the entry point macros pass the context so")]
#![expect(
    clippy::indexing_slicing,
    reason = "indices are constants within arrays; a panic cannot be reached"
)]

mod answer;
mod carry;
mod checksum;
mod count;
mod create;
mod express;
mod flows;
mod icmp;
mod maps;
mod mss;
mod packet;
mod parse;
mod policy;
mod socket;
mod tc;
mod verdict;

use aya_ebpf::{
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};
use packet::{Packet as _, Xdp};
use proxy_ebpf_common::side;

#[cfg(not(target_arch = "bpf"))]
fn main() {}

/// TC ingress of an Ethernet device on the tailnet side.
#[classifier]
fn sl_tc_l2_tn(ctx: TcContext) -> i32 {
    tc::run::<14>(ctx.skb.skb, side::TAILNET)
}

/// TC ingress of an Ethernet device on the cluster side.
#[classifier]
fn sl_tc_l2_cl(ctx: TcContext) -> i32 {
    tc::run::<14>(ctx.skb.skb, side::CLUSTER)
}

/// TC ingress of a device without link header on the tailnet side.
#[classifier]
fn sl_tc_l3_tn(ctx: TcContext) -> i32 {
    tc::run::<0>(ctx.skb.skb, side::TAILNET)
}

/// TC ingress of a device without link header on the cluster side.
#[classifier]
fn sl_tc_l3_cl(ctx: TcContext) -> i32 {
    tc::run::<0>(ctx.skb.skb, side::CLUSTER)
}

/// XDP on an Ethernet device on the tailnet side.
#[xdp]
fn sl_xdp_tn(ctx: XdpContext) -> u32 {
    express::run(&mut Xdp::new(ctx.ctx), side::TAILNET) as u32
}

/// XDP on an Ethernet device on the cluster side.
#[xdp]
fn sl_xdp_cl(ctx: XdpContext) -> u32 {
    express::run(&mut Xdp::new(ctx.ctx), side::CLUSTER) as u32
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
