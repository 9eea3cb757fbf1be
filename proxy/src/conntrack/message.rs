//! Entries as ctnetlink attributes (include/uapi/linux/netfilter/nfnetlink_conntrack.h).

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use netlink_packet_core::{DefaultNla, Emitable as _, NLA_F_NESTED, Nla as _};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, IPTuple, ProtoInfo, ProtoInfoTCP, ProtoTuple, Protocol as Number, Status,
    Tuple as TuplePart,
};
use proxy_rules::{Flow, FlowState, Protocol};

use super::{Entry, Tuple};

const CTA_NAT_SRC: u16 = 6;
const CTA_NAT_DST: u16 = 13;
const CTA_MARK_MASK: u16 = 21;
const CTA_NAT_V4_MINIP: u16 = 1;
const CTA_NAT_V4_MAXIP: u16 = 2;
const CTA_NAT_PROTO: u16 = 3;
const CTA_NAT_V6_MINIP: u16 = 4;
const CTA_NAT_V6_MAXIP: u16 = 5;
const CTA_PROTONAT_PORT_MIN: u16 = 1;
const CTA_PROTONAT_PORT_MAX: u16 = 2;
const CTA_PROTO_ICMP_ID: u16 = 4;
const CTA_PROTO_ICMP_TYPE: u16 = 5;
const CTA_PROTO_ICMP_CODE: u16 = 6;
const CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: u16 = 4;
const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;
/// ICMPv6's three attributes follow ICMP's in the same order.
const ICMPV6_OFFSET: u16 = 3;

/// Nobody told us the windows of a flow that another path carried: let any segment pass.
const IP_CT_TCP_FLAG_BE_LIBERAL: u8 = 0x08;

// enum tcp_conntrack, include/uapi/linux/netfilter/nf_conntrack_tcp.h
const TCP_SYN_SENT: u8 = 1;
const TCP_SYN_RECV: u8 = 2;
const TCP_ESTABLISHED: u8 = 3;
const TCP_FIN_WAIT: u8 = 4;
const TCP_CLOSE_WAIT: u8 = 5;
const TCP_LAST_ACK: u8 = 6;
const TCP_TIME_WAIT: u8 = 7;
const TCP_CLOSE: u8 = 8;

/// The flow state that a state of the kernel's stands for.
pub(super) fn flow_state(tcp: u8) -> FlowState {
    match tcp {
        TCP_SYN_RECV => FlowState::SynReceived,
        TCP_ESTABLISHED => FlowState::Established,
        TCP_FIN_WAIT | TCP_CLOSE_WAIT => FlowState::FinWait,
        TCP_LAST_ACK | TCP_TIME_WAIT => FlowState::TimeWait,
        TCP_CLOSE => FlowState::Closed,
        _ => FlowState::SynSent,
    }
}

fn tcp_state(state: FlowState) -> u8 {
    match state {
        FlowState::SynSent | FlowState::Unreplied => TCP_SYN_SENT,
        FlowState::SynReceived => TCP_SYN_RECV,
        FlowState::Established | FlowState::Replied => TCP_ESTABLISHED,
        FlowState::FinWait => TCP_FIN_WAIT,
        FlowState::TimeWait => TCP_TIME_WAIT,
        FlowState::Closed => TCP_CLOSE,
    }
}

/// Restricts a dump to marks.
pub(super) fn mark_filter(mark: u32, mask: u32) -> Vec<ConntrackAttribute> {
    let mask = DefaultNla::new(CTA_MARK_MASK, mask.to_be_bytes().to_vec());
    vec![ConntrackAttribute::CtaMark(mark), ConntrackAttribute::Other(mask)]
}

/// Names an entry by its original direction.
pub(super) fn original(entry: &Entry) -> Vec<ConntrackAttribute> {
    vec![ConntrackAttribute::CtaTupleOrig(tuple(entry.protocol, &entry.original, false))]
}

/// A flow as an entry to be created. The reply tuple is given untranslated: the kernel derives the translated one
/// from the NAT attributes, and sets up its own NAT state with it.
pub(super) fn create(flow: &Flow, mark: u32) -> Vec<ConntrackAttribute> {
    let original = Tuple { src: flow.client, dst: flow.frontend };
    let reversed = Tuple { src: flow.frontend, dst: flow.client };
    let replied = !matches!(flow.state, FlowState::SynSent | FlowState::Unreplied);
    let mut status = Status::Confirmed;
    if replied {
        status |= Status::SeenReply;
    }
    if flow.state.is_assured() {
        status |= Status::Assured;
    }
    let left = flow.state.timeout(flow.protocol).saturating_sub(flow.idle);
    let mut attributes = vec![
        ConntrackAttribute::CtaTupleOrig(tuple(flow.protocol, &original, false)),
        ConntrackAttribute::CtaTupleReply(tuple(flow.protocol, &reversed, true)),
        ConntrackAttribute::CtaStatus(status),
        ConntrackAttribute::CtaTimeout(left.as_secs().max(1) as u32),
        ConntrackAttribute::CtaMark(mark),
    ];
    if flow.protocol == Protocol::Tcp {
        // Flags and the mask that says which of them to set; the crate's own type cannot be made from outside.
        let liberal = |kind| {
            let value = vec![IP_CT_TCP_FLAG_BE_LIBERAL, IP_CT_TCP_FLAG_BE_LIBERAL];
            ProtoInfoTCP::Other(DefaultNla::new(kind, value))
        };
        attributes.push(ConntrackAttribute::CtaProtoInfo(vec![ProtoInfo::TCP(vec![
            ProtoInfoTCP::State(tcp_state(flow.state)),
            liberal(CTA_PROTOINFO_TCP_FLAGS_ORIGINAL),
            liberal(CTA_PROTOINFO_TCP_FLAGS_REPLY),
        ])]));
    }
    if flow.is_snat() {
        let changed = flow.source.port() != flow.client.port();
        attributes.push(nat(CTA_NAT_SRC, flow.protocol, flow.source, changed));
    }
    if flow.is_dnat() {
        let changed = flow.backend.port() != flow.frontend.port();
        attributes.push(nat(CTA_NAT_DST, flow.protocol, flow.backend, changed));
    }
    attributes
}

/// One kind of translation, to exactly this address and port.
fn nat(kind: u16, protocol: Protocol, to: SocketAddr, port_changed: bool) -> ConntrackAttribute {
    let (octets, min, max) = match to.ip() {
        IpAddr::V4(a) => (a.octets().to_vec(), CTA_NAT_V4_MINIP, CTA_NAT_V4_MAXIP),
        IpAddr::V6(a) => (a.octets().to_vec(), CTA_NAT_V6_MINIP, CTA_NAT_V6_MAXIP),
    };
    let mut parts = vec![DefaultNla::new(min, octets.clone()), DefaultNla::new(max, octets)];
    // With a port the kernel takes that one or fails; without, it keeps the packet's.
    if protocol != Protocol::Icmp || port_changed {
        let port = to.port().to_be_bytes().to_vec();
        let ports = [
            DefaultNla::new(CTA_PROTONAT_PORT_MIN, port.clone()),
            DefaultNla::new(CTA_PROTONAT_PORT_MAX, port),
        ];
        parts.push(nested(CTA_NAT_PROTO, &ports));
    }
    ConntrackAttribute::Other(nested(kind, &parts))
}

fn nested(kind: u16, parts: &[DefaultNla]) -> DefaultNla {
    let mut value = vec![0; parts.buffer_len()];
    parts.emit(&mut value);
    DefaultNla::new(kind | NLA_F_NESTED, value)
}

fn tuple(protocol: Protocol, tuple: &Tuple, reply: bool) -> Vec<TuplePart> {
    let ipv6 = tuple.src.is_ipv6();
    let ip =
        vec![IPTuple::SourceAddress(tuple.src.ip()), IPTuple::DestinationAddress(tuple.dst.ip())];
    let ports = |number| {
        vec![
            ProtoTuple::Protocol(number),
            ProtoTuple::SourcePort(tuple.src.port()),
            ProtoTuple::DestinationPort(tuple.dst.port()),
        ]
    };
    let proto = match protocol {
        Protocol::Tcp => ports(Number::Tcp),
        Protocol::Udp => ports(Number::Udp),
        Protocol::Icmp => {
            let (number, offset, request, answer) = if ipv6 {
                (Number::Ipv6Icmp, ICMPV6_OFFSET, 128, 129)
            } else {
                (Number::Icmp, 0, 8, 0)
            };
            let id = tuple.src.port().to_be_bytes().to_vec();
            let kind = if reply { answer } else { request };
            let other = |kind: u16, value| ProtoTuple::Other(DefaultNla::new(kind + offset, value));
            vec![
                ProtoTuple::Protocol(number),
                other(CTA_PROTO_ICMP_ID, id),
                other(CTA_PROTO_ICMP_TYPE, vec![kind]),
                other(CTA_PROTO_ICMP_CODE, vec![0]),
            ]
        }
    };
    vec![TuplePart::Ip(ip), TuplePart::Proto(proto)]
}

/// An entry of a dump; `None` for what we do not carry (other protocols, other ICMP types).
pub(super) fn entry(attributes: Vec<ConntrackAttribute>) -> Option<Entry> {
    let (mut original, mut reply) = (None, None);
    let mut status = Status::empty();
    let (mut mark, mut timeout, mut tcp_state) = (0, 0, None);
    for attribute in attributes {
        match attribute {
            ConntrackAttribute::CtaTupleOrig(parts) => original = parse_tuple(&parts),
            ConntrackAttribute::CtaTupleReply(parts) => reply = parse_tuple(&parts),
            ConntrackAttribute::CtaStatus(bits) => status = bits,
            ConntrackAttribute::CtaTimeout(seconds) => timeout = seconds,
            ConntrackAttribute::CtaMark(value) => mark = value,
            ConntrackAttribute::CtaProtoInfo(infos) => {
                for info in infos {
                    let ProtoInfo::TCP(parts) = info else { continue };
                    tcp_state = parts.into_iter().find_map(|part| match part {
                        ProtoInfoTCP::State(state) => Some(state),
                        _ => None,
                    });
                }
            }
            _ => {}
        }
    }
    let (protocol, original) = original?;
    let (_, reply) = reply?;
    Some(Entry {
        protocol,
        original,
        reply,
        mark,
        replied: status.contains(Status::SeenReply),
        tcp_state: tcp_state.filter(|_| protocol == Protocol::Tcp),
        timeout: Duration::from_secs(u64::from(timeout)),
    })
}

fn parse_tuple(parts: &[TuplePart]) -> Option<(Protocol, Tuple)> {
    let (mut src, mut dst) = (None, None);
    let (mut protocol, mut sport, mut dport) = (None, None, None);
    for part in parts {
        match part {
            TuplePart::Ip(addresses) => {
                for address in addresses {
                    match address {
                        IPTuple::SourceAddress(a) => src = Some(*a),
                        IPTuple::DestinationAddress(a) => dst = Some(*a),
                        _ => {}
                    }
                }
            }
            TuplePart::Proto(fields) => {
                for field in fields {
                    match field {
                        ProtoTuple::Protocol(Number::Tcp) => protocol = Some(Protocol::Tcp),
                        ProtoTuple::Protocol(Number::Udp) => protocol = Some(Protocol::Udp),
                        ProtoTuple::Protocol(Number::Icmp | Number::Ipv6Icmp) => {
                            protocol = Some(Protocol::Icmp);
                        }
                        ProtoTuple::SourcePort(port) => sport = Some(*port),
                        ProtoTuple::DestinationPort(port) => dport = Some(*port),
                        ProtoTuple::Other(other) => {
                            let mut value = vec![0; other.value_len()];
                            other.emit_value(&mut value);
                            match (other.kind() % ICMPV6_OFFSET, value.as_slice()) {
                                (1, &[a, b]) => {
                                    sport = Some(u16::from_be_bytes([a, b]));
                                    dport = sport;
                                }
                                // Types other than echo have no identifier of ours.
                                (2, &[kind]) if ![0, 8, 128, 129].contains(&kind) => return None,
                                _ => {}
                            }
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let tuple = Tuple { src: SocketAddr::new(src?, sport?), dst: SocketAddr::new(dst?, dport?) };
    Some((protocol?, tuple))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuples_survive_the_round_trip() {
        for (src, dst) in
            [("192.0.2.1:7", "198.51.100.2:7"), ("[2001:db8::1]:7", "[2001:db8::2]:7")]
        {
            let given = Tuple { src: src.parse().unwrap(), dst: dst.parse().unwrap() };
            for protocol in Protocol::ALL {
                let parts = tuple(protocol, &given, false);
                assert_eq!(parse_tuple(&parts), Some((protocol, given)), "{protocol}");
            }
        }
    }

    #[test]
    fn every_state_maps_back() {
        for state in [
            FlowState::SynSent,
            FlowState::SynReceived,
            FlowState::Established,
            FlowState::FinWait,
            FlowState::TimeWait,
            FlowState::Closed,
        ] {
            assert_eq!(flow_state(tcp_state(state)), state);
        }
    }
}
