//! Telling the sender: TCP resets (RFC 9293 section 3.10.7.1) and ICMP errors (RFC 792, RFC 4443).

use std::net::IpAddr;

use crate::{
    DropReason,
    packet::{Fragment, Headers, ICMPV6, Kind, bytes, checksum, flag, octets},
};

/// The longest packet that is quoted, in bytes.
const LONGEST_QUOTE: usize = 116;

/// The answer to a dropped packet, if one may be sent: never to a reset, an ICMP error, a later fragment, or a source
/// that is not one host.
pub(super) fn answer(h: &Headers, packet: &[u8], reason: DropReason, mtu: u16) -> Option<Vec<u8>> {
    let many = match h.src {
        IpAddr::V4(v4) => v4.octets().first().is_some_and(|first| *first >= 224),
        IpAddr::V6(v6) => v6.is_multicast(),
    };
    if many || h.kind == Kind::Error || matches!(h.fragment, Fragment::Later(_)) {
        return None;
    }
    let [high, low] = mtu.to_be_bytes();
    let (kind, code, rest) = match (reason, h.is_ipv6()) {
        (DropReason::TtlExpired, false) => (11, 0, [0; 4]),
        (DropReason::TtlExpired, true) => (3, 0, [0; 4]),
        (DropReason::TooBig, false) => (3, 4, [0, 0, high, low]),
        (DropReason::TooBig, true) => (2, 0, [0, 0, high, low]),
        _ => match h.kind {
            Kind::Tcp(flags) => return reset(h, packet, flags),
            _ if h.is_ipv6() => (1, 4, [0; 4]),
            _ => (3, 3, [0; 4]),
        },
    };
    // What the kernel programs can hold; only chains of IPv6 extension headers reach it.
    let quote = packet.get(..h.l4 + 8).filter(|quote| quote.len() <= LONGEST_QUOTE)?;
    let message = [&[kind, code, 0, 0], rest.as_slice(), quote].concat();
    let protocol = if h.is_ipv6() { ICMPV6 } else { 1 };
    Some(ip(h, protocol, Kind::Error, message))
}

fn reset(h: &Headers, packet: &[u8], flags: u8) -> Option<Vec<u8>> {
    if flags & flag::RST != 0 {
        return None;
    }
    let number = |at: usize| bytes::<4>(packet, h.l4 + at).map(u32::from_be_bytes);
    let header = usize::from(packet.get(h.l4 + 12)? >> 4) * 4;
    let payload = h.len.checked_sub(h.l4 + header)? as u32;
    let (seq, ack, flags) = if flags & flag::ACK == 0 {
        let length =
            payload + u32::from(flags & flag::SYN != 0) + u32::from(flags & flag::FIN != 0);
        (0, number(4)?.wrapping_add(length), flag::RST | flag::ACK)
    } else {
        (number(8)?, 0, flag::RST)
    };
    let mut segment = [h.dst_port.to_be_bytes(), h.src_port.to_be_bytes()].concat();
    segment.extend(seq.to_be_bytes());
    segment.extend(ack.to_be_bytes());
    segment.extend([5 << 4, flags, 0, 0, 0, 0, 0, 0]);
    Some(ip(h, 6, Kind::Tcp(flags), segment))
}

/// The answer's IP packet: addresses swapped, TTL 64, identification 0, not to be fragmented.
fn ip(h: &Headers, protocol: u8, kind: Kind, payload: Vec<u8>) -> Vec<u8> {
    let length = payload.len() as u16;
    let mut packet = if h.is_ipv6() {
        let [high, low] = length.to_be_bytes();
        vec![0x60, 0, 0, 0, high, low, protocol, 64]
    } else {
        let [high, low] = (length + 20).to_be_bytes();
        vec![0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0]
    };
    packet.extend(octets(h.dst));
    packet.extend(octets(h.src));
    let l4 = packet.len();
    packet.extend(payload);
    if !h.is_ipv6() {
        checksum::fill_ipv4(&mut packet, l4);
    }
    let headers = Headers { src: h.dst, dst: h.src, protocol, kind, l4, len: packet.len(), ..*h };
    checksum::fill_transport(&mut packet, &headers);
    packet
}
