//! New flows: rule, backend, source port, and both halves into the table.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_ANY},
    cty::c_void,
    helpers::generated::{bpf_ktime_get_coarse_ns, bpf_loop},
};
use proxy_ebpf_common::{
    DropReason, FlowHalf, FlowKey, Globals, Hop, RuleEntry, action, clock, entry, half, link,
    protocol, side, snat, stance, target, tuple_hash,
};

use crate::{
    count, flows,
    maps::{GLOBALS, LEFT, LINKS, LOOKUP, RESERVED, SCRATCH, TARGETS},
    parse::{Headers, copy, flag, kind, words},
    policy,
    socket::{self, Owner},
    verdict::Verdict,
};

const EEXIST: i32 = -17;

/// The search for a source port.
#[repr(C)]
pub(crate) struct Search {
    first: u32,
    count: u32,
    hash: u32,
    translated: u32,
    local: u32,
    loops: u32,
}

/// Working space of one packet: what is too large for the stack.
#[repr(C)]
pub(crate) struct Scratch {
    /// What the packet's headers say.
    pub(crate) headers: Headers,
    /// The way back.
    pub(crate) peer: Hop,
    /// The halves of a flow while it is made.
    pub(crate) original: FlowHalf,
    pub(crate) reply: FlowHalf,
    pub(crate) reply_key: FlowKey,
    pub(crate) search: Search,
    /// What an ICMP error quotes.
    pub(crate) quoted: [u32; 32],
}

/// Ticks of the programs' clock.
#[inline(always)]
pub(crate) fn now() -> u32 {
    // SAFETY: no arguments (kernel 5.11).
    clock::ticks(unsafe { bpf_ktime_get_coarse_ns() })
}

/// Decides on a packet that belongs to no flow; on `CARRY` its flow is ready for [`commit`]. Two subprograms, one after
/// the other, for the sake of the stack.
#[inline(never)]
pub(crate) fn prepare(skb: *mut __sk_buff, h: &Headers, peer: &Hop) -> u32 {
    prepare_inline(skb, h, peer).raw()
}

#[inline(always)]
fn prepare_inline(skb: *mut __sk_buff, h: &Headers, peer: &Hop) -> Verdict {
    let key = &h.key;
    if key.side == side::CLUSTER && policy::is_protected(&key.src) {
        return Verdict::drop(DropReason::SpoofedSource);
    }
    let Some(globals) = GLOBALS.get(0) else { return Verdict::PASS };
    match globals.stance {
        stance::ALL => {}
        stance::HANDOVER if !was_left(key) => {}
        stance::HANDOVER => return Verdict::PASS,
        _ => {
            leave(key);
            return Verdict::PASS;
        }
    }
    if key.protocol != protocol::ICMP && key.dst_port == [0, 0] {
        return Verdict::PASS;
    }
    let Some(rule) = policy::find(key) else { return unmatched(h, globals) };
    if socket::is_local(&key.dst) {
        // The answer to a ping of this host's own, as far as anybody can tell: there is no socket to look up.
        if h.kind == kind::ECHO && h.tcp != 0 {
            return Verdict::PASS;
        }
        let exact = rule.flags & entry::EXACT_PORT != 0;
        match socket::owner(skb, key, h.v6) {
            Owner::Connected => return Verdict::PASS,
            Owner::Bound if !exact => return Verdict::PASS,
            _ => {}
        }
    }
    let counter = counter(rule, key);
    let verdict = admit(h, peer, globals, rule, counter);
    if verdict != Verdict::CARRY {
        count::dropped_of(counter);
    }
    verdict
}

/// Notes that a packet of a rule's was left to the kernel: until its flow is taken over, so are the next ones.
#[inline(always)]
fn leave(key: &FlowKey) {
    if policy::class(&key.dst, key.side) != 0 {
        let _full = LEFT.insert(key, 1, u64::from(BPF_ANY));
    }
}

#[inline(always)]
fn was_left(key: &FlowKey) -> bool {
    // SAFETY: the value is not used.
    unsafe { LEFT.get(key) }.is_some()
}

#[inline(always)]
fn unmatched(h: &Headers, globals: &Globals) -> Verdict {
    if h.key.side == side::TAILNET
        && globals.flags & stance::flags::DROP_UNMATCHED != 0
        && !policy::is_local_scope(&h.key.dst, h.v6)
        && !socket::is_local(&h.key.dst)
    {
        return Verdict::drop(DropReason::NoRule);
    }
    Verdict::PASS
}

#[inline(always)]
fn counter(rule: &RuleEntry, key: &FlowKey) -> u32 {
    let port = if rule.flags & entry::PER_PORT == 0 { 0 } else { u16::from_be_bytes(key.dst_port) };
    rule.counter.wrapping_add(u32::from(port))
}

#[inline(always)]
fn admit(h: &Headers, peer: &Hop, globals: &Globals, rule: &RuleEntry, counter: u32) -> Verdict {
    if h.ttl <= 1 {
        return Verdict::answer(DropReason::TtlExpired);
    }
    match rule.action {
        action::REJECT => return Verdict::answer(DropReason::Rejected),
        action::DROP => return Verdict::drop_raw(rule.reason),
        _ => {}
    }
    if h.kind == kind::TCP && cannot_start(h.tcp) {
        return Verdict::drop(DropReason::NoFlow);
    }
    let index = choose(&h.key, rule);
    let Some(backend) = TARGETS.get(index) else { return Verdict::answer(DropReason::NoBackend) };
    if backend.epoch == 0 {
        return Verdict::answer(DropReason::NoBackend);
    }
    let ifindex = match backend.hop.ifindex {
        0 if rule.to == side::TAILNET => globals.ifindex[0],
        0 => globals.ifindex[1],
        known => known,
    };
    // SAFETY: values are only ever replaced whole; a device's facts are the agent's.
    let Some(out) = (unsafe { LINKS.get(&ifindex) }) else {
        return Verdict::drop(DropReason::NoLink);
    };
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else {
        return Verdict::drop(DropReason::FlowTableFull);
    };
    // SAFETY: per-CPU, and no other program runs on this CPU before this one ends.
    let scratch = unsafe { &mut *scratch };
    let key = &h.key;
    let mut flags = 0;
    let forward = backend.flags & target::FORWARD != 0;
    let (dst, dst_port) = if forward {
        (&key.dst, key.dst_port)
    } else {
        flags |= half::DNAT;
        let keep = backend.port == [0, 0] || h.kind == kind::ECHO;
        (&backend.address, if keep { key.dst_port } else { backend.port })
    };
    let src = match rule.snat {
        snat::MASQUERADE if h.v6 => &out.address6,
        snat::MASQUERADE => &out.address4,
        snat::ADDRESS => &rule.snat_address,
        _ => &key.src,
    };
    if *src == [0; 16] {
        return Verdict::drop(DropReason::NoLink);
    }
    let translated = *src != key.src;
    if translated {
        flags |= half::SNAT;
    }
    if rule.to == key.side {
        flags |= half::HAIRPIN;
    }
    // SAFETY: as above.
    let in_mtu = unsafe { LINKS.get(&peer.ifindex) }.map_or(out.mtu, |link| link.mtu);
    let mss = core::cmp::min(in_mtu, out.mtu).saturating_sub(if h.v6 { 60 } else { 40 });
    let original = &mut scratch.original;
    copy(&mut original.src, src);
    copy(&mut original.dst, dst);
    original.src_port = key.src_port;
    original.dst_port = dst_port;
    original.target = index;
    original.epoch = backend.epoch;
    original.counter = counter;
    original.last_seen = 0;
    original.flags = flags;
    original.tcp = 0;
    original.mss = mss;
    original.mtu = out.mtu;
    original.reserved = 0;
    let fresh_until = if out.flags & link::L3 == 0 { 0 } else { Hop::NO_HEADER };
    original.hop = Hop { dmac: [0; 6], smac: [0; 6], ifindex, fresh_until };
    let reply = &mut scratch.reply;
    copy(&mut reply.src, &key.dst);
    copy(&mut reply.dst, &key.src);
    reply.src_port = key.dst_port;
    reply.dst_port = key.src_port;
    reply.target = index;
    reply.epoch = backend.epoch;
    reply.counter = counter;
    reply.last_seen = 0;
    reply.flags = flags | half::REPLY;
    reply.tcp = 0;
    reply.mss = mss;
    reply.mtu = in_mtu;
    reply.reserved = 0;
    reply.hop = *peer;
    scratch.reply_key = scratch.original.pair_key(key);
    Verdict::CARRY
}

/// Chooses a target by hash; a number that is no target's if there is none. A subprogram for the sake of the stack.
#[inline(never)]
fn choose(key: &FlowKey, rule: &RuleEntry) -> u32 {
    if rule.lookup_len == 0 {
        return u32::MAX;
    }
    if rule.lookup_len == 1 {
        return rule.target;
    }
    let hash = tuple_hash(key, rule.flags & entry::CLIENT_AFFINITY != 0);
    let slot = ((u64::from(hash) * u64::from(rule.lookup_len)) >> 32) as u32;
    LOOKUP.get(rule.target.wrapping_add(slot)).copied().unwrap_or(u32::MAX)
}

/// Whether a TCP segment belongs to a conversation that must already be known.
#[inline(always)]
fn cannot_start(flags: u8) -> bool {
    flags & (flag::RST | flag::FIN) != 0 || flags & (flag::SYN | flag::ACK) == flag::SYN | flag::ACK
}

/// Puts the prepared flow into the table.
#[inline(never)]
pub(crate) fn commit(skb: *mut __sk_buff, h: &Headers) -> u32 {
    let (Some(globals), Some(scratch)) = (GLOBALS.get(0), SCRATCH.get_ptr_mut(0)) else {
        return Verdict::PASS.raw();
    };
    // SAFETY: per-CPU, and no other program runs on this CPU before this one ends.
    let scratch = unsafe { &mut *scratch };
    let mut verdict = claim(skb, h, globals, scratch);
    if verdict == Verdict::CARRY {
        verdict = match flows::insert(&h.key, &scratch.original) {
            0 => {
                count::created(scratch.original.counter);
                return Verdict::CARRY.raw();
            }
            // Another CPU was faster with a packet of the same flow: its answer holds.
            EEXIST => Verdict::CARRY,
            _ => Verdict::drop(DropReason::FlowTableFull),
        };
        flows::remove(&scratch.reply_key);
    }
    if verdict != Verdict::CARRY {
        count::dropped_of(scratch.original.counter);
    }
    verdict.raw()
}

/// Finds a source port whose reply tuple is free and takes it by inserting the reply half.
#[inline(always)]
fn claim(skb: *mut __sk_buff, h: &Headers, globals: &Globals, scratch: &mut Scratch) -> Verdict {
    let search = &mut scratch.search;
    search.first = u32::from(globals.snat_first);
    search.count = u32::from(globals.snat_last).saturating_sub(search.first) + 1;
    search.hash = tuple_hash(&h.key, false);
    // A hairpin may lead back to where it began: with the same ports too, its reply tuple would be the packet's own.
    search.loops = u32::from(
        scratch.original.flags & half::HAIRPIN != 0
            && words(&scratch.reply_key.src) == words(&h.key.src)
            && words(&scratch.reply_key.dst) == words(&h.key.dst),
    );
    search.translated = u32::from(scratch.original.flags & half::SNAT != 0);
    search.local = u32::from(search.translated != 0 && socket::is_local(&scratch.original.src));
    let mut attempt = Attempt { skb, verdict: Verdict::PASS.raw() };
    // SAFETY: the callback's frame ends before this one does. Flags must be 0.
    unsafe {
        bpf_loop(
            u32::from(globals.snat_tries) + 1,
            try_port as *mut c_void,
            (&raw mut attempt).cast(),
            0,
        );
        // Its place on the stack is used again; without CAP_PERFMON half a pointer must not be overwritten.
        (&raw mut attempt.skb).write_volatile(core::ptr::null_mut());
    }
    match Verdict::from_raw(attempt.verdict) {
        Verdict::PASS => Verdict::drop(DropReason::PortsExhausted),
        verdict => verdict,
    }
}

/// One search for a source port, as its turns see it: `PASS` while none is found.
struct Attempt {
    skb: *mut __sk_buff,
    verdict: u32,
}

/// Tries one source port; not 0 ends the search. A callback (kernel 5.17), and everything but the packet comes from a map:
/// the verifier walks one turn where it would walk every turn of a loop.
unsafe extern "C" fn try_port(turn: u32, attempt: *mut Attempt) -> u64 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return 1 };
    // SAFETY: per-CPU, and no other program runs on this CPU before this one ends; the caller's frame outlives this one.
    let (scratch, attempt) = unsafe { (&mut *scratch, &mut *attempt) };
    attempt.verdict = try_inline(attempt.skb, scratch, turn).raw();
    u64::from(attempt.verdict != Verdict::PASS.raw())
}

#[inline(always)]
fn try_inline(skb: *mut __sk_buff, scratch: &mut Scratch, turn: u32) -> Verdict {
    let (h, search) = (&scratch.headers, &scratch.search);
    let port = if turn == 0 {
        u32::from(u16::from_be_bytes(h.key.src_port))
    } else {
        search.first + search.hash.wrapping_add(turn - 1).checked_rem(search.count).unwrap_or(0)
    };
    let checked = turn != 0 || search.translated != 0;
    if checked && (port.wrapping_sub(search.first) >= search.count || is_reserved(port as u16)) {
        return Verdict::PASS;
    }
    let bytes = (port as u16).to_be_bytes();
    scratch.reply_key.dst_port = bytes;
    scratch.original.src_port = bytes;
    if h.kind == kind::ECHO {
        scratch.reply_key.src_port = bytes;
        scratch.original.dst_port = bytes;
    }
    if scratch.search.local != 0 && socket::owner(skb, &scratch.reply_key, h.v6) != Owner::None {
        return Verdict::PASS;
    }
    if scratch.search.loops != 0
        && scratch.reply_key.src_port == h.key.src_port
        && scratch.reply_key.dst_port == h.key.dst_port
    {
        return Verdict::PASS;
    }
    match flows::insert(&scratch.reply_key, &scratch.reply) {
        0 => Verdict::CARRY,
        EEXIST => Verdict::PASS,
        _ => Verdict::drop(DropReason::FlowTableFull),
    }
}

#[inline(always)]
fn is_reserved(port: u16) -> bool {
    RESERVED.get(u32::from(port >> 6)).is_some_and(|word| word >> (port & 63) & 1 != 0)
}
