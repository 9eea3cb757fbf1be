//! The engine at the XDP hook: packets of known flows between Ethernet devices whose next hop is known. Everything else
//! goes on to the TC program on the same device, which can resolve neighbours, resize packets and make flows.

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::{
        xdp_action::{XDP_PASS, XDP_REDIRECT},
        xdp_md,
    },
    helpers::generated::bpf_redirect,
};
use proxy_ebpf_common::Hop;

use crate::{
    carry::{self, Life},
    create,
    maps::FLOWS,
    packet::{Packet, Xdp, at},
    parse::{self, Headers, flag, fragment, kind},
    tc::{read_macs, write_macs},
    verdict::Verdict,
};

/// Carries one packet: the body of every XDP entry point. Only headers of the usual length are dealt with here, each family
/// by a program of its own, so that every offset is a constant.
#[inline(always)]
pub(crate) fn run(ctx: *mut xdp_md, side: u8) -> u32 {
    let Some(ethernet) = at::<[u16; 7], _>(&Xdp::<0> { ctx }, 0) else { return XDP_PASS };
    // SAFETY: `at` checked the bounds.
    match u16::from_be(unsafe { (*ethernet)[6] }) {
        0x0800 => known::<34>(ctx, side),
        0x86dd => known::<54>(ctx, side),
        _ => XDP_PASS,
    }
}

#[inline(never)]
fn known<const L4: usize>(ctx: *mut xdp_md, side: u8) -> u32 {
    carry_known(&mut Xdp::<L4> { ctx }, side).unwrap_or(XDP_PASS)
}

#[inline(always)]
fn carry_known<const L4: usize>(packet: &mut Xdp<L4>, side: u8) -> Option<u32> {
    let mut h = MaybeUninit::<Headers>::uninit();
    Headers::clear(h.as_mut_ptr());
    // SAFETY: all zero is valid.
    let h = unsafe { h.assume_init_mut() };
    parse::parse(packet, side, h).ok()?;
    if h.kind > kind::UDP
        || h.l4 != L4 as u32
        || h.fragment != fragment::NONE
        || h.tcp & (flag::SYN | flag::RST) != 0
    {
        return None;
    }
    let flow = FLOWS.get_ptr_mut(&h.key)?;
    // SAFETY: the map is not preallocated: a value is never another key's.
    let flow = unsafe { &mut *flow };
    let backend = carry::backend(flow)?;
    let now = create::now();
    let (hop, fresh) = carry::hop(flow, backend, now);
    if !fresh
        || hop.fresh_until == Hop::NO_HEADER
        || carry::life(h, flow, Some(backend)) != Life::Alive
        || carry::check(packet, h, flow) != Verdict::CARRY
    {
        return None;
    }
    let ifindex = hop.ifindex;
    if carry::note(h, flow, now) {
        let ethernet = at::<[u16; 7], _>(packet, 0)?;
        let mut peer =
            Hop { dmac: [0; 6], smac: [0; 6], ifindex: packet.ifindex(), fresh_until: 0 };
        // SAFETY: `at` checked the bounds.
        unsafe { read_macs(ethernet, &mut peer) };
        carry::care(&h.key, flow, &peer, now);
    }
    let (hop, _) = carry::hop(flow, backend, now);
    let ethernet = at::<[u16; 7], _>(packet, 0)?;
    // SAFETY: `at` checked the bounds.
    unsafe { write_macs(ethernet, hop) };
    if !carry::rewrite(packet, h, flow) {
        return Some(aya_ebpf::bindings::xdp_action::XDP_DROP);
    }
    // SAFETY: the kernel checks the ifindex.
    let _queued = unsafe { bpf_redirect(ifindex, 0) };
    Some(XDP_REDIRECT)
}
