//! A packet of a known flow: checks, rewriting, state.

use proxy_ebpf_common::{
    Address, DropReason, FlowHalf, FlowKey, Hop, Target, half, link, stance, tcp,
};

use crate::{
    checksum, count, flows,
    maps::{GLOBALS, LINKS, SCRATCH, TARGETS},
    packet::{L4Sums, Packet as _, Tc, at, store},
    parse::{Headers, flag, fragment, kind, words},
    verdict::Verdict,
};

/// How often, in ticks, each direction of a busy flow looks after the other: a power of two.
const CARE_EVERY: u32 = 4;
/// How long a peer's Ethernet addresses, learned from its own packets, are trusted: ticks. Two turns of care may pass
/// without a packet just then.
pub(crate) const LEARNED_FOR: u32 = 10;

/// What has become of a flow that a packet has hit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Its backend serves on.
    Alive,
    /// Its backend or rule is gone.
    Gone,
    /// It is over, and this packet opens a new one.
    Over,
}

/// The flow's backend, if it is still the one the flow was made for.
#[inline(always)]
pub(crate) fn backend(flow: &FlowHalf) -> Option<&'static Target> {
    TARGETS.get(flow.target).filter(|target| target.epoch == flow.epoch)
}

/// Whether a packet that opens a TCP connection meets one that is over (`pair` = the other half's TCP bits).
#[inline(never)]
fn is_over(flow: &FlowHalf, key: &FlowKey) -> bool {
    let pair = flows::get(&flow.pair_key(key)).map_or(0, |pair| pair.tcp);
    (flow.tcp | pair) & tcp::RST != 0 || flow.tcp & pair & tcp::FIN != 0
}

/// Looks at a flow before its packet is carried.
#[inline(always)]
pub(crate) fn life(h: &Headers, flow: &FlowHalf, backend: Option<&Target>) -> Life {
    let opens = h.kind == kind::TCP
        && h.tcp & (flag::SYN | flag::ACK) == flag::SYN
        && flow.flags & half::REPLY == 0;
    if backend.is_none() {
        let again = opens || (h.kind != kind::TCP && flow.flags & half::REPLY == 0);
        return if again { Life::Over } else { Life::Gone };
    }
    if opens && is_over(flow, &h.key) { Life::Over } else { Life::Alive }
}

/// Removes both halves. A subprogram for the sake of the stack.
#[inline(never)]
pub(crate) fn forget(key: &FlowKey, flow: &FlowHalf) -> u32 {
    let pair = flow.pair_key(key);
    flows::remove(&pair);
    flows::remove(key)
}

/// Where the packet leaves.
pub(crate) struct Way<'a> {
    /// The next hop, to be used while it is fresh.
    pub(crate) hop: &'a Hop,
    /// The device, 0 if none is known.
    pub(crate) ifindex: u32,
    /// Whether the hop's Ethernet addresses, or that there are none, can be relied on.
    pub(crate) fresh: bool,
}

/// Where the packet leaves: the backend's next hop, kept by the agent, before `own`, the flow's. Does not borrow the whole
/// flow, whose other fields are written while the way is in use.
#[inline(always)]
pub(crate) fn way<'a>(own: &'a Hop, flags: u8, backend: &'a Target, now: u32) -> Way<'a> {
    let target = &backend.hop;
    let fresh = own.fresh_until > now;
    if flags & half::REPLY != 0 || target.ifindex == 0 {
        return Way { hop: own, ifindex: own.ifindex, fresh };
    }
    if target.fresh_until > now {
        return Way { hop: target, ifindex: target.ifindex, fresh: true };
    }
    Way { hop: own, ifindex: target.ifindex, fresh }
}

/// Checks what forbids carrying the packet.
#[inline(always)]
pub(crate) fn check<const LINK: usize>(packet: &Tc<LINK>, h: &Headers, flow: &FlowHalf) -> Verdict {
    if h.ttl <= 1 {
        return Verdict::answer(DropReason::TtlExpired);
    }
    if flow.mtu != 0 && h.ip_len > u32::from(flow.mtu) && !packet.is_gso() {
        return if h.df {
            Verdict::answer(DropReason::TooBig)
        } else {
            Verdict::drop(DropReason::TooBig)
        };
    }
    Verdict::CARRY
}

/// Counts the packet and moves the flow's state. Returns whether it is time for [`care`].
#[inline(always)]
pub(crate) fn note(h: &Headers, flow: &mut FlowHalf, now: u32) -> bool {
    count::carried(flow.counter, flow.flags, h.ip_len);
    if h.kind == kind::TCP {
        let mut bits = flow.tcp;
        if h.tcp & flag::RST == 0 {
            bits &= !tcp::RST;
        } else {
            bits |= tcp::RST;
        }
        if h.tcp & flag::SYN != 0 {
            bits |= tcp::SYN;
        } else if h.tcp & flag::ACK != 0 {
            bits |= tcp::OPEN;
        }
        if h.tcp & flag::FIN != 0 {
            bits |= tcp::FIN;
        }
        if bits != flow.tcp {
            flow.tcp = bits;
        }
    }
    let before = flow.last_seen;
    if before == now {
        return false;
    }
    flow.last_seen = now;
    wants_care(before, now)
}

/// Whether the other half is to be looked after: it is a second pair of cache misses a packet where there are many flows. A
/// flow that has been silent for longer is not worth them; its replies ask the kernel for the next hop, and the agent
/// rebuilds halves that are missing.
#[inline(always)]
pub(crate) fn wants_care(before: u32, now: u32) -> bool {
    before == 0 || (now / CARE_EVERY).wrapping_sub(before / CARE_EVERY) == 1
}

/// Tells the other half where its packets should go, and rebuilds it if it is missing.
#[inline(never)]
pub(crate) fn care(key: &FlowKey, flow: &FlowHalf, peer: &Hop, now: u32) -> u32 {
    let pair_key = flow.pair_key(key);
    // SAFETY: as above.
    let (mtu, l3) = unsafe { LINKS.get(&peer.ifindex) }
        .map_or((0, false), |found| (found.mtu, found.flags & link::L3 != 0));
    let mut hop = *peer;
    hop.fresh_until = if l3 { Hop::NO_HEADER } else { now + LEARNED_FOR };
    if let Some(pair) = flows::get(&pair_key) {
        // Two CPUs may write at once; both write the truth.
        if pair.hop.ifindex != hop.ifindex || !l3 {
            pair.hop = hop;
        }
        if pair.mtu != mtu {
            pair.mtu = mtu;
        }
        return 0;
    }
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: per-CPU, and no other program runs on this CPU before this one ends.
    let pair = unsafe { &mut (*scratch).reply };
    *pair = *flow;
    pair.src = key.dst;
    pair.dst = key.src;
    pair.src_port = key.dst_port;
    pair.dst_port = key.src_port;
    pair.flags = flow.flags ^ half::REPLY;
    pair.tcp = 0;
    pair.last_seen = 0;
    pair.mtu = mtu;
    pair.hop = hop;
    let _full = flows::insert(&pair_key, pair);
    0
}

/// Sum of the differences between two addresses; IPv4 addresses differ in their last word only.
#[inline(always)]
pub(crate) fn address_difference(old: &[u8; 16], new: &[u8; 16], v6: bool) -> u64 {
    let (old, new) = (words(old), words(new));
    let last = checksum::replace(old[3], new[3]);
    if !v6 {
        return last;
    }
    last + checksum::replace(old[0], new[0])
        + checksum::replace(old[1], new[1])
        + checksum::replace(old[2], new[2])
}

/// Writes addresses and TTL into the IP header and returns the folded difference of the addresses.
#[inline(always)]
pub(crate) fn rewrite_ip<const LINK: usize>(
    packet: &Tc<LINK>,
    h: &Headers,
    src: &Address,
    dst: &Address,
) -> Option<u32> {
    let (src, dst) = (words(src), words(dst));
    // SAFETY: `at` checks the bounds.
    Some(unsafe {
        if h.v6 {
            rewrite_v6(at(packet, LINK)?, &src, &dst)
        } else {
            rewrite_v4(at(packet, LINK)?, src[3], dst[3])
        }
    })
}

/// As [`rewrite_ip`], for IPv4.
///
/// # Safety
///
/// `ip` must point to 20 bytes.
#[inline(always)]
pub(crate) unsafe fn rewrite_v4(ip: *mut [u32; 5], src: u32, dst: u32) -> u32 {
    // SAFETY: the caller's promise; unaligned words can be read on the machines that run this.
    unsafe {
        let [_, _, ttl_sum, old_src, old_dst] = *ip;
        let difference =
            checksum::fold32(checksum::replace(old_src, src) + checksum::replace(old_dst, dst));
        let [ttl, protocol, sum_a, sum_b] = ttl_sum.to_ne_bytes();
        let old = u16::from_ne_bytes([ttl, protocol]);
        let new = u16::from_ne_bytes([ttl.wrapping_sub(1), protocol]);
        let change = u64::from(difference) + u64::from(!old) + u64::from(new);
        let [sum_a, sum_b] =
            checksum::apply(u16::from_ne_bytes([sum_a, sum_b]), change).to_ne_bytes();
        (*ip)[2] = u32::from_ne_bytes([ttl.wrapping_sub(1), protocol, sum_a, sum_b]);
        (*ip)[3] = src;
        (*ip)[4] = dst;
        difference
    }
}

/// As [`rewrite_ip`], for IPv6.
///
/// # Safety
///
/// `ip` must point to 40 bytes.
#[inline(always)]
pub(crate) unsafe fn rewrite_v6(ip: *mut [u32; 10], src: &[u32; 4], dst: &[u32; 4]) -> u32 {
    // SAFETY: as above.
    unsafe {
        let [a, b, next, ttl] = (*ip)[1].to_ne_bytes();
        (*ip)[1] = u32::from_ne_bytes([a, b, next, ttl.wrapping_sub(1)]);
        let mut difference = 0;
        for index in 0..4 {
            difference += checksum::replace((*ip)[2 + index], src[index]);
            difference += checksum::replace((*ip)[6 + index], dst[index]);
            (*ip)[2 + index] = src[index];
            (*ip)[6 + index] = dst[index];
        }
        checksum::fold32(difference)
    }
}

/// The word that begins a TCP or UDP header.
#[inline(always)]
pub(crate) fn ports([a, b]: [u8; 2], [c, d]: [u8; 2]) -> u32 {
    u32::from_ne_bytes([a, b, c, d])
}

/// The first half of the second word of an ICMP echo message.
#[inline(always)]
fn identifier([a, b]: [u8; 2]) -> u32 {
    u32::from_ne_bytes([a, b, 0, 0])
}

/// Rewrites the packet as the flow says.
#[inline(always)]
pub(crate) fn rewrite<const LINK: usize>(
    packet: &mut Tc<LINK>,
    h: &Headers,
    flow: &FlowHalf,
) -> bool {
    let Some(addresses) = rewrite_ip(packet, h, &flow.src, &flow.dst) else { return false };
    if h.fragment == fragment::LATER {
        return true;
    }
    let l4 = h.l4;
    let echo = h.kind == kind::ECHO;
    let (old, new) = if echo {
        (identifier(h.key.src_port), identifier(flow.src_port))
    } else {
        (ports(h.key.src_port, h.key.dst_port), ports(flow.src_port, flow.dst_port))
    };
    let mut rest = 0;
    if old != new {
        let [a, b, ..] = new.to_ne_bytes();
        let written = if echo {
            store(packet.skb, l4 + 4, &[a, b])
        } else {
            store(packet.skb, l4, &new.to_ne_bytes())
        };
        if !written {
            return false;
        }
        rest = checksum::fold32(checksum::replace(old, new));
    }
    let sum = match h.kind {
        kind::TCP => l4 + 16,
        kind::UDP => l4 + 6,
        _ => l4 + 2,
    };
    let ipv6_flag =
        h.v6 && GLOBALS.get(0).is_some_and(|globals| globals.flags & stance::flags::CSUM_IPV6 != 0);
    let addresses = if echo && !h.v6 { 0 } else { addresses };
    let sums = L4Sums { addresses, rest, udp: h.kind == kind::UDP, v6: h.v6, ipv6_flag };
    packet.update_l4(sum as usize, &sums)
}
