//! Telling the sender: TCP resets (RFC 9293 section 3.10.7.1) and ICMP errors (RFC 792, RFC 4443).
//!
//! The packet itself becomes the answer and leaves by the device it came from. A packet whose checksum was left to the
//! hardware stays marked so; its sender is then on this host, or is told by the pseudo-header sum (see `reset`).

use aya_ebpf::{
    bindings::{__sk_buff, bpf_adj_room_mode::BPF_ADJ_ROOM_MAC},
    helpers::generated::{
        bpf_redirect, bpf_skb_adjust_room, bpf_skb_change_tail, bpf_skb_load_bytes,
    },
};
use proxy_ebpf_common::DropReason;

use crate::{
    checksum::fold16,
    maps::SCRATCH,
    packet::{load, store},
    parse::{Headers, flag, fragment, kind, words},
    policy,
    verdict::Verdict,
};

const SENT: u32 = 1;
/// The most that is quoted of a packet.
const MAX_QUOTE: u32 = 128;

/// Turns the packet into the answer and sends it back. Returns 1 if it was sent.
#[inline(never)]
pub(crate) fn answer(skb: *mut __sk_buff, h: &Headers, link: u32, verdict: u32, mtu: u32) -> u32 {
    let verdict = Verdict::from_raw(verdict);
    if h.kind == kind::ERROR
        || h.fragment == fragment::LATER
        || policy::is_local_scope(&h.key.src, false) && !h.v6
        || h.v6 && h.key.src[0] == 0xff
    {
        return 0;
    }
    let refused = verdict.is(DropReason::Rejected)
        || verdict.is(DropReason::NoBackend)
        || verdict.is(DropReason::BackendGone);
    if h.kind == kind::TCP && refused {
        return reset(skb, h, link);
    }
    let (kind, code, rest) = if verdict.is(DropReason::TtlExpired) {
        (if h.v6 { 3 } else { 11 }, 0, 0)
    } else if verdict.is(DropReason::TooBig) {
        if h.v6 { (2, 0, mtu) } else { (3, 4, mtu) }
    } else if h.v6 {
        (1, 4, 0)
    } else {
        (3, 3, 0)
    };
    error(skb, h, link, kind, code, rest)
}

/// Sum of 32-bit words.
#[inline(always)]
fn sum<const N: usize>(words: &[u32; N]) -> u64 {
    let mut sum = 0;
    let mut index = 0;
    while index < N {
        sum += u64::from(words[index]);
        index += 1;
    }
    sum
}

/// Sum of the pseudo header of an answer: addresses, length, protocol.
#[inline(always)]
fn pseudo(h: &Headers, len: u32, protocol: u8) -> u64 {
    let (src, dst) = (words(&h.key.src), words(&h.key.dst));
    let tail = u64::from(len.to_be()) + u64::from(u32::from(protocol).to_be());
    if h.v6 { sum(&src) + sum(&dst) + tail } else { u64::from(src[3]) + u64::from(dst[3]) + tail }
}

/// The IP header of an answer: swapped addresses, TTL 64, not to be fragmented.
#[inline(always)]
fn store_ip(skb: *mut __sk_buff, h: &Headers, link: u32, payload: u32, protocol: u8) -> bool {
    let (src, dst) = (words(&h.key.dst), words(&h.key.src));
    if h.v6 {
        let mut ip = [0u32; 10];
        let [_, _, c, d] = payload.to_be_bytes();
        ip[0] = u32::from_ne_bytes([0x60, 0, 0, 0]);
        ip[1] = u32::from_ne_bytes([c, d, protocol, 64]);
        ip[2] = src[0];
        ip[3] = src[1];
        ip[4] = src[2];
        ip[5] = src[3];
        ip[6] = dst[0];
        ip[7] = dst[1];
        ip[8] = dst[2];
        ip[9] = dst[3];
        // SAFETY: both are 40 plain bytes.
        let bytes: [u8; 40] = unsafe { core::mem::transmute(ip) };
        return store(skb, link, &bytes);
    }
    let [_, _, c, d] = (payload + 20).to_be_bytes();
    let mut ip = [
        u32::from_ne_bytes([0x45, 0, c, d]),
        u32::from_ne_bytes([0, 0, 0x40, 0]),
        u32::from_ne_bytes([64, protocol, 0, 0]),
        src[3],
        dst[3],
    ];
    let [a, b] = (!fold16(sum(&ip))).to_ne_bytes();
    ip[2] = u32::from_ne_bytes([64, protocol, a, b]);
    // SAFETY: both are 20 plain bytes.
    let bytes: [u8; 20] = unsafe { core::mem::transmute(ip) };
    store(skb, link, &bytes)
}

/// Swaps the Ethernet addresses and sends the packet back.
#[inline(always)]
fn send_back(skb: *mut __sk_buff, link: u32) -> u32 {
    if link != 0 {
        let mut macs = [0u8; 12];
        if !load(skb, 0, &mut macs) {
            return 0;
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l] = macs;
        if !store(skb, 0, &[g, h, i, j, k, l, a, b, c, d, e, f]) {
            return 0;
        }
    }
    // SAFETY: the kernel checks the ifindex.
    unsafe {
        let _queued = bpf_redirect((*skb).ifindex, 0);
    }
    SENT
}

#[inline(always)]
fn reset(skb: *mut __sk_buff, h: &Headers, link: u32) -> u32 {
    if h.tcp & flag::RST != 0 {
        return 0;
    }
    let mut tcp = [0u8; 20];
    if !load(skb, h.l4, &mut tcp) {
        return 0;
    }
    let header = u32::from(tcp[12] >> 4) * 4;
    let begin = h.l4 - link + header;
    if begin > h.ip_len {
        return 0;
    }
    let length =
        h.ip_len - begin + u32::from(h.tcp & flag::SYN != 0) + u32::from(h.tcp & flag::FIN != 0);
    let their_seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let (seq, ack, flags) = if h.tcp & flag::ACK == 0 {
        (0, their_seq.wrapping_add(length).to_be(), flag::RST | flag::ACK)
    } else {
        (u32::from_ne_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]), 0, flag::RST)
    };
    // SAFETY: `skb` is the program's context.
    let partial = unsafe { (*skb).gso_size } != 0;
    let ip = if h.v6 { 40 } else { 20 };
    if partial && h.l4 - link != ip {
        return 0;
    }
    // SAFETY: the helper checks the length.
    if unsafe { bpf_skb_change_tail(skb, link + ip + 20, 0) } != 0 {
        return 0;
    }
    let mut new = [
        u32::from_ne_bytes([tcp[2], tcp[3], tcp[0], tcp[1]]),
        seq,
        ack,
        u32::from_ne_bytes([0x50, flags, 0, 0]),
        0,
    ];
    let header = pseudo(h, 20, 6);
    // A super-packet is CHECKSUM_PARTIAL and stays so: the device sums up from the pseudo header.
    let sum = if partial { fold16(header) } else { !fold16(header + sum(&new)) };
    let [a, b] = sum.to_ne_bytes();
    new[4] = u32::from_ne_bytes([a, b, 0, 0]);
    // SAFETY: both are 20 plain bytes.
    let bytes: [u8; 20] = unsafe { core::mem::transmute(new) };
    if !store_ip(skb, h, link, 20, 6) || !store(skb, link + ip, &bytes) {
        return 0;
    }
    send_back(skb, link)
}

#[inline(always)]
fn error(skb: *mut __sk_buff, h: &Headers, link: u32, kind: u8, code: u8, rest: u32) -> u32 {
    let l4 = h.l4 - link;
    let ip = if h.v6 { 40 } else { 20 };
    // The kernel does not cut a packet short of the checksum that is still to be filled in: then the whole TCP header is quoted.
    let mut quote = l4 + 8;
    if !(28..=MAX_QUOTE - 12).contains(&quote) {
        return 0;
    }
    // SAFETY: the helper checks the length.
    if unsafe { bpf_skb_change_tail(skb, link + quote, 0) } != 0 {
        quote += 12;
        // SAFETY: as above.
        let cut =
            unsafe { link + quote <= (*skb).len && bpf_skb_change_tail(skb, link + quote, 0) == 0 };
        if !cut {
            return 0;
        }
    }
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: per-CPU, and no other program runs on this CPU before this one ends.
    let quoted = unsafe { &mut (*scratch).quoted };
    *quoted = [0; MAX_QUOTE as usize / 4];
    // Opaque, so that the compiler leaves the arithmetic in by which the verifier sees that `len` is 1 to 128. A check for
    // zero would not do: before 6.8 the verifier learns nothing from `!=`.
    let len = (core::hint::black_box(quote).wrapping_sub(1) & (MAX_QUOTE - 1)) + 1;
    // SAFETY: `len` is at most the size of `quoted`; the helper checks the packet's bounds.
    let loaded = unsafe {
        bpf_skb_load_bytes(skb.cast_const().cast(), link, quoted.as_mut_ptr().cast(), len) == 0
            && bpf_skb_adjust_room(skb, (ip + 8) as i32, BPF_ADJ_ROOM_MAC, 0) == 0
    };
    if !loaded {
        return 0;
    }
    let mut icmp = [u32::from_ne_bytes([kind, code, 0, 0]), rest.to_be()];
    let protocol = if h.v6 { 58 } else { 1 };
    let header = if h.v6 { pseudo(h, quote + 8, protocol) } else { 0 };
    let [a, b] = (!fold16(header + sum(&icmp) + sum(quoted))).to_ne_bytes();
    icmp[0] = u32::from_ne_bytes([kind, code, a, b]);
    // SAFETY: both are 8 plain bytes.
    let bytes: [u8; 8] = unsafe { core::mem::transmute(icmp) };
    if !store_ip(skb, h, link, quote + 8, protocol) || !store(skb, link + ip, &bytes) {
        return 0;
    }
    send_back(skb, link)
}
