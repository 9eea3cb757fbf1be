//! Step 8: a packet of a flow, checked, counted and rewritten.

use super::{
    Model, Step, Stop,
    flows::{Place, Tuple},
    fragment_key,
};
use crate::{
    DropReason, Protocol, Series, Side,
    packet::{Fragment, Headers, Kind, checksum, flag, octets, put, word},
};

impl Model {
    pub(super) fn carry(
        &mut self,
        step: &mut Step<'_>,
        place: Place,
    ) -> Result<(Side, Vec<u8>), Stop> {
        let h = step.headers;
        let Some(entry) = self.flows.entry(place.id) else { return Err(Stop::Pass) };
        let other = if place.is_reply { entry.original } else { entry.reply };
        let (series, mss) = (entry.series.clone(), entry.mss);
        step.series = Some(series.clone());
        if h.ttl <= 1 {
            return Err(Stop::Answer(DropReason::TtlExpired));
        }
        let mtu = self.env.device(other.side).map_or(usize::MAX, |d| usize::from(d.mtu));
        if h.len > mtu {
            let reason = DropReason::TooBig;
            return Err(if h.df { Stop::Answer(reason) } else { Stop::Drop(reason) });
        }
        self.count(&series, place.is_reply, h.len);
        let now = self.now;
        if let Some(entry) = self.flows.entry_mut(place.id) {
            let flags = match h.kind {
                Kind::Tcp(flags) => Some(flags),
                _ => None,
            };
            let [original, reply] = &mut entry.seen;
            (if place.is_reply { reply } else { original }).note(flags, now);
        }
        if let Fragment::First(_) = h.fragment {
            self.fragments.insert(fragment_key(step), (h.src_port, h.dst_port));
        }
        Ok((other.side, rewrite(step.packet, &h, &other, mss)))
    }

    pub(super) fn count(&mut self, series: &Series, is_reply: bool, len: usize) {
        let count = self.counters.series.entry(series.clone()).or_default();
        let (packets, bytes) = if is_reply {
            (&mut count.reply_packets, &mut count.reply_bytes)
        } else {
            (&mut count.original_packets, &mut count.original_bytes)
        };
        *packets += 1;
        *bytes += len as u64;
    }
}

/// The packet as the opposite direction's tuple demands: what arrives there as source is our destination.
fn rewrite(packet: &[u8], h: &Headers, other: &Tuple, mss: u16) -> Vec<u8> {
    let mut new = packet.to_vec();
    let (src, dst) = (other.dst, other.src);
    write_ip(&mut new, h, &octets(src.ip()), &octets(dst.ip()));
    if matches!(h.fragment, Fragment::Later(_)) {
        return new;
    }
    let (at, ports) = match other.protocol {
        Protocol::Icmp => (h.l4 + 4, src.port().to_be_bytes().to_vec()),
        Protocol::Tcp | Protocol::Udp => {
            (h.l4, [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat())
        }
    };
    put(&mut new, at, &ports);
    if let Kind::Tcp(flags) = h.kind
        && flags & flag::SYN != 0
    {
        clamp(&mut new, h, mss);
    }
    if h.fragment == Fragment::Whole {
        let translated = Headers { src: src.ip(), dst: dst.ip(), ..*h };
        checksum::fill_transport(&mut new, &translated);
    } else {
        update_first(packet, &mut new, h, other);
    }
    new
}

/// Addresses, TTL and header checksum.
pub(super) fn write_ip(packet: &mut [u8], h: &Headers, src: &[u8], dst: &[u8]) {
    let ttl = [h.ttl.saturating_sub(1)];
    if h.is_ipv6() {
        put(packet, 7, &ttl);
        put(packet, 8, src);
        put(packet, 24, dst);
    } else {
        put(packet, 8, &ttl);
        put(packet, 12, src);
        put(packet, 16, dst);
        checksum::fill_ipv4(packet, h.l4);
    }
}

/// A first fragment's checksum covers bytes that are elsewhere: it changes by the difference.
fn update_first(old: &[u8], new: &mut [u8], h: &Headers, other: &Tuple) {
    let Some(at) = h.checksum_at() else { return };
    let Some(before) = word(old, at) else { return };
    if h.kind == Kind::Udp && !h.is_ipv6() && before == 0 {
        return;
    }
    let covered = |packet: &[u8], addresses: Vec<u8>| {
        let mut bytes = packet.get(h.l4..h.len).unwrap_or_default().to_vec();
        bytes.resize(bytes.len().div_ceil(2) * 2, 0);
        // ICMP has no pseudo header over IPv4.
        bytes.extend(Some(addresses).filter(|_| h.protocol != 1).into_iter().flatten());
        bytes
    };
    let from = covered(old, [octets(h.src), octets(h.dst)].concat());
    let to = covered(new, [octets(other.dst.ip()), octets(other.src.ip())].concat());
    let sum = checksum::replaced(before, &from, &to);
    let sum = if h.kind == Kind::Udp && sum == 0 { 0xffff } else { sum };
    put(new, at, &sum.to_be_bytes());
}

/// Lowers the option "maximum segment size" (RFC 9293 section 3.7.1), if it is there.
fn clamp(packet: &mut [u8], h: &Headers, mss: u16) {
    let offset = packet.get(h.l4 + 12).copied().unwrap_or_default() >> 4;
    let end = h.l4 + usize::from(offset) * 4;
    if end > h.len {
        return;
    }
    let mut at = h.l4 + 20;
    while at < end {
        let byte = |at: usize| packet.get(at).copied().filter(|_| at < end);
        match (byte(at), byte(at + 1)) {
            (Some(1), _) => at += 1,
            (Some(2), Some(4)) if at + 4 <= end => {
                if word(packet, at + 2).is_some_and(|old| old > mss) {
                    put(packet, at + 2, &mss.to_be_bytes());
                }
                return;
            }
            (Some(2..), Some(length)) if length >= 2 => at += usize::from(length),
            _ => return,
        }
    }
}
