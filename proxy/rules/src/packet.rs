//! Packets as bytes: a parser and a builder for tests, the model and `explain`. Panic-free on any input; shares no code
//! with the kernel programs.

pub mod build;
pub mod checksum;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use build::Build;

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Protocol number of ICMP for IPv6.
pub const ICMPV6: u8 = 58;

/// TCP flags.
pub mod flag {
    /// The sender is done.
    pub const FIN: u8 = 1;
    /// Opens a connection.
    pub const SYN: u8 = 2;
    /// Reset.
    pub const RST: u8 = 4;
    /// Push.
    pub const PSH: u8 = 8;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 16;
}

/// Why there is nothing to parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not IP, or not to us.
    NotIp,
    /// The headers are cut short or contradict each other.
    Malformed,
}

/// Place of a packet within its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// All of it.
    Whole,
    /// The beginning.
    First(u32),
    /// What follows; has no transport header.
    Later(u32),
}

/// What follows the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP with these flags.
    Tcp(u8),
    /// UDP.
    Udp,
    /// ICMP echo request or reply.
    Echo,
    /// ICMP error.
    Error,
    /// Anything else, and later fragments.
    Other,
}

/// What the headers of a packet say. Offsets are from the beginning of the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port, or identifier of an echo.
    pub src_port: u16,
    /// Destination port, or identifier of an echo.
    pub dst_port: u16,
    /// IP protocol number after extension headers.
    pub protocol: u8,
    /// What follows.
    pub kind: Kind,
    /// Whether it is the reply to an echo.
    pub echo_reply: bool,
    /// Place within the datagram.
    pub fragment: Fragment,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Not to be fragmented on the way; always so for IPv6.
    pub df: bool,
    /// Length by the IP header; the packet may have padding after it.
    pub len: usize,
    /// Where the transport header begins.
    pub l4: usize,
}

impl Headers {
    /// Whether it is IPv6.
    pub const fn is_ipv6(&self) -> bool {
        self.src.is_ipv6()
    }
}

/// Bytes at a place, if they are there.
pub fn bytes<const N: usize>(packet: &[u8], at: usize) -> Option<[u8; N]> {
    packet.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// A 16-bit field, if it is there.
pub fn word(packet: &[u8], at: usize) -> Option<u16> {
    bytes(packet, at).map(u16::from_be_bytes)
}

/// Overwrites bytes, as far as they are there.
pub fn put(packet: &mut [u8], at: usize, new: &[u8]) {
    if let Some(old) = packet.get_mut(at..at.saturating_add(new.len())) {
        old.copy_from_slice(new);
    }
}

/// Bytes of an address.
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The IP packet in an Ethernet frame, if it is one that could be ours: IPv4 or IPv6, untagged, unicast.
pub fn strip_ethernet(frame: &[u8]) -> Result<&[u8], Refusal> {
    let header: [u8; ETHERNET] = bytes(frame, 0).ok_or(Refusal::NotIp)?;
    let [first, .., high, low] = header;
    let is_ip = matches!(u16::from_be_bytes([high, low]), 0x0800 | 0x86dd);
    if first & 1 != 0 || !is_ip {
        return Err(Refusal::NotIp);
    }
    frame.get(ETHERNET..).ok_or(Refusal::NotIp)
}

/// Reads the headers of an IP packet. `v6` says what the link claims it is; `None` = what its first byte says.
pub fn parse(packet: &[u8], v6: Option<bool>) -> Result<Headers, Refusal> {
    if v6.is_none() && packet.len() < 20 {
        return Err(Refusal::NotIp);
    }
    let version = packet.first().map_or(0, |byte| byte >> 4);
    match (v6, version) {
        (None | Some(false), 4) => ipv4(packet).ok_or(Refusal::Malformed)?,
        (None | Some(true), 6) => ipv6(packet).ok_or(Refusal::Malformed)?,
        (None, _) => return Err(Refusal::NotIp),
        (Some(_), _) => return Err(Refusal::Malformed),
    }
    .transport(packet)
    .ok_or(Refusal::Malformed)
}

fn blank(src: IpAddr, dst: IpAddr) -> Headers {
    Headers {
        src,
        dst,
        src_port: 0,
        dst_port: 0,
        protocol: 0,
        kind: Kind::Other,
        echo_reply: false,
        fragment: Fragment::Whole,
        ttl: 0,
        df: true,
        len: 0,
        l4: 0,
    }
}

fn ipv4(packet: &[u8]) -> Option<Headers> {
    let [version, _, _, _, _, _, offset, _, ttl, protocol, ..] = bytes::<20>(packet, 0)?;
    let (l4, len) = (usize::from(version & 15) * 4, usize::from(word(packet, 2)?));
    if l4 < 20 || len < l4 || len > packet.len() {
        return None;
    }
    let id = u32::from(word(packet, 4)?);
    let place = word(packet, 6)?;
    let fragment = match (place & 0x1fff, place & 0x2000) {
        (0, 0) => Fragment::Whole,
        (0, _) => Fragment::First(id),
        _ => Fragment::Later(id),
    };
    let src = Ipv4Addr::from(bytes::<4>(packet, 12)?);
    let dst = Ipv4Addr::from(bytes::<4>(packet, 16)?);
    let df = offset & 0x40 != 0;
    Some(Headers { protocol, fragment, ttl, df, len, l4, ..blank(src.into(), dst.into()) })
}

fn ipv6(packet: &[u8]) -> Option<Headers> {
    const NO_NEXT: u8 = 59;
    const FRAGMENT: u8 = 44;
    // What the kernel programs can reach; RFC 7112 asks for far less than this.
    const LONGEST_CHAIN: usize = 1010;
    let [_, _, _, _, _, _, mut protocol, ttl, ..] = bytes::<40>(packet, 0)?;
    let payload = usize::from(word(packet, 4)?);
    let len = 40 + payload;
    if len > packet.len() || (payload == 0 && protocol != NO_NEXT) {
        return None;
    }
    let (mut l4, mut fragment) = (40, Fragment::Whole);
    for _ in 0..4 {
        if !matches!(protocol, 0 | 43 | 60 | FRAGMENT) || matches!(fragment, Fragment::Later(_)) {
            break;
        }
        let [next, length, ..] = bytes::<8>(packet.get(..len)?, l4)?;
        if protocol == FRAGMENT {
            let (place, id) = (word(packet, l4 + 2)?, u32::from_be_bytes(bytes(packet, l4 + 4)?));
            fragment = match (place & 0xfff8, place & 1) {
                (0, 0) => fragment,
                (0, _) => Fragment::First(id),
                _ => Fragment::Later(id),
            };
            l4 += 8;
        } else {
            l4 += 8 + usize::from(length) * 8;
        }
        protocol = next;
        if l4 > LONGEST_CHAIN && !matches!(fragment, Fragment::Later(_)) {
            return None;
        }
    }
    // The last header reaches past the packet's end.
    if l4 > len {
        return None;
    }
    let src = Ipv6Addr::from(bytes::<16>(packet, 8)?);
    let dst = Ipv6Addr::from(bytes::<16>(packet, 24)?);
    Some(Headers { protocol, fragment, ttl, len, l4, ..blank(src.into(), dst.into()) })
}

impl Headers {
    fn transport(mut self, packet: &[u8]) -> Option<Self> {
        if matches!(self.fragment, Fragment::Later(_)) {
            return Some(self);
        }
        let l4 = packet.get(..self.len)?.get(self.l4..).unwrap_or_default();
        match (self.protocol, self.is_ipv6()) {
            (6, _) => {
                let [a, b, c, d, _, _, _, _, _, _, _, _, offset, flags, ..] = bytes::<20>(l4, 0)?;
                if offset >> 4 < 5 {
                    return None;
                }
                self.kind = Kind::Tcp(flags);
                self.src_port = u16::from_be_bytes([a, b]);
                self.dst_port = u16::from_be_bytes([c, d]);
            }
            (17, _) => {
                let [a, b, c, d, ..] = bytes::<8>(l4, 0)?;
                self.kind = Kind::Udp;
                self.src_port = u16::from_be_bytes([a, b]);
                self.dst_port = u16::from_be_bytes([c, d]);
            }
            (1, false) | (ICMPV6, true) => {
                let [kind, code, _, _, a, b, ..] = bytes::<8>(l4, 0)?;
                self.kind = match (self.is_ipv6(), kind, code) {
                    (false, 0 | 8, 0) | (true, 128 | 129, 0) => {
                        self.src_port = u16::from_be_bytes([a, b]);
                        self.dst_port = self.src_port;
                        self.echo_reply = matches!(kind, 0 | 129);
                        Kind::Echo
                    }
                    (false, 3 | 11 | 12, _) | (true, 1..=4, _) => Kind::Error,
                    _ => Kind::Other,
                };
            }
            _ => {}
        }
        Some(self)
    }

    /// Where the transport checksum stands, from the beginning of the IP header.
    pub const fn checksum_at(&self) -> Option<usize> {
        match self.kind {
            Kind::Tcp(_) => Some(self.l4 + 16),
            Kind::Udp => Some(self.l4 + 6),
            Kind::Echo | Kind::Error => Some(self.l4 + 2),
            Kind::Other => None,
        }
    }
}
