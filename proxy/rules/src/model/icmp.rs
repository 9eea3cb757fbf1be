//! Step E: ICMP errors. The quoted packet is one that we sent out on this side after translation, perhaps with only 8
//! bytes of its transport header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Model, Step, Stop, carry::write_ip, decide, flows::Tuple};
use crate::{
    DropReason, Protocol, Side,
    packet::{Headers, ICMPV6, bytes, checksum, octets, put, word},
};

/// What is quoted; the offset is from the beginning of the quote.
struct Quote {
    tuple: Tuple,
    l4: usize,
}

impl Model {
    pub(super) fn icmp_error(&mut self, step: &mut Step<'_>) -> Result<(Side, Vec<u8>), Stop> {
        let h = step.headers;
        let begin = h.l4 + 8;
        let inner = step.packet.get(begin..h.len).unwrap_or_default();
        let quote = quote(inner, h.is_ipv6(), step.side).ok_or(Stop::Pass)?;
        // The error must come back to where the quoted packet came from.
        if quote.tuple.src.ip() != h.dst {
            return Err(Stop::Pass);
        }
        // The quote went the other way.
        let key = Tuple { src: quote.tuple.dst, dst: quote.tuple.src, ..quote.tuple };
        let place = self.flows.find(&key).ok_or(Stop::Pass)?;
        let Some(entry) = self.flows.entry(place.id) else { return Err(Stop::Pass) };
        if !self.table.rules().iter().any(|rule| decide::keeps(rule, entry)) {
            return Err(Stop::Pass);
        }
        step.say(format!("an error about {}", quote.tuple));
        let other = if place.is_reply { entry.original } else { entry.reply };
        let series = entry.series.clone();
        step.series = Some(series.clone());
        if h.ttl <= 1 {
            return Err(Stop::Drop(DropReason::TtlExpired));
        }
        // What this direction writes: source and destination.
        let (src, dst) = (other.dst, other.src);
        let outer = if src.ip() == key.src.ip() { h.src } else { src.ip() };
        self.count(&series, place.is_reply, h.len);
        let mut new = step.packet.to_vec();
        write_ip(&mut new, &h, &octets(outer), &octets(dst.ip()));
        if let Some(inner) = new.get_mut(begin..h.len) {
            rewrite(inner, &quote, dst, src);
        }
        let translated = Headers { src: outer, dst: dst.ip(), ..h };
        checksum::fill_transport(&mut new, &translated);
        Ok((other.side, new))
    }
}

/// Reads a quote; `None` if it cannot be one of ours.
fn quote(inner: &[u8], v6: bool, side: Side) -> Option<Quote> {
    let (version, words) = (inner.first()? >> 4, inner.first()? & 15);
    let (src, dst, protocol, l4): (IpAddr, IpAddr, u8, usize) = match (v6, version) {
        (false, 4) if words >= 5 && word(inner, 6)? << 3 == 0 => {
            let src = Ipv4Addr::from(bytes::<4>(inner, 12)?);
            let dst = Ipv4Addr::from(bytes::<4>(inner, 16)?);
            (src.into(), dst.into(), *inner.get(9)?, usize::from(words) * 4)
        }
        (true, 6) => {
            let src = Ipv6Addr::from(bytes::<16>(inner, 8)?);
            let dst = Ipv6Addr::from(bytes::<16>(inner, 24)?);
            (src.into(), dst.into(), *inner.get(6)?, 40)
        }
        _ => return None,
    };
    let (first, second) = (bytes(inner, l4)?, bytes(inner, l4 + 2)?);
    let id = bytes(inner, l4 + 4)?;
    // At least 8 bytes of the transport header (RFC 792).
    let _rest: [u8; 2] = bytes(inner, l4 + 6)?;
    let [kind, _] = first;
    let (protocol, from, to) = match (protocol, v6) {
        (6, _) => (Protocol::Tcp, first, second),
        (17, _) => (Protocol::Udp, first, second),
        (1, false) if matches!(kind, 0 | 8) => (Protocol::Icmp, id, id),
        (ICMPV6, true) if matches!(kind, 128 | 129) => (Protocol::Icmp, id, id),
        _ => return None,
    };
    let src = SocketAddr::new(src, u16::from_be_bytes(from));
    let dst = SocketAddr::new(dst, u16::from_be_bytes(to));
    Some(Quote { tuple: Tuple { src, dst, protocol, side }, l4 })
}

/// Writes the tuple into a quote. Its checksums change by the difference: most of what they cover is not there.
fn rewrite(inner: &mut [u8], quote: &Quote, src: SocketAddr, dst: SocketAddr) {
    let old = quote.tuple;
    let v6 = old.src.is_ipv6();
    let both = |a: SocketAddr, b: SocketAddr| [octets(a.ip()), octets(b.ip())].concat();
    let (from, to) = (both(old.src, old.dst), both(src, dst));
    put(inner, if v6 { 8 } else { 12 }, &to);
    if !v6 && let Some(before) = word(inner, 10) {
        put(inner, 10, &checksum::replaced(before, &from, &to).to_be_bytes());
    }
    let ports = |a: SocketAddr, b: SocketAddr| match old.protocol {
        Protocol::Icmp => a.port().to_be_bytes().to_vec(),
        Protocol::Tcp | Protocol::Udp => [a.port().to_be_bytes(), b.port().to_be_bytes()].concat(),
    };
    let (ports_from, ports_to) = (ports(old.src, old.dst), ports(src, dst));
    let (ports_at, sum_at) = match old.protocol {
        Protocol::Icmp => (quote.l4 + 4, quote.l4 + 2),
        Protocol::Tcp => (quote.l4, quote.l4 + 16),
        Protocol::Udp => (quote.l4, quote.l4 + 6),
    };
    put(inner, ports_at, &ports_to);
    let Some(before) = word(inner, sum_at) else { return };
    if old.protocol == Protocol::Udp && before == 0 {
        return;
    }
    let has_pseudo_header = v6 || old.protocol != Protocol::Icmp;
    let all = |ports: &[u8], addresses: &[u8]| {
        if has_pseudo_header { [ports, addresses].concat() } else { ports.to_vec() }
    };
    let sum = checksum::replaced(before, &all(&ports_from, &from), &all(&ports_to, &to));
    let sum = if old.protocol == Protocol::Udp && sum == 0 { 0xffff } else { sum };
    put(inner, sum_at, &sum.to_be_bytes());
}
