//! The flow table: two halves a flow, each the full answer for its direction.
//!
//! A half's key is the tuple as seen on the wire before translation; its value holds the tuple to write. The
//! key of the opposite half follows from the value (see [`FlowHalf::pair_key`]), so neither stores the other's
//! and a missing half is rebuilt from the one that is left.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Address;

/// The tuple of a packet as it arrives. ICMP echo: both ports are the identifier.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(8))]
pub struct FlowKey {
    /// Source address.
    pub src: Address,
    /// Destination address.
    pub dst: Address,
    /// Source port, network order.
    pub src_port: [u8; 2],
    /// Destination port, network order.
    pub dst_port: [u8; 2],
    /// One of [`crate::protocol`], never `ANY`.
    pub protocol: u8,
    /// The side it came from, one of [`crate::side`].
    pub side: u8,
    /// Always zero.
    pub reserved: [u8; 2],
}
map_type!(FlowKey, 40);

/// The same for IPv4, whose flows have a table of their own: a short key is hashed and compared in half the time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(8))]
pub struct FlowKeyV4 {
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
    /// Source port, network order.
    pub src_port: [u8; 2],
    /// Destination port, network order.
    pub dst_port: [u8; 2],
    /// One of [`crate::protocol`], never `ANY`.
    pub protocol: u8,
    /// The side it came from, one of [`crate::side`].
    pub side: u8,
    /// Always zero.
    pub reserved: [u8; 2],
}
map_type!(FlowKeyV4, 16);

impl FlowKey {
    /// The key in the table of IPv4 flows, if it is one of IPv4's.
    pub const fn v4(&self) -> Option<FlowKeyV4> {
        let (Some(src), Some(dst)) = (unmapped(&self.src), unmapped(&self.dst)) else {
            return None;
        };
        Some(FlowKeyV4 {
            src,
            dst,
            src_port: self.src_port,
            dst_port: self.dst_port,
            protocol: self.protocol,
            side: self.side,
            reserved: [0; 2],
        })
    }
}

/// The IPv4 address in its mapped form.
const fn unmapped(address: &Address) -> Option<[u8; 4]> {
    match *address {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
        _ => None,
    }
}

const fn mapped([a, b, c, d]: [u8; 4]) -> Address {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

impl From<FlowKeyV4> for FlowKey {
    fn from(key: FlowKeyV4) -> Self {
        Self {
            src: mapped(key.src),
            dst: mapped(key.dst),
            src_port: key.src_port,
            dst_port: key.dst_port,
            protocol: key.protocol,
            side: key.side,
            reserved: [0; 2],
        }
    }
}

/// A cached next hop: where the packet leaves, and the Ethernet header it leaves with.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Hop {
    /// Destination Ethernet address.
    pub dmac: [u8; 6],
    /// Source Ethernet address.
    pub smac: [u8; 6],
    /// The device, 0 if not known.
    pub ifindex: u32,
    /// Until when the Ethernet addresses may be used: ticks of [`crate::clock`], 0 = never,
    /// [`Hop::NO_HEADER`] = the device has no link header.
    pub fresh_until: u32,
}
map_type!(Hop, 20);

/// One direction of a flow.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(8))]
pub struct FlowHalf {
    /// Source address to write.
    pub src: Address,
    /// Destination address to write.
    pub dst: Address,
    /// Source port to write, network order.
    pub src_port: [u8; 2],
    /// Destination port to write, network order.
    pub dst_port: [u8; 2],
    /// Index into the targets; with `epoch`, tells whether the backend still exists.
    pub target: u32,
    /// The target's epoch when the flow was created.
    pub epoch: u32,
    /// The series that counts this flow.
    pub counter: u32,
    /// When this half last carried a packet: ticks of [`crate::clock`], 0 = not yet.
    pub last_seen: u32,
    /// Bits of [`half`].
    pub flags: u8,
    /// Bits of [`tcp`] seen in this direction.
    pub tcp: u8,
    /// The largest MSS to let through in this direction's SYN, 0 = no clamp.
    pub mss: u16,
    /// MTU of the link that this direction leaves by, 0 = not known.
    pub mtu: u16,
    /// Always zero.
    pub reserved: u16,
    /// Where this direction leaves.
    pub hop: Hop,
}
map_type!(FlowHalf, 80);

/// Flags of [`FlowHalf::flags`].
pub mod half {
    /// The reply direction (otherwise the original one).
    pub const REPLY: u8 = 1;
    /// Destination is translated in the original direction (DNAT).
    pub const DNAT: u8 = 2;
    /// Source is translated in the original direction (SNAT).
    pub const SNAT: u8 = 4;
    /// The original direction leaves by the side it came from (hairpin).
    pub const HAIRPIN: u8 = 8;
}

/// TCP progress of one direction: the bits of [`FlowHalf::tcp`].
pub mod tcp {
    /// A SYN was seen.
    pub const SYN: u8 = 1;
    /// A FIN was seen.
    pub const FIN: u8 = 2;
    /// A reset was seen.
    pub const RST: u8 = 4;
    /// A segment with ACK and without SYN was seen: this side considers the connection open.
    pub const OPEN: u8 = 8;
}

impl Hop {
    /// Value of `fresh_until` for devices without link header: always fresh, and no header is written.
    pub const NO_HEADER: u32 = u32::MAX;
}

impl FlowHalf {
    /// The key of the opposite half: our translated tuple, reversed, as it will arrive from the other side.
    pub const fn pair_key(&self, key: &FlowKey) -> FlowKey {
        let side = if self.flags & half::HAIRPIN == 0 { key.side ^ 1 } else { key.side };
        FlowKey {
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
            protocol: key.protocol,
            side,
            reserved: [0; 2],
        }
    }
}

/// What ties the fragments of one datagram together (RFC 791 section 3.2, RFC 8200 section 4.5).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(8))]
pub struct FragmentKey {
    /// Source address.
    pub src: Address,
    /// Destination address.
    pub dst: Address,
    /// Identification; IPv4's 16 bits are the last two bytes.
    pub id: [u8; 4],
    /// Protocol number.
    pub protocol: u8,
    /// The side it came from.
    pub side: u8,
    /// Always zero.
    pub reserved: [u8; 2],
}
map_type!(FragmentKey, 40);

/// The ports of a datagram's first fragment, network order.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FragmentPorts {
    /// Source port.
    pub src_port: [u8; 2],
    /// Destination port.
    pub dst_port: [u8; 2],
}
map_type!(FragmentPorts, 4);
