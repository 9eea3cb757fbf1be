//! The internet checksum (RFC 1071), from scratch, and by difference (RFC 1624) where bytes are missing.

use std::net::IpAddr;

use super::{Headers, Kind, octets, put, word};

/// One's complement sum of 16-bit words; an odd last byte is padded with zero.
pub fn sum(bytes: &[u8]) -> u16 {
    let pairs = bytes.chunks(2).map(|pair| match pair {
        [high, low] => u64::from(u16::from_be_bytes([*high, *low])),
        [high] => u64::from(*high) << 8,
        _ => 0,
    });
    fold(pairs.sum())
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The transport checksum over a pseudo header and a segment whose checksum field counts as it stands.
pub fn transport(src: IpAddr, dst: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let addresses = u64::from(sum(&octets(src))) + u64::from(sum(&octets(dst)));
    let rest = u64::from(protocol) + segment.len() as u64 + u64::from(sum(segment));
    !fold(addresses + rest)
}

/// A checksum after `old` bytes became `new` ones (RFC 1624, equation 3).
pub fn replaced(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!sum(old)) + u64::from(sum(new)))
}

/// Computes the checksum of an IPv4 header.
pub fn fill_ipv4(packet: &mut [u8], header: usize) {
    put(packet, 10, &[0, 0]);
    let checksum = !sum(packet.get(..header).unwrap_or_default());
    put(packet, 10, &checksum.to_be_bytes());
}

/// Computes the transport checksum of a whole packet. A UDP checksum of 0 over IPv4 means "none" and stays, and one that
/// becomes 0 is written as 0xffff (RFC 768).
pub fn fill_transport(packet: &mut [u8], headers: &Headers) {
    let Some(at) = headers.checksum_at() else { return };
    if headers.kind == Kind::Udp && !headers.is_ipv6() && word(packet, at) == Some(0) {
        return;
    }
    put(packet, at, &[0, 0]);
    let segment = packet.get(headers.l4..headers.len).unwrap_or_default();
    let checksum = match (headers.protocol, headers.is_ipv6()) {
        (1, false) => !sum(segment),
        _ => transport(headers.src, headers.dst, headers.protocol, segment),
    };
    let checksum = if headers.kind == Kind::Udp && checksum == 0 { 0xffff } else { checksum };
    put(packet, at, &checksum.to_be_bytes());
}

/// Whether both checksums of a whole packet are right.
pub fn is_right(packet: &[u8], headers: &Headers) -> bool {
    let mut copy = packet.to_vec();
    if !headers.is_ipv6() {
        fill_ipv4(&mut copy, headers.l4);
    }
    fill_transport(&mut copy, headers);
    copy == packet
}
