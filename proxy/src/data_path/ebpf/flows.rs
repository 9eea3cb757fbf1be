//! Halves of the flow table <-> flows that any data path understands.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use proxy_ebpf_common::{FlowHalf, FlowKey, Hop, clock, half, protocol, tcp};
use proxy_rules::{Flow, FlowState, Protocol, Side};

use super::image::{address, side};

fn socket(ip: &[u8; 16], port: [u8; 2]) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(Ipv6Addr::from(*ip)).to_canonical(), u16::from_be_bytes(port))
}

/// The protocol of a key.
pub(super) fn protocol(key: &FlowKey) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| protocol.number() == key.protocol)
}

/// How far a flow has come, by what each direction has shown (see `proxy_ebpf_common::tcp`).
pub(super) fn state(key: &FlowKey, original: &FlowHalf, reply: Option<&FlowHalf>) -> FlowState {
    let replied = reply.is_some_and(|reply| reply.last_seen != 0);
    if key.protocol != protocol::TCP {
        return if replied { FlowState::Replied } else { FlowState::Unreplied };
    }
    let back = reply.map_or(0, |reply| reply.tcp);
    let both = original.tcp & back;
    let either = original.tcp | back;
    if either & tcp::RST != 0 {
        FlowState::Closed
    } else if both & tcp::FIN != 0 {
        FlowState::TimeWait
    } else if either & tcp::FIN != 0 {
        FlowState::FinWait
    } else if original.tcp & tcp::OPEN != 0 && back & (tcp::SYN | tcp::OPEN) != 0 {
        FlowState::Established
    } else if back & tcp::SYN != 0 {
        FlowState::SynReceived
    } else {
        FlowState::SynSent
    }
}

/// When a flow last carried a packet.
pub(super) fn last_seen(original: &FlowHalf, reply: Option<&FlowHalf>) -> u32 {
    original.last_seen.max(reply.map_or(0, |reply| reply.last_seen))
}

/// A flow for the outside.
pub(super) fn export(
    key: &FlowKey,
    original: &FlowHalf,
    reply: Option<&FlowHalf>,
    now: u32,
) -> Option<Flow> {
    Some(Flow {
        rule: None,
        protocol: protocol(key)?,
        from: if key.side == side(Side::Tailnet) { Side::Tailnet } else { Side::Cluster },
        client: socket(&key.src, key.src_port),
        frontend: socket(&key.dst, key.dst_port),
        source: socket(&original.src, original.src_port),
        backend: socket(&original.dst, original.dst_port),
        state: state(key, original, reply),
        idle: Duration::from_secs(clock::seconds(now.saturating_sub(last_seen(original, reply)))),
    })
}

/// What a flow needs of the table that it is put into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) target: u32,
    pub(super) epoch: u32,
    pub(super) counter: u32,
    pub(super) to: u8,
    /// Ways out: of the original direction, of the reply.
    pub(super) hops: [Hop; 2],
    pub(super) mtus: [u16; 2],
}

/// The key of a flow's original half.
pub(super) fn key(flow: &Flow) -> FlowKey {
    FlowKey {
        src: address(flow.client.ip()),
        dst: address(flow.frontend.ip()),
        src_port: flow.client.port().to_be_bytes(),
        dst_port: flow.frontend.port().to_be_bytes(),
        protocol: flow.protocol.number(),
        side: side(flow.from),
        reserved: [0; 2],
    }
}

/// Both halves of a flow from another data path.
pub(super) fn import(flow: &Flow, key: &FlowKey, place: &Place, now: u32) -> [FlowHalf; 2] {
    let idle = u32::try_from(clock::from_seconds(flow.idle.as_secs())).unwrap_or(u32::MAX);
    let seen = now.saturating_sub(idle).max(1);
    let (there, back, replied) = match flow.state {
        FlowState::SynSent => (tcp::SYN, 0, false),
        FlowState::SynReceived => (tcp::SYN, tcp::SYN, true),
        FlowState::Established => (tcp::OPEN, tcp::OPEN, true),
        FlowState::FinWait => (tcp::OPEN | tcp::FIN, tcp::OPEN, true),
        FlowState::TimeWait => (tcp::OPEN | tcp::FIN, tcp::OPEN | tcp::FIN, true),
        FlowState::Closed => (tcp::OPEN | tcp::RST, tcp::OPEN, true),
        FlowState::Unreplied => (0, 0, false),
        FlowState::Replied => (0, 0, true),
    };
    let mut flags = 0;
    if flow.is_dnat() {
        flags |= half::DNAT;
    }
    if flow.is_snat() {
        flags |= half::SNAT;
    }
    if place.to == key.side {
        flags |= half::HAIRPIN;
    }
    let mss = place.mtus.iter().copied().min().unwrap_or(0).saturating_sub(if flow.is_ipv6() {
        60
    } else {
        40
    });
    let [out, home] = place.mtus;
    let [forth, return_] = place.hops;
    let original = FlowHalf {
        src: address(flow.source.ip()),
        dst: address(flow.backend.ip()),
        src_port: flow.source.port().to_be_bytes(),
        dst_port: flow.backend.port().to_be_bytes(),
        target: place.target,
        epoch: place.epoch,
        counter: place.counter,
        last_seen: seen,
        flags,
        tcp: there,
        mss,
        mtu: out,
        reserved: 0,
        hop: forth,
    };
    let reply = FlowHalf {
        src: key.dst,
        dst: key.src,
        src_port: key.dst_port,
        dst_port: key.src_port,
        flags: flags | half::REPLY,
        tcp: back,
        last_seen: if replied { seen } else { 0 },
        mtu: home,
        hop: return_,
        ..original
    };
    [original, reply]
}
