//! The engine at a TC hook: everything.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_ANY, TC_ACT_SHOT, TC_ACT_UNSPEC},
    helpers::generated::bpf_redirect_neigh,
};
use proxy_ebpf_common::{DropReason, FlowHalf, FragmentKey, FragmentPorts, Hop, Target, stance};

use crate::{
    answer,
    carry::{self, Life},
    count, create, express, flows, icmp,
    maps::{FRAGMENTS, GLOBALS, SCRATCH},
    mss,
    packet::{Packet as _, Tc, at, read_macs},
    parse::{self, Headers, flag, fragment, kind},
    policy,
    verdict::Verdict,
};

/// What became of a packet, with all that is needed to act on it.
struct Outcome {
    verdict: Verdict,
    action: i32,
}

impl Outcome {
    /// As one number, for subprograms. Actions are small and not negative.
    #[inline(always)]
    fn pack(&self) -> u32 {
        self.verdict.raw() | (self.action as u32) << 16
    }

    #[inline(always)]
    fn unpack(packed: u32) -> Self {
        Self { verdict: Verdict::from_raw(packed & 0xffff), action: (packed >> 16) as i32 }
    }
}

/// Carries one packet: the body of every TC entry point.
#[inline(always)]
pub(crate) fn run<const LINK: usize>(skb: *mut __sk_buff, side: u8) -> i32 {
    let express = express::run(&mut Tc::<LINK> { skb }, side);
    if express != TC_ACT_UNSPEC {
        return express;
    }
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return TC_ACT_UNSPEC };
    // SAFETY: per-CPU, and no other program runs on this CPU before this one ends. The headers live in a map, not on the
    // stack: the verifier then forgets which branch wrote them, and walks what follows once instead of once a branch.
    let (h, peer) = unsafe { (&mut (*scratch).headers, &mut (*scratch).peer) };
    let mut mtu = 0;
    let outcome = match Verdict::from_raw(read::<LINK>(skb, side, h)) {
        Verdict::CARRY => engine(&mut Tc::<LINK> { skb }, h, peer, &mut mtu),
        verdict => done(verdict),
    };
    if outcome.verdict == Verdict::CARRY {
        return outcome.action;
    }
    if outcome.verdict == Verdict::PASS {
        return TC_ACT_UNSPEC;
    }
    count::dropped(outcome.verdict.reason());
    if outcome.verdict.wants_answer()
        && answer::answer(skb, h, LINK as u32, outcome.verdict.raw(), mtu) != 0
    {
        return aya_ebpf::bindings::TC_ACT_REDIRECT;
    }
    TC_ACT_SHOT
}

/// Parses the packet; `CARRY` means that it can be worked on.
#[inline(never)]
fn read<const LINK: usize>(skb: *mut __sk_buff, side: u8, h: &mut Headers) -> u32 {
    Headers::clear(h);
    match parse::parse(&mut Tc::<LINK> { skb }, side, h) {
        Ok(()) => Verdict::CARRY.raw(),
        Err(verdict) => verdict.raw(),
    }
}

#[inline(always)]
const fn done(verdict: Verdict) -> Outcome {
    Outcome { verdict, action: 0 }
}

#[inline(always)]
fn engine<const LINK: usize>(
    packet: &mut Tc<LINK>,
    h: &mut Headers,
    peer: &mut Hop,
    mtu: &mut u32,
) -> Outcome {
    if h.kind == kind::OTHER && h.fragment != fragment::LATER {
        return done(other(h));
    }
    let now = create::now();
    if h.kind == kind::ERROR {
        return Outcome::unpack(icmp_error::<LINK>(packet.skb, h, now));
    }
    if h.fragment != fragment::NONE
        && let verdict = Verdict::from_raw(fragment_of(h))
        && verdict != Verdict::CARRY
    {
        return done(verdict);
    }
    let mut found = flows::get(&h.key);
    if let Some(flow) = &mut found {
        match carry::life(h, flow, carry::backend(flow)) {
            Life::Alive => {}
            Life::Gone => {
                count::dropped_of(flow.counter);
                carry::forget(&h.key, flow);
                let answered = h.kind == kind::TCP;
                return done(if answered {
                    Verdict::answer(DropReason::BackendGone)
                } else {
                    Verdict::drop(DropReason::BackendGone)
                });
            }
            Life::Over => {
                carry::forget(&h.key, flow);
                found = None;
            }
        }
    }
    if found.is_none() {
        if h.fragment == fragment::LATER {
            return done(orphan(h));
        }
        if !learn_peer(packet, now, peer) {
            return done(Verdict::PASS);
        }
        let mut verdict = Verdict::from_raw(create::prepare(packet.skb, h, peer));
        if verdict == Verdict::CARRY {
            verdict = Verdict::from_raw(create::commit(packet.skb, h));
        }
        if verdict != Verdict::CARRY {
            return done(verdict);
        }
        found = flows::get(&h.key);
    }
    let Some(flow) = found else { return done(Verdict::drop(DropReason::FlowTableFull)) };
    let Some(backend) = carry::backend(flow) else {
        return done(Verdict::drop(DropReason::BackendGone));
    };
    let verdict = carry::check(packet, h, flow);
    if verdict != Verdict::CARRY {
        *mtu = u32::from(flow.mtu);
        count::dropped_of(flow.counter);
        return done(verdict);
    }
    if carry::note(h, flow, now) && learn_peer(packet, now, peer) {
        carry::care(&h.key, flow, peer, now);
    }
    if h.fragment == fragment::FIRST {
        remember(h);
    }
    if h.kind == kind::TCP && h.tcp & flag::SYN != 0 {
        mss::clamp(packet.skb, h.l4, LINK as u32 + h.ip_len, u32::from(flow.mss));
    }
    if !carry::rewrite(packet, h, flow) {
        count::dropped_of(flow.counter);
        return done(Verdict::drop(DropReason::RewriteFailed));
    }
    send(packet, h.v6, flow, backend, now)
}

/// A protocol that is never carried: ours only if a rule claims every protocol.
#[inline(always)]
fn other(h: &Headers) -> Verdict {
    if policy::is_local_scope(&h.key.dst, h.v6) {
        return Verdict::PASS;
    }
    let class = policy::class(&h.key.dst, h.key.side);
    if class != 0 && policy::any_protocol(class) {
        return Verdict::drop(DropReason::UnsupportedProtocol);
    }
    Verdict::PASS
}

#[inline(always)]
fn fragment_key(h: &Headers) -> FragmentKey {
    FragmentKey {
        src: h.key.src,
        dst: h.key.dst,
        id: h.id,
        protocol: h.key.protocol,
        side: h.key.side,
        reserved: [0; 2],
    }
}

/// Remembers a first fragment's ports. A subprogram for the sake of the stack.
#[inline(never)]
fn remember(h: &Headers) -> u32 {
    let ports = FragmentPorts { src_port: h.key.src_port, dst_port: h.key.dst_port };
    let _full = FRAGMENTS.insert(fragment_key(h), ports, u64::from(BPF_ANY));
    0
}

/// Gives a later fragment its ports; unless `CARRY`, the packet goes no further. A subprogram for the sake of the stack.
#[inline(never)]
fn fragment_of(h: &mut Headers) -> u32 {
    let drops =
        GLOBALS.get(0).is_some_and(|globals| globals.flags & stance::flags::DROP_FRAGMENTS != 0);
    if drops && policy::class(&h.key.dst, h.key.side) != 0 {
        return Verdict::drop(DropReason::FragmentsDisabled).raw();
    }
    if h.fragment == fragment::FIRST {
        return Verdict::CARRY.raw();
    }
    // SAFETY: a race with eviction could show another datagram's ports; the flow lookup then fails or, at worst, the
    // receiver's reassembly checksum does.
    match unsafe { FRAGMENTS.get(fragment_key(h)) } {
        Some(ports) => {
            h.key.src_port = ports.src_port;
            h.key.dst_port = ports.dst_port;
            Verdict::CARRY.raw()
        }
        None => orphan(h).raw(),
    }
}

/// A later fragment without a flow.
#[inline(always)]
fn orphan(h: &Headers) -> Verdict {
    if policy::class(&h.key.dst, h.key.side) == 0 {
        Verdict::PASS
    } else {
        Verdict::drop(DropReason::FragmentWithoutFirst)
    }
}

/// Notes where the packet came from, as the way back.
#[inline(always)]
fn learn_peer<const LINK: usize>(packet: &Tc<LINK>, now: u32, peer: &mut Hop) -> bool {
    peer.ifindex = packet.ifindex();
    peer.fresh_until = Hop::NO_HEADER;
    if LINK != 0 {
        let Some(ethernet) = at::<[u16; 7], _>(packet, 0) else { return false };
        // SAFETY: `at` checked the bounds.
        unsafe { read_macs(ethernet, peer) };
        peer.fresh_until = now + carry::LEARNED_FOR;
    }
    true
}

/// Sends the rewritten packet on.
#[inline(always)]
fn send<const LINK: usize>(
    packet: &mut Tc<LINK>,
    v6: bool,
    flow: &FlowHalf,
    backend: &Target,
    now: u32,
) -> Outcome {
    let way = carry::way(&flow.hop, flow.flags, backend, now);
    if way.ifindex == 0 {
        return done(Verdict::drop(DropReason::NoLink));
    }
    let action = if way.fresh {
        packet.send(way.hop, way.ifindex, v6)
    } else {
        // SAFETY: the kernel checks the ifindex.
        packet
            .make_ethernet(v6)
            .map(|_| unsafe { bpf_redirect_neigh(way.ifindex, core::ptr::null_mut(), 0, 0) as i32 })
    };
    match action {
        Some(action) => Outcome { verdict: Verdict::CARRY, action },
        None => done(Verdict::drop(DropReason::RewriteFailed)),
    }
}

/// An ICMP error: about a packet of ours, or not. A subprogram for the sake of the stack.
#[inline(never)]
fn icmp_error<const LINK: usize>(skb: *mut __sk_buff, h: &Headers, now: u32) -> u32 {
    error_inline(&mut Tc::<LINK> { skb }, h, now).pack()
}

#[inline(always)]
fn error_inline<const LINK: usize>(packet: &mut Tc<LINK>, h: &Headers, now: u32) -> Outcome {
    let link = LINK as u32;
    let Some(quote) = icmp::quote(packet.skb, h, link) else { return done(Verdict::PASS) };
    let Some(flow) = icmp::half(&quote) else { return done(Verdict::PASS) };
    let Some(backend) = carry::backend(flow) else { return done(Verdict::PASS) };
    if h.ttl <= 1 {
        count::dropped_of(flow.counter);
        return done(Verdict::drop(DropReason::TtlExpired));
    }
    // What the flow presents as its source also speaks for the routers behind it.
    let src = if quote.key.src == flow.src { h.key.src } else { flow.src };
    count::carried(flow.counter, flow.flags, h.ip_len);
    let rewritten = match carry::rewrite_ip(packet, h, &src, &flow.dst) {
        Some(outer) => icmp::rewrite(packet.skb, h, link, &quote, flow, outer),
        None => false,
    };
    if !rewritten {
        count::dropped_of(flow.counter);
        return done(Verdict::drop(DropReason::RewriteFailed));
    }
    send(packet, h.v6, flow, backend, now)
}
