//! Random packets with corners: replies, repeats, errors about what was carried, sums that become zero, cuts, spoilt headers.

use std::net::SocketAddr;

use proxy_rules::{
    Side,
    packet::{Build, Fragment, Headers, Kind, checksum, parse, word},
};

use super::{Random, rules};
use crate::{differential::repaired, support::frame};

/// A packet as it came and as it left.
#[derive(Clone, Debug)]
struct Carried {
    side: Side,
    ip: Vec<u8>,
    out: Side,
    left: Vec<u8>,
}

/// Remembers what was carried, to go on from there.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    carried: Vec<Carried>,
}

impl Traffic {
    pub(crate) fn carried(&mut self, side: Side, ip: &[u8], out: Side, left: &[u8]) {
        self.carried.push(Carried { side, ip: ip.to_vec(), out, left: left.to_vec() });
    }

    /// The next packet: the side that it comes from, and its frame.
    pub(crate) fn next(&self, random: &mut Random) -> (Side, Vec<u8>) {
        let (side, mut ip) = self.packet(random);
        if random.one_in(12) && !ip.is_empty() {
            let at = random.below(ip.len().min(68));
            ip[at] = random.pick(&[0, 1, 0xff, ip[at] ^ 1, ip[at] ^ 0x80]);
            ip = repaired(ip);
        }
        if random.one_in(20) {
            ip.extend([0xee; 5]);
        }
        let mut frame = frame(&ip);
        match random.below(60) {
            0 => frame[0] |= 1,
            1 => frame[12..14].copy_from_slice(&[0x81, 0]),
            2 => frame.truncate(14 + random.below(frame.len() - 13)),
            3 => frame[13] ^= 0xdd,
            _ => {}
        }
        (side, frame)
    }

    fn packet(&self, random: &mut Random) -> (Side, Vec<u8>) {
        let fresh = |random: &mut Random| {
            let side = random.pick(&[Side::Tailnet, Side::Tailnet, Side::Cluster]);
            let v6 = random.one_in(2);
            let socket = |random: &mut Random| {
                SocketAddr::new(random.pick(&rules::hosts(v6)), random.pick(&rules::PORTS))
            };
            let (src, mut dst) = (socket(random), socket(random));
            if random.one_in(50) {
                dst.set_port(0);
            }
            (side, build(random, src, dst, None))
        };
        if self.carried.is_empty() {
            return fresh(random);
        }
        let last = random.pick(&self.carried[self.carried.len().saturating_sub(20)..]);
        let Ok(left) = parse(&last.left, None) else { return fresh(random) };
        let (from, to) =
            (SocketAddr::new(left.src, left.src_port), SocketAddr::new(left.dst, left.dst_port));
        match random.below(10) {
            0..=2 => fresh(random),
            3..=5 => (last.out, build(random, to, from, Some(&left))),
            6 => (last.side, last.ip),
            7 => (last.side, zero_sum(&last)),
            _ => (last.out, error(random, &left, &last.left)),
        }
    }
}

/// The packet again with a payload that makes the checksum zero when it leaves.
fn zero_sum(last: &Carried) -> Vec<u8> {
    let (Ok(came), Ok(left)) = (parse(&last.ip, None), parse(&last.left, None)) else {
        return last.ip.clone();
    };
    let payload = came.l4 + if matches!(came.kind, Kind::Tcp(_)) { 20 } else { 8 };
    let (Some(at), true) = (left.checksum_at(), came.fragment == Fragment::Whole) else {
        return last.ip.clone();
    };
    let (Some(missing), Some(old)) =
        (word(&last.left, at), word(&last.ip, came.len.saturating_sub(2)))
    else {
        return last.ip.clone();
    };
    if came.len < payload + 2 || (came.len - came.l4) % 2 == 1 || came.kind == Kind::Error {
        return last.ip.clone();
    }
    let mut ip = last.ip.clone();
    let sum = checksum::sum(&[old.to_be_bytes(), missing.to_be_bytes()].concat());
    ip[came.len - 2..came.len].copy_from_slice(&sum.to_be_bytes());
    repaired(ip)
}

/// An error about a packet that has left, from its destination or a router.
fn error(random: &mut Random, about: &Headers, packet: &[u8]) -> Vec<u8> {
    let v6 = about.is_ipv6();
    let (kind, code, rest) = if v6 {
        random.pick(&[(1, 4, [0; 4]), (2, 0, [0, 0, 5, 0]), (3, 0, [0; 4]), (4, 1, [0, 0, 0, 40])])
    } else {
        random.pick(&[(3, 3, [0; 4]), (3, 4, [0, 0, 5, 0]), (11, 0, [0; 4]), (12, 0, [9, 0, 0, 0])])
    };
    let whole = about.len.min(packet.len());
    let short = (about.l4 + 8).min(whole);
    // Not through the middle of a checksum: half of one cannot be judged.
    let longer = (short + 2 * random.below(20)).min(whole & !1).max(short.min(whole));
    let end = random.pick(&[short, longer, whole.min(540), short - 1]);
    let src = if random.one_in(2) { about.dst } else { random.pick(&rules::hosts(v6)) };
    let dst = if random.one_in(9) { random.pick(&rules::hosts(v6)) } else { about.src };
    let build = Build::icmp(src, dst, kind, code, rest).payload(&packet[..end]);
    (if random.one_in(15) { build.ttl(1) } else { build }).bytes()
}

/// A packet between these two; of the same protocol as `like`.
fn build(random: &mut Random, src: SocketAddr, dst: SocketAddr, like: Option<&Headers>) -> Vec<u8> {
    let kind = like.map_or_else(
        || {
            random.pick(&[
                Kind::Tcp(2),
                Kind::Tcp(2),
                Kind::Udp,
                Kind::Udp,
                Kind::Echo,
                Kind::Other,
            ])
        },
        |headers| headers.kind,
    );
    let mut packet = match kind {
        Kind::Tcp(_) => {
            let common = if like.is_some() { [0x12, 0x10, 0x10, 0x11] } else { [2, 2, 2, 0x10] };
            let flags = if random.one_in(6) {
                random.pick(&[0, 1, 4, 0x14, 0x11, 0x18, 0x12, 2, 3, 6])
            } else {
                random.pick(&common)
            };
            let options: &[&[u8]] = &[
                &[],
                &[2, 4, 5, 0xb4],
                &[1, 2, 4, 0xff, 0xff],
                &[4, 2, 3, 3, 7, 2, 4, 5, 0xb4],
                &[2, 4, 0, 9],
                &[0, 2, 4, 5, 0xb4],
                &[8, 0, 2, 4, 5, 0xb4],
                &[2, 3, 5, 0xb4],
                &[1; 40],
                &[
                    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                    1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 5, 0xb4,
                ],
            ];
            let (seq, ack) = (random.number() as u32, random.number() as u32);
            Build::tcp(src, dst, flags).numbers(seq, ack).tcp_options(random.pick(options))
        }
        Kind::Udp => Build::udp(src, dst),
        Kind::Echo => {
            let id = if like.is_some() { dst.port() } else { random.pick(&rules::PORTS) };
            Build::echo(src.ip(), dst.ip(), id, like.is_some())
        }
        Kind::Error | Kind::Other if random.one_in(2) => {
            Build::icmp(src.ip(), dst.ip(), random.pick(&[5, 13, 135, 9]), 0, [0; 4])
        }
        Kind::Error | Kind::Other => Build::other(src.ip(), dst.ip(), random.pick(&[47, 50, 132])),
    };
    let len = if random.one_in(25) { 1100 + random.below(380) } else { random.below(30) };
    packet = packet.payload((0..len).map(|_| random.number() as u8).collect::<Vec<u8>>());
    if random.one_in(20) {
        packet = packet.ttl(random.pick(&[0, 1, 2, 255]));
    }
    if random.one_in(2) {
        packet = packet.df();
    }
    if random.one_in(8) {
        packet = packet.ip_options(random.pick(&[&[1u8; 4][..], &[7, 7, 4, 0, 0, 0, 0], &[0; 40]]));
    }
    if src.is_ipv6() {
        for _ in 0..random.pick(&[0, 0, 0, 0, 1, 1, 2, 4, 5]) {
            packet = packet.extension(random.pick(&[0, 43, 60]), random.pick(&[0, 1, 7]));
        }
    } else if random.one_in(6) {
        packet = packet.no_checksum();
    }
    if random.one_in(12) {
        packet =
            packet.fragment(random.pick(&[1, 2]), random.pick(&[0, 0, 8, 1480]), random.one_in(2));
    }
    packet.bytes()
}
