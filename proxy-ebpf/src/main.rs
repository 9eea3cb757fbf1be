//! Entry points of the kernel programs.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(
    not(target_arch = "bpf"),
    allow(dead_code, reason = "host builds check and unit-test only")
)]

mod maps;

use aya_ebpf::{
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[classifier]
fn sl_tc_l2_tn(_ctx: TcContext) -> i32 {
    0
}

#[classifier]
fn sl_tc_l2_cl(_ctx: TcContext) -> i32 {
    0
}

#[classifier]
fn sl_tc_l3_tn(_ctx: TcContext) -> i32 {
    0
}

#[classifier]
fn sl_tc_l3_cl(_ctx: TcContext) -> i32 {
    0
}

#[xdp]
fn sl_xdp_tn(_ctx: XdpContext) -> u32 {
    2
}

#[xdp]
fn sl_xdp_cl(_ctx: XdpContext) -> u32 {
    2
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
