//! The express path: a whole TCP or UDP packet of a flow that is known, whose next hop is known, with headers of the usual
//! length. It is tried first, at both hooks; every offset in it is a constant, and nothing is copied.
//!
//! It rewrites, counts and looks after the other half. Whatever opens or closes a flow is left to the engine at the TC hook,
//! as is everything unusual: at the XDP hook by letting the packet pass to it.

use core::mem::MaybeUninit;

use proxy_ebpf_common::{DropReason, FlowKey, FlowKeyV4, Hop, protocol, stance, tcp};

use crate::{
    carry, checksum, count, create,
    maps::{FLOWS_V4, FLOWS_V6, GLOBALS},
    packet::{L4Sums, Packet, at, read_macs},
    parse::{MAPPED, flag, words},
};

const TCP: u8 = protocol::TCP;
const UDP: u8 = protocol::UDP;

/// Carries the packet, or returns [`Packet::LEAVE`] with the packet as it was.
#[inline(always)]
pub(crate) fn run<P: Packet>(packet: &mut P, side: u8) -> i32 {
    // Whatever is carried here is at least this long.
    let Some(start) = at::<[u8; 28], _>(packet, 0) else { return P::LEAVE };
    let ip = start.cast::<u8>();
    // SAFETY: `at` checked the bounds.
    let (v4, v6) = unsafe {
        if P::LINK == 14 {
            let ethernet = start.cast::<u16>();
            // The group bit is the lowest of the first byte.
            if (*ethernet).to_ne_bytes()[0] & 1 != 0 || packet.has_vlan() {
                return P::LEAVE;
            }
            let ethertype = u16::from_be(*ethernet.add(6));
            (ethertype == 0x0800, ethertype == 0x86dd)
        } else {
            (*ip >> 4 == 4, *ip >> 4 == 6)
        }
    };
    // SAFETY: as above.
    let (v4_next, v6_next) = unsafe { (*ip.add(P::LINK + 9), *ip.add(P::LINK + 6)) };
    let context = packet.context();
    match (v4, v6) {
        (true, _) if v4_next == TCP => known::<P, V4, TCP>(context, side),
        (true, _) if v4_next == UDP => known::<P, V4, UDP>(context, side),
        (_, true) if v6_next == TCP => known::<P, V6, TCP>(context, side),
        (_, true) if v6_next == UDP => known::<P, V6, UDP>(context, side),
        _ => P::LEAVE,
    }
}

const V4: bool = false;
const V6: bool = true;

/// The words of the header that are looked at, by place.
mod word {
    pub(super) const V4_LEN: usize = 0;
    pub(super) const V4_FRAGMENT: usize = 1;
    pub(super) const V4_TTL: usize = 2;
    pub(super) const V4_SRC: usize = 3;
    pub(super) const V4_DST: usize = 4;
    pub(super) const V6_LEN_TTL: usize = 1;
    pub(super) const V6_SRC: usize = 2;
    /// From the transport header: data offset and flags.
    pub(super) const TCP_FLAGS: usize = 3;
}

/// A subprogram for each family and protocol, so that every offset in it is a constant.
#[inline(never)]
fn known<P: Packet, const V6: bool, const PROTOCOL: u8>(context: *mut P::Context, side: u8) -> i32 {
    try_known::<P, V6, PROTOCOL>(&mut P::new(context), side).unwrap_or(P::LEAVE)
}

/// Pointer to the IP header, if it and the transport header can be reached in place.
#[inline(always)]
fn headers<P: Packet, const V6: bool, const PROTOCOL: u8>(packet: &P) -> Option<*mut u32> {
    let start = match (V6, PROTOCOL) {
        (false, TCP) => at::<[u32; 10], _>(packet, P::LINK)?.cast(),
        (false, _) => at::<[u32; 7], _>(packet, P::LINK)?.cast(),
        (true, TCP) => at::<[u32; 15], _>(packet, P::LINK)?.cast(),
        (true, _) => at::<[u32; 12], _>(packet, P::LINK)?.cast(),
    };
    Some(start)
}

#[inline(always)]
fn try_known<P: Packet, const V6: bool, const PROTOCOL: u8>(
    packet: &mut P,
    side: u8,
) -> Option<i32> {
    let l4 = if V6 { 10 } else { 5 };
    let least = if V6 { 40 } else { 20 } + if PROTOCOL == TCP { 20 } else { 8 };
    let ip = headers::<P, V6, PROTOCOL>(packet)?;
    // SAFETY: `headers` checked the bounds; unaligned words can be read on the machines that run this.
    let ip_len = unsafe {
        if V6 {
            let [len_high, len_low, _, ttl] = (*ip.add(word::V6_LEN_TTL)).to_ne_bytes();
            if (*ip).to_ne_bytes()[0] >> 4 != 6 || ttl <= 1 {
                return None;
            }
            40 + u32::from(u16::from_be_bytes([len_high, len_low]))
        } else {
            let [version_ihl, _, len_high, len_low] = (*ip.add(word::V4_LEN)).to_ne_bytes();
            let [_, _, offset_high, offset_low] = (*ip.add(word::V4_FRAGMENT)).to_ne_bytes();
            let ttl = (*ip.add(word::V4_TTL)).to_ne_bytes()[0];
            let fragment = u16::from_be_bytes([offset_high & 0x3f, offset_low]);
            if version_ihl != 0x45 || fragment != 0 || ttl <= 1 {
                return None;
            }
            u32::from(u16::from_be_bytes([len_high, len_low]))
        }
    };
    if ip_len < least || ip_len + P::LINK as u32 > packet.len() {
        return None;
    }
    // SAFETY: as above.
    let (ports, word) =
        unsafe { (*ip.add(l4), *ip.add(l4 + word::TCP_FLAGS * usize::from(PROTOCOL == TCP))) };
    if PROTOCOL == TCP {
        let [offset, flags, ..] = word.to_ne_bytes();
        if offset >> 4 < 5 || flags & (flag::FIN | flag::SYN | flag::RST) != 0 {
            return None;
        }
    }
    let kind = (u32::from(PROTOCOL) | u32::from(side) << 8).to_le();
    // SAFETY: as above; both keys are plain words in the order of the headers.
    let flow = unsafe {
        if V6 {
            FLOWS_V6.get_ptr_mut(&key_v6(ip, ports, kind))?
        } else {
            let words = [*ip.add(word::V4_SRC), *ip.add(word::V4_DST), ports, kind];
            FLOWS_V4.get_ptr_mut(&core::mem::transmute::<[u32; 4], FlowKeyV4>(words))?
        }
    };
    // SAFETY: the maps are not preallocated: a value is never another key's.
    let flow = unsafe { &mut *flow };
    let backend = carry::backend(flow)?;
    // Only packets that change nothing but when the flow was last seen.
    if PROTOCOL == TCP && flow.tcp & (tcp::OPEN | tcp::RST) != tcp::OPEN {
        return None;
    }
    let now = create::now();
    let way = carry::way(&flow.hop, flow.flags, backend, now);
    if !way.fresh
        || (way.hop.fresh_until == Hop::NO_HEADER && !P::LEAVES_BARE)
        || (flow.mtu != 0 && ip_len > u32::from(flow.mtu) && !packet.is_gso())
    {
        return None;
    }
    // Not before this packet is sure to be carried here: the engine looks after flows that it sees for the first time in a
    // tick, and only so does a stale hop become fresh again.
    let before = flow.last_seen;
    if before != now {
        flow.last_seen = now;
    }
    if carry::wants_care(before, now) {
        // SAFETY: as above.
        let key = unsafe {
            if V6 {
                key_v6(ip, ports, kind)
            } else {
                key_v4(*ip.add(word::V4_SRC), *ip.add(word::V4_DST), ports, kind)
            }
        };
        let mut peer = Hop { ifindex: packet.ifindex(), ..Hop::default() };
        if P::LINK == 14 {
            // SAFETY: `at` checks the bounds.
            unsafe { read_macs(at(packet, 0)?, &mut peer) };
        }
        carry::care(&key, flow, &peer, now);
    }
    count::carried(flow.counter, flow.flags, ip_len);
    let new_ports = carry::ports(flow.src_port, flow.dst_port);
    // SAFETY: as above.
    let addresses = unsafe {
        if new_ports != ports {
            *ip.add(l4) = new_ports;
        }
        if V6 {
            carry::rewrite_v6(ip.cast(), &words(&flow.src), &words(&flow.dst))
        } else {
            carry::rewrite_v4(ip.cast(), words(&flow.src)[3], words(&flow.dst)[3])
        }
    };
    let rest =
        if new_ports == ports { 0 } else { checksum::fold32(checksum::replace(ports, new_ports)) };
    let ipv6_flag =
        V6 && GLOBALS.get(0).is_some_and(|globals| globals.flags & stance::flags::CSUM_IPV6 != 0);
    let sums = L4Sums { addresses, rest, udp: PROTOCOL == UDP, v6: V6, ipv6_flag };
    let sum = if PROTOCOL == TCP { 16 } else { 6 };
    // Nothing of the packet can be taken back from here on.
    let sent = packet.update_l4(P::LINK + l4 * 4 + sum, &sums);
    let action = if sent { packet.send(way.hop, way.ifindex, V6) } else { None };
    if action.is_none() {
        count::dropped_of(flow.counter);
        count::dropped(DropReason::RewriteFailed as u32);
    }
    Some(action.unwrap_or(P::DROP))
}

/// The tuple of an IPv6 packet.
///
/// # Safety
///
/// `ip` must point to 40 bytes.
#[inline(always)]
unsafe fn key_v6(ip: *const u32, ports: u32, kind: u32) -> FlowKey {
    let mut key = MaybeUninit::<[u32; 10]>::uninit();
    let words = key.as_mut_ptr().cast::<u32>();
    // SAFETY: the caller's promise; all ten words are written, and a key is 40 plain bytes.
    unsafe {
        for index in 0..8 {
            *words.add(index) = *ip.add(word::V6_SRC + index);
        }
        *words.add(8) = ports;
        *words.add(9) = kind;
        core::mem::transmute::<[u32; 10], FlowKey>(key.assume_init())
    }
}

/// The tuple of an IPv4 packet in its long form.
#[inline(always)]
fn key_v4(src: u32, dst: u32, ports: u32, kind: u32) -> FlowKey {
    let words = [0, 0, MAPPED, src, 0, 0, MAPPED, dst, ports, kind];
    // SAFETY: a key is 40 plain bytes.
    unsafe { core::mem::transmute::<[u32; 10], FlowKey>(words) }
}
