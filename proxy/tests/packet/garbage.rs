//! Damaged packets and noise, through XDP and TC as a frame meets them: the programs do what the specification says,
//! byte for byte, and count it.

use proxy_rules::{
    Side, Snat,
    model::{Model, Verdict},
    packet::{Build, parse},
};

use crate::{
    differential::{env, repaired, same_counters},
    random::Random,
    support::*,
};

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const XDP_REDIRECT: i32 = 4;

/// The programs and the specification, side by side.
struct Both {
    shadow: World,
    model: Model,
    /// Frames by end: left alone, dropped or answered, carried by TC, carried by XDP.
    ends: [u32; 4],
}

impl Both {
    fn new() -> Self {
        let shadow = world(service(Snat::Masquerade));
        let model = Model::new(shadow_table(), env());
        Self { shadow, model, ends: [0; 4] }
    }

    fn meets(&mut self, side: Side, frame: &[u8], what: &str) {
        // The kernel itself refuses some frames, for both programs alike.
        let Ok(express) = self.shadow.run_xdp(side, frame) else { return };
        let (action, got) = if express.action == XDP_PASS {
            assert_eq!(hex(&express.frame), hex(frame), "{what}: changed and passed on");
            let Ok(verdict) = self.shadow.run(side, frame) else { return };
            (verdict.action, verdict.frame)
        } else {
            assert!(matches!(express.action, XDP_DROP | XDP_REDIRECT), "{what}: {express:?}");
            (if express.action == XDP_DROP { DROP } else { REDIRECT }, express.frame)
        };
        let wanted = self.model.process(side, frame);
        let addresses = got.get(..12).unwrap_or_default();
        let (end, as_wanted) = match &wanted.verdict {
            Verdict::Pass => (0, action == PASS && got == frame),
            Verdict::Drop(_) => (1, action == DROP),
            Verdict::Answer { bytes, .. } => (1, action == REDIRECT && got == *bytes),
            Verdict::Forward { bytes, .. } => {
                let bytes = [addresses, bytes.get(12..).unwrap_or_default()].concat();
                (2 + usize::from(express.action != XDP_PASS), action == REDIRECT && got == bytes)
            }
        };
        assert!(
            as_wanted,
            "{what}, from the {side} side:\n{}\nkernel: {action} {}\nmodel: {wanted:#?}",
            hex(frame),
            hex(&got),
        );
        self.ends[end] += 1;
    }
}

fn shadow_table() -> proxy_rules::RuleTable {
    let settings = proxy_rules::Settings { max_flows: 4096, ..proxy_rules::Settings::default() };
    proxy_rules::RuleTable::new(service(Snat::Masquerade), settings)
}

/// Packets of every kind that the programs look into: first ones, and those of flows that they have begun.
fn whole(f: Family) -> Vec<(&'static str, Side, Vec<u8>)> {
    let (there, back) = (Side::Tailnet, Side::Cluster);
    let (client, front) = (f.client(4000), f.frontend(80));
    let (host, us) = (f.backend(8080), f.masquerade(4000));
    let datagram = || Build::udp(client, front).payload("abcdefgh");
    let (kind, code) = if f.is_v6() { (3, 0) } else { (11, 0) };
    let about = Build::udp(us, host).payload("abcdefgh").bytes();
    let syn = Build::syn(client, front).tcp_options([4, 2, 3, 3, 7, 2, 4, 5, 0xb4, 1]);
    vec![
        ("tcp", there, syn.bytes()),
        ("udp", there, datagram().bytes()),
        ("udp reply", back, Build::udp(host, us).payload("abcd").bytes()),
        ("udp again", there, datagram().bytes()),
        ("udp with options", there, datagram().ip_options([7, 7, 4, 0, 0, 0, 0, 0]).bytes()),
        ("udp with extensions", there, datagram().extension(0, 0).extension(60, 1).bytes()),
        ("echo", there, Build::echo(f.client, f.frontend, 7, false).payload("ping").bytes()),
        (
            "error",
            back,
            Build::icmp(f.backend, f.masquerade, kind, code, [0; 4]).payload(about).bytes(),
        ),
        ("first fragment", there, datagram().fragment(9, 0, true).bytes()),
        ("later fragment", there, datagram().fragment(9, 16, false).bytes()),
        ("other protocol", there, Build::other(f.client, f.frontend, 47).payload("gre").bytes()),
        (
            "other protocol with extensions",
            there,
            Build::other(f.client, f.frontend, 47).extension(60, 1).payload("gre").bytes(),
        ),
    ]
}

#[test]
fn a_packet_cut_anywhere_or_with_any_byte_spoilt_is_never_rewritten_wrongly() {
    kernel_or_skip!();
    let mut both = Both::new();
    for f in FAMILIES {
        for (kind, side, packet) in whole(f) {
            both.meets(side, &frame(&packet), kind);
            for len in 0..packet.len() {
                let what = format!("{kind} cut at {len}");
                both.meets(side, &frame(&packet)[..14 + len], &what);
                let mut shorter = packet[..len].to_vec();
                if let (Some(room), true) = (
                    shorter.get_mut(if f.is_v6() { 4..6 } else { 2..4 }),
                    len >= if f.is_v6() { 40 } else { 20 },
                ) {
                    let said = if f.is_v6() { len - 40 } else { len };
                    room.copy_from_slice(&(said as u16).to_be_bytes());
                }
                // Now the length is right, and the padding must not count.
                let mut shorter = repaired(shorter);
                both.meets(side, &frame(&shorter), &format!("{what}, length mended"));
                shorter.extend([0xa5; 30]);
                both.meets(side, &frame(&repaired(shorter)), &format!("{what}, padded"));
            }
            for at in 0..packet.len().min(76) {
                for value in
                    [0, 0xff, packet[at] ^ 1, packet[at] ^ 0x80, packet[at].wrapping_add(4)]
                {
                    let mut spoilt = packet.clone();
                    spoilt[at] = value;
                    let what = format!("{kind}, byte {at} is {value:#x}");
                    both.meets(side, &frame(&repaired(spoilt)), &what);
                }
            }
        }
    }
    println!("left alone, dropped, carried by TC, by XDP: {:?}", both.ends);
    assert!(both.ends.iter().all(|frames| *frames > 100), "{:?}", both.ends);
    same_counters(0, &both.shadow, &both.model);
}

#[test]
fn noise_is_left_alone_or_dropped() {
    kernel_or_skip!();
    let mut both = Both::new();
    let mut random = Random::new(17);
    for number in 0..6000 {
        let v6 = random.one_in(2);
        let mut noise: Vec<u8> =
            (0..20 + random.below(120)).map(|_| random.number() as u8).collect();
        // Mostly far enough from noise to be looked into.
        if !random.one_in(4) {
            noise[0] = if v6 { 0x60 } else { random.pick(&[0x45, 0x45, 0x46, 0x4f, 0x44]) };
            let next = random.pick(&[0, 1, 6, 17, 43, 44, 51, 58, 60, 135]);
            noise[if v6 { 6 } else { 9 }] = next;
        }
        let len = noise.len();
        if !random.one_in(3) {
            let (at, said) = if v6 { (4, len.saturating_sub(40)) } else { (2, len) };
            noise[at..at + 2].copy_from_slice(&(said as u16).to_be_bytes());
        }
        let noise = repaired(noise);
        let side = random.pick(&[Side::Tailnet, Side::Cluster]);
        both.meets(side, &frame(&noise), &format!("noise {number}"));
    }
    println!("left alone, dropped, carried by TC, by XDP: {:?}", both.ends);
    assert_eq!(both.ends[2..], [0, 0], "no noise has the address of a frontend");
    assert!(both.ends[1] > 500, "{:?}", both.ends);
    same_counters(0, &both.shadow, &both.model);
}

#[test]
fn a_packet_in_a_loop_loses_one_hop_each_time_and_is_answered_at_the_end() {
    kernel_or_skip!();
    for f in FAMILIES {
        let to = proxy_rules::Action::Forward { to: Side::Tailnet, snat: Snat::Keep };
        let all = proxy_rules::PortRange::ANY;
        let mut shadow = world(vec![rule("loop", None, f.frontend, all, to)]);
        let mut packet = Build::udp(f.client(4000), f.frontend(80)).payload("round").ttl(3).bytes();
        for left in [2, 1] {
            packet = carried(&mut shadow, Side::Tailnet, packet);
            let headers = parse(&packet, None).unwrap();
            assert_eq!(headers.ttl, left);
            assert!(proxy_rules::packet::checksum::is_right(&packet, &headers));
        }
        let reason = proxy_rules::DropReason::TtlExpired;
        let error = parse(&answered(&mut shadow, Side::Tailnet, &packet, reason), None).unwrap();
        assert_eq!((error.dst, error.kind), (f.client, proxy_rules::packet::Kind::Error));
    }
}
