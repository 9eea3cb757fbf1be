//! Headers -> the facts that everything else works with.

use proxy_ebpf_common::{Address, DropReason, FlowKey, protocol};

use crate::{
    packet::{Packet as _, Tc},
    verdict::Verdict,
};

/// The kinds of packet that are told apart.
pub(crate) mod kind {
    pub(crate) const TCP: u8 = 1;
    pub(crate) const UDP: u8 = 2;
    /// ICMP or ICMPv6 echo request or reply.
    pub(crate) const ECHO: u8 = 3;
    /// An ICMP error: it quotes a packet.
    pub(crate) const ERROR: u8 = 4;
    /// Anything else.
    pub(crate) const OTHER: u8 = 5;
}

/// Where a packet stands in a fragmented datagram.
pub(crate) mod fragment {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const FIRST: u8 = 1;
    pub(crate) const LATER: u8 = 2;
}

/// TCP flag bits (RFC 9293 section 3.1).
pub(crate) mod flag {
    pub(crate) const FIN: u8 = 1;
    pub(crate) const SYN: u8 = 2;
    pub(crate) const RST: u8 = 4;
    pub(crate) const ACK: u8 = 16;
}

const IPPROTO_HOPOPTS: u8 = 0;
const IPPROTO_ICMP: u8 = 1;
const IPPROTO_ROUTING: u8 = 43;
const IPPROTO_FRAGMENT: u8 = 44;
const IPPROTO_ICMPV6: u8 = 58;
const IPPROTO_NONE: u8 = 59;
const IPPROTO_DSTOPTS: u8 = 60;

/// What the headers say.
#[repr(C)]
pub(crate) struct Headers {
    /// The tuple; ports are zero until known.
    pub(crate) key: FlowKey,
    /// Fragment identification.
    pub(crate) id: [u8; 4],
    /// Length of the IP packet.
    pub(crate) ip_len: u32,
    /// Offset of the transport header from the packet's first byte.
    pub(crate) l4: u32,
    /// One of [`kind`].
    pub(crate) kind: u8,
    /// One of [`fragment`].
    pub(crate) fragment: u8,
    /// TCP flags; of an echo, 1 if it is a reply.
    pub(crate) tcp: u8,
    /// Time to live or hop limit.
    pub(crate) ttl: u8,
    /// IPv6.
    pub(crate) v6: bool,
    /// May not be fragmented on the way: IPv6, or IPv4 with DF.
    pub(crate) df: bool,
    /// Always zero; keeps the structure free of padding.
    pub(crate) reserved: [u8; 6],
}

impl Headers {
    /// Sets everything to zero, word by word: what the compiler makes of an assignment is a call that writes bytes.
    #[inline(always)]
    pub(crate) fn clear(h: *mut Self) {
        const WORDS: usize = size_of::<Headers>() / 8;
        const { assert!(WORDS * 8 == size_of::<Headers>() && align_of::<Headers>() == 8) };
        let words = h.cast::<u64>();
        for index in 0..WORDS {
            // SAFETY: the caller's pointer is to a whole structure, for which all zero is valid.
            unsafe { words.add(index).write_volatile(0) };
        }
    }
}

/// The third word of an IPv4 address in the form of the maps.
pub(crate) const MAPPED: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);

/// An IPv4 address (as it lies in memory) in the form of the maps.
#[inline(always)]
pub(crate) fn mapped(address: u32) -> Address {
    let words: [u32; 4] = [0, 0, MAPPED, address];
    // SAFETY: both are 16 plain bytes.
    unsafe { core::mem::transmute(words) }
}

/// Fills `h` from the packet. `Err` ends the program's work on it.
#[inline(always)]
pub(crate) fn parse<const LINK: usize>(
    packet: &mut Tc<LINK>,
    side: u8,
    h: &mut Headers,
) -> Result<(), Verdict> {
    let first = if LINK == 14 {
        let Some(ethernet) = packet.reach::<[u16; 7]>(0) else { return Err(Verdict::PASS) };
        // SAFETY: `reach` checked the bounds. The group bit is the lowest of the first byte.
        let (head, ethertype) = unsafe { ((*ethernet)[0], u16::from_be((*ethernet)[6])) };
        if head.to_ne_bytes()[0] & 1 != 0 || packet.has_vlan() {
            return Err(Verdict::PASS);
        }
        match ethertype {
            0x0800 => 4,
            0x86dd => 6,
            _ => return Err(Verdict::PASS),
        }
    } else {
        let Some(ip) = packet.reach::<[u8; 20]>(0) else { return Err(Verdict::PASS) };
        // SAFETY: `reach` checked the bounds.
        match unsafe { (*ip)[0] } >> 4 {
            4 => 4,
            6 => 6,
            _ => return Err(Verdict::PASS),
        }
    };
    let next = if first == 4 { ipv4(packet, h)? } else { ipv6(packet, h)? };
    set_protocol(h, normal_protocol(next), side);
    if h.fragment == fragment::LATER {
        return Ok(());
    }
    transport(packet, next, h)
}

const MALFORMED: Verdict = Verdict::drop(DropReason::Malformed);

#[inline(always)]
fn normal_protocol(next: u8) -> u8 {
    if next == IPPROTO_ICMPV6 { protocol::ICMP } else { next }
}

#[inline(always)]
fn ipv4<const LINK: usize>(packet: &mut Tc<LINK>, h: &mut Headers) -> Result<u8, Verdict> {
    let Some(ip) = packet.reach::<[u32; 5]>(LINK) else { return Err(MALFORMED) };
    // SAFETY: `reach` checked the bounds; unaligned words can be read on the machines that run this.
    let [w0, w1, w2, src, dst] = unsafe { *ip };
    let [version_ihl, _, len_high, len_low] = w0.to_ne_bytes();
    let [id_high, id_low, offset_high, offset_low] = w1.to_ne_bytes();
    let [ttl, next, ..] = w2.to_ne_bytes();
    let header = u32::from(version_ihl & 0xf) * 4;
    h.ip_len = u32::from(u16::from_be_bytes([len_high, len_low]));
    if version_ihl >> 4 != 4
        || header < 20
        || h.ip_len < header
        || h.ip_len + LINK as u32 > packet.len()
    {
        return Err(MALFORMED);
    }
    copy(&mut h.key.src, &mapped(src));
    copy(&mut h.key.dst, &mapped(dst));
    h.ttl = ttl;
    h.df = offset_high & 0x40 != 0;
    h.l4 = LINK as u32 + header;
    let offset = u16::from_be_bytes([offset_high & 0x3f, offset_low]);
    if offset != 0 {
        h.id = [0, 0, id_high, id_low];
        h.fragment = if offset & 0x1fff == 0 { fragment::FIRST } else { fragment::LATER };
    }
    Ok(next)
}

#[inline(always)]
fn ipv6<const LINK: usize>(packet: &mut Tc<LINK>, h: &mut Headers) -> Result<u8, Verdict> {
    let Some(ip) = packet.reach::<[u32; 10]>(LINK) else { return Err(MALFORMED) };
    // SAFETY: `reach` checked the bounds.
    let words = unsafe { *ip };
    let [len_high, len_low, mut next, ttl] = words[1].to_ne_bytes();
    let payload = u32::from(u16::from_be_bytes([len_high, len_low]));
    h.ip_len = 40 + payload;
    if words[0].to_ne_bytes()[0] >> 4 != 6
        || h.ip_len + LINK as u32 > packet.len()
        || (payload == 0 && next != IPPROTO_NONE)
    {
        return Err(MALFORMED);
    }
    // SAFETY: both are 16 plain bytes.
    unsafe {
        h.key.src =
            core::mem::transmute::<[u32; 4], Address>([words[2], words[3], words[4], words[5]]);
        h.key.dst =
            core::mem::transmute::<[u32; 4], Address>([words[6], words[7], words[8], words[9]]);
    }
    h.ttl = ttl;
    h.v6 = true;
    h.df = true;
    let mut offset = LINK as u32 + 40;
    for _ in 0..4 {
        if next != IPPROTO_HOPOPTS
            && next != IPPROTO_ROUTING
            && next != IPPROTO_DSTOPTS
            && next != IPPROTO_FRAGMENT
        {
            break;
        }
        if offset + 8 > LINK as u32 + h.ip_len {
            return Err(MALFORMED);
        }
        let Some([head, id]) = packet.words(offset) else { return Err(MALFORMED) };
        let [following, len, offset_high, offset_low] = head.to_ne_bytes();
        if next == IPPROTO_FRAGMENT {
            let place = u16::from_be_bytes([offset_high, offset_low]);
            // An atomic fragment (RFC 6946) is a whole packet.
            if place & 0xfff9 != 0 {
                h.id = id.to_ne_bytes();
                h.fragment = if place & 0xfff8 == 0 { fragment::FIRST } else { fragment::LATER };
            }
            offset += 8;
        } else {
            offset += 8 + u32::from(len) * 8;
        }
        next = following;
        if h.fragment == fragment::LATER {
            break;
        }
        if offset > 1024 {
            return Err(MALFORMED);
        }
    }
    // The last header reaches past the packet's end.
    if offset > LINK as u32 + h.ip_len {
        return Err(MALFORMED);
    }
    h.l4 = offset;
    Ok(next)
}

#[inline(always)]
fn transport<const LINK: usize>(
    packet: &mut Tc<LINK>,
    next: u8,
    h: &mut Headers,
) -> Result<(), Verdict> {
    let room = (LINK as u32 + h.ip_len).wrapping_sub(h.l4) as i32;
    let l4 = h.l4;
    match (next, h.v6) {
        (protocol::TCP, _) => {
            if room < 20 {
                return Err(MALFORMED);
            }
            let Some([ports, _, _, word]) = packet.words(l4) else { return Err(MALFORMED) };
            let [data_offset, flags, ..] = word.to_ne_bytes();
            if data_offset >> 4 < 5 {
                return Err(MALFORMED);
            }
            h.kind = kind::TCP;
            h.tcp = flags;
            set_ports(h, ports);
        }
        (protocol::UDP, _) => {
            if room < 8 {
                return Err(MALFORMED);
            }
            let Some([ports, _]) = packet.words(l4) else { return Err(MALFORMED) };
            h.kind = kind::UDP;
            set_ports(h, ports);
        }
        (IPPROTO_ICMP, false) | (IPPROTO_ICMPV6, true) => {
            if room < 8 {
                return Err(MALFORMED);
            }
            let Some([head, rest]) = packet.words(l4) else { return Err(MALFORMED) };
            let ([kind, code, ..], [id_high, id_low, ..]) =
                (head.to_ne_bytes(), rest.to_ne_bytes());
            h.kind = match (h.v6, kind, code) {
                (false, 0 | 8, 0) | (true, 128 | 129, 0) => {
                    h.key.src_port = [id_high, id_low];
                    h.key.dst_port = [id_high, id_low];
                    h.tcp = u8::from(kind == 0 || kind == 129);
                    kind::ECHO
                }
                (false, 3 | 11 | 12, _) | (true, 1..=4, _) => kind::ERROR,
                _ => kind::OTHER,
            };
        }
        _ => h.kind = kind::OTHER,
    }
    Ok(())
}

/// The first half of the key's end: both ports, in one store, so that the hash can read them back at once.
#[inline(always)]
fn set_ports(h: &mut Headers, ports: u32) {
    // SAFETY: the two ports lie side by side at an offset that is a multiple of four.
    unsafe { (&raw mut h.key.src_port).cast::<u32>().write(ports) };
}

/// The second half: protocol and side, in one store.
#[inline(always)]
fn set_protocol(h: &mut Headers, protocol: u8, side: u8) {
    let word = u32::from(protocol) | u32::from(side) << 8;
    // SAFETY: protocol, side and two zero bytes lie side by side at an offset that is a multiple of four.
    unsafe { (&raw mut h.key.protocol).cast::<u32>().write(word.to_le()) };
}

/// The words of an address, as they lie in memory. Every address in a map or key is aligned to four bytes; the type does
/// not say so, and the compiler would read it byte by byte.
#[inline(always)]
pub(crate) fn words(address: &Address) -> [u32; 4] {
    // SAFETY: 16 plain bytes, aligned as said.
    unsafe { *core::ptr::from_ref(address).cast::<[u32; 4]>() }
}

/// Copies an address word by word.
#[inline(always)]
pub(crate) fn copy(to: &mut Address, from: &Address) {
    // SAFETY: as in [`words`].
    unsafe { core::ptr::from_mut(to).cast::<[u32; 4]>().write(words(from)) };
}
