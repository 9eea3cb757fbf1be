//! ICMP errors about packets that we have translated (RFC 792, RFC 4443, RFC 5508 section 4).
//!
//! The quoted packet is one we sent out on this side, so its reversed tuple is the key of the half that carries the
//! opposite direction; that half says how to undo the translation, outside and in the quote.

use aya_ebpf::{bindings::__sk_buff, helpers::generated::bpf_l4_csum_replace};
use proxy_ebpf_common::{FlowHalf, FlowKey, protocol};

use crate::{
    carry::address_difference,
    checksum::{apply, fold32, replace},
    flows,
    packet::{load, store},
    parse::{Headers, mapped, words},
};

/// The quoted packet.
pub(crate) struct Quote {
    /// Key of the half that undoes its translation.
    pub(crate) key: FlowKey,
    /// Offset of its IP header.
    ip: u32,
    /// Offset of its transport header.
    l4: u32,
    v6: bool,
}

/// Reads the quote. `None`: not a packet that we could have sent.
#[inline(always)]
pub(crate) fn quote(skb: *mut __sk_buff, h: &Headers, link: u32) -> Option<Quote> {
    let ip = h.l4 + 8;
    let mut key = FlowKey { side: h.key.side, ..FlowKey::default() };
    let next;
    let l4;
    if h.v6 {
        let mut header = [0u32; 10];
        if !load_words(skb, ip, &mut header) || header[0].to_ne_bytes()[0] >> 4 != 6 {
            return None;
        }
        next = header[1].to_ne_bytes()[2];
        l4 = ip + 40;
        // SAFETY: both are 16 plain bytes.
        unsafe {
            key.dst = core::mem::transmute::<[u32; 4], [u8; 16]>([
                header[2], header[3], header[4], header[5],
            ]);
            key.src = core::mem::transmute::<[u32; 4], [u8; 16]>([
                header[6], header[7], header[8], header[9],
            ]);
        }
    } else {
        let mut header = [0u32; 5];
        if !load_words(skb, ip, &mut header) {
            return None;
        }
        let version_ihl = header[0].to_ne_bytes()[0];
        let [_, _, offset_high, offset_low] = header[1].to_ne_bytes();
        let len = u32::from(version_ihl & 0xf) * 4;
        if version_ihl >> 4 != 4 || len < 20 || offset_high & 0x1f != 0 || offset_low != 0 {
            return None;
        }
        next = header[2].to_ne_bytes()[1];
        l4 = ip + len;
        key.dst = mapped(header[3]);
        key.src = mapped(header[4]);
    }
    if l4 + 8 > link + h.ip_len {
        return None;
    }
    let mut transport = [0u32; 2];
    if !load_words(skb, l4, &mut transport) {
        return None;
    }
    match (next, h.v6) {
        (protocol::TCP | protocol::UDP, _) => {
            let [a, b, c, d] = transport[0].to_ne_bytes();
            key.protocol = next;
            key.dst_port = [a, b];
            key.src_port = [c, d];
        }
        (1, false) | (58, true) => {
            let kind = transport[0].to_ne_bytes()[0];
            if !matches!((h.v6, kind), (false, 0 | 8) | (true, 128 | 129)) {
                return None;
            }
            let [a, b, _, _] = transport[1].to_ne_bytes();
            key.protocol = protocol::ICMP;
            key.dst_port = [a, b];
            key.src_port = [a, b];
        }
        _ => return None,
    }
    // The error must come back to where the quoted packet came from.
    if key.dst != h.key.dst {
        return None;
    }
    Some(Quote { key, ip, l4, v6: h.v6 })
}

#[inline(always)]
fn load_words<const N: usize>(skb: *mut __sk_buff, offset: u32, words: &mut [u32; N]) -> bool {
    // SAFETY: `words` has N * 4 bytes; the helper checks the packet's bounds.
    unsafe {
        aya_ebpf::helpers::generated::bpf_skb_load_bytes(
            skb.cast_const().cast(),
            offset,
            words.as_mut_ptr().cast(),
            (N * 4) as u32,
        ) == 0
    }
}

/// Finds the half for the quote.
#[inline(always)]
pub(crate) fn half(quote: &Quote) -> Option<&'static mut FlowHalf> {
    flows::get(&quote.key)
}

/// Rewrites the quote and the ICMP checksum; `outer` is the difference of the outer addresses (ICMPv6 sums them).
#[inline(always)]
pub(crate) fn rewrite(
    skb: *mut __sk_buff,
    h: &Headers,
    link: u32,
    quote: &Quote,
    half: &FlowHalf,
    outer: u32,
) -> bool {
    // Undone: the quoted source becomes the half's destination, the quoted destination its source.
    let addresses = address_difference(&quote.key.dst, &half.dst, quote.v6)
        + address_difference(&quote.key.src, &half.src, quote.v6);
    let mut change = addresses;
    let (src, dst) = (words(&half.dst), words(&half.src));
    let stored = if quote.v6 {
        store_words(skb, quote.ip + 8, &src) && store_words(skb, quote.ip + 24, &dst)
    } else {
        let mut sum = [0u8; 2];
        if !load(skb, quote.ip + 10, &mut sum) {
            return false;
        }
        let old = u16::from_ne_bytes(sum);
        let new = apply(old, addresses);
        change += u64::from(!old) + u64::from(new);
        store(skb, quote.ip + 10, &new.to_ne_bytes())
            && store_words(skb, quote.ip + 12, &[src[3], dst[3]])
    };
    if !stored {
        return false;
    }
    let echo = quote.key.protocol == protocol::ICMP;
    let ([a, b], [c, d]) = (half.dst_port, half.src_port);
    let place = if echo { quote.l4 + 4 } else { quote.l4 };
    let mut word = [0u32; 1];
    if !load_words(skb, place, &mut word) {
        return false;
    }
    let old = word[0];
    let [_, _, e, f] = old.to_ne_bytes();
    let new = u32::from_ne_bytes(if echo { [a, b, e, f] } else { [a, b, c, d] });
    let ports = replace(old, new);
    change += ports;
    if !store_words(skb, place, &[new]) {
        return false;
    }
    let pseudo = if echo && !quote.v6 { 0 } else { addresses };
    change += match quoted_sum(skb, link + h.ip_len, quote, pseudo + ports) {
        Some(change) => change,
        None => return false,
    };
    let offset = h.l4 + 2;
    // SAFETY: the helper checks offset and writability.
    unsafe {
        if bpf_l4_csum_replace(skb, offset, 0, u64::from(fold32(change)), 0) != 0 {
            return false;
        }
        !h.v6 || outer == 0 || bpf_l4_csum_replace(skb, offset, 0, u64::from(outer), 0x10) == 0
    }
}

/// Updates the quoted transport checksum where it is present in full, and returns what that changed.
#[inline(always)]
fn quoted_sum(skb: *mut __sk_buff, end: u32, quote: &Quote, change: u64) -> Option<u64> {
    let udp = quote.key.protocol == protocol::UDP;
    let place = quote.l4
        + match quote.key.protocol {
            protocol::TCP => 16,
            protocol::UDP => 6,
            _ => 2,
        };
    if place + 2 > end {
        return Some(0);
    }
    let mut bytes = [0u8; 2];
    if !load(skb, place, &mut bytes) {
        return None;
    }
    let old = u16::from_ne_bytes(bytes);
    if udp && old == 0 {
        return Some(0);
    }
    let mut new = apply(old, change);
    if udp && new == 0 {
        new = 0xffff;
    }
    if !store(skb, place, &new.to_ne_bytes()) {
        return None;
    }
    Some(u64::from(!old) + u64::from(new))
}

#[inline(always)]
fn store_words<const N: usize>(skb: *mut __sk_buff, offset: u32, words: &[u32; N]) -> bool {
    // SAFETY: `words` has N * 4 bytes; the helper checks the packet's bounds.
    unsafe {
        aya_ebpf::helpers::generated::bpf_skb_store_bytes(
            skb,
            offset,
            words.as_ptr().cast(),
            (N * 4) as u32,
            0,
        ) == 0
    }
}
