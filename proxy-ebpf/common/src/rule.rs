//! The rule table as the kernel reads it.
//!
//! A new flow is matched in steps, each one lookup, none depending on the number of rules:
//! 1. destination address -> *class*: exact ([`AddressKey`]), else longest prefix ([`AddressPrefix`]);
//! 2. class, protocol, port -> entry: exact ([`PortKey`]); else, if the class has ranges, the longest
//!    [`PortPrefix`] (ranges are cut into aligned blocks); else the protocol's any-port key; else the any-protocol
//!    key. ICMP goes straight to its any-port key;
//! 3. if the entry is limited to sources: longest [`SourcePrefix`] of its group -> rule;
//! 4. rule -> target: the only one, or by hash through the lookup table.
//!
//! The compiler copies less specific rules into more specific classes and groups, so that one answer is final
//! and the kernel never searches back.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Hop};

/// An exact destination address, and the side the packet comes from.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C, align(4))]
pub struct AddressKey {
    /// Destination address.
    pub address: Address,
    /// One of [`crate::side`].
    pub side: u8,
    /// Always zero.
    pub reserved: [u8; 3],
}
map_type!(AddressKey, 20);

/// Data of a longest-prefix key on addresses. The side comes first and is always matched in full.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C, align(4))]
pub struct AddressPrefix {
    /// Zero, then one of [`crate::side`] in the last byte.
    pub side: [u8; 4],
    /// The address; IPv4 as `::ffff:a.b.c.d`, so that its prefixes are 96 bits longer.
    pub address: Address,
}
map_type!(AddressPrefix, 20);

/// Bits before the address in [`AddressPrefix`] and [`SourcePrefix`].
pub const ADDRESS_BITS: u32 = 32;

/// A class's exact port. Port zero stands for any port, and with protocol `ANY` for any packet at all: no packet
/// that can be matched has destination port zero.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct PortKey {
    /// The class that the destination address belongs to; 0 is no class.
    pub class: u32,
    /// Destination port, network order.
    pub port: [u8; 2],
    /// One of [`crate::protocol`]; `ANY` only with port zero.
    pub protocol: u8,
    /// Always zero.
    pub reserved: u8,
}
map_type!(PortKey, 8);

/// Bit of a class number that says the class has port ranges. The number itself is the class with this bit.
pub const CLASS_HAS_RANGES: u32 = 1 << 31;

/// Data of a longest-prefix key on ports: class and protocol are always matched in full.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C, align(4))]
pub struct PortPrefix {
    /// Class, big-endian.
    pub class: [u8; 4],
    /// One of [`crate::protocol`]; `ANY` for rules on every protocol.
    pub protocol: u8,
    /// Destination port, network order.
    pub port: [u8; 2],
    /// Always zero; keeps the key a multiple of four bytes.
    pub reserved: u8,
}
map_type!(PortPrefix, 8);

/// Lengths of the fixed parts of prefix keys, in bits.
pub mod prefix {
    /// Class and protocol in [`crate::PortPrefix`]; the port's own bits follow.
    pub const PORT: u32 = 40;
    /// A whole [`crate::PortPrefix`], for lookups.
    pub const PORT_FULL: u32 = 56;
    /// A whole [`crate::AddressPrefix`] or [`crate::SourcePrefix`].
    pub const ADDRESS_FULL: u32 = 160;
}

/// Data of a longest-prefix key on source addresses within one group.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C, align(4))]
pub struct SourcePrefix {
    /// Group, big-endian.
    pub group: [u8; 4],
    /// Source address.
    pub address: Address,
}
map_type!(SourcePrefix, 20);

/// What a port, port prefix or source group leads to.
///
/// In [`PortKey`] and [`PortPrefix`] values, `source_group` != 0 means "ask the group first"; if it has no answer,
/// the rest of the entry applies (`action::NONE` = not ours).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RuleEntry {
    /// One of [`action`].
    pub action: u8,
    /// One of [`snat`].
    pub snat: u8,
    /// Bits of [`entry`].
    pub flags: u8,
    /// Side that the packet leaves by, one of [`crate::side`].
    pub to: u8,
    /// Group of source prefixes to ask first, 0 = none.
    pub source_group: u32,
    /// The series that counts the flow. With `entry::PER_PORT`: that of port 0, the port is added.
    pub counter: u32,
    /// DNAT: first slot in the lookup table if `lookup_len` > 1, else the target itself. Forward: the target
    /// that stands for the rule.
    pub target: u32,
    /// Slots in the lookup table: 0 = no backend takes new flows, 1 = `target` is the only one.
    pub lookup_len: u32,
    /// Reason number of `action::DROP`.
    pub reason: u32,
    /// The source address of `snat::ADDRESS`.
    pub snat_address: Address,
}
map_type!(RuleEntry, 40);

/// What a rule does.
pub mod action {
    /// Nothing: the packet is not ours.
    pub const NONE: u8 = 0;
    /// Translate the destination to a target.
    pub const DNAT: u8 = 1;
    /// Forward to the other side, destination unchanged.
    pub const FORWARD: u8 = 2;
    /// Refuse: TCP reset or ICMP unreachable.
    pub const REJECT: u8 = 3;
    /// Drop silently with the entry's reason.
    pub const DROP: u8 = 4;
}

/// How the source is translated.
pub mod snat {
    /// It is kept.
    pub const KEEP: u8 = 0;
    /// The outgoing link's own address.
    pub const MASQUERADE: u8 = 1;
    /// The entry's `snat_address`.
    pub const ADDRESS: u8 = 2;
}

/// Flags of [`RuleEntry::flags`].
pub mod entry {
    /// Choose the target by client address alone.
    pub const CLIENT_AFFINITY: u8 = 1;
    /// Each port of the range is a series of its own.
    pub const PER_PORT: u8 = 2;
    /// The rule names exactly one port: it goes before a local listener on that port.
    pub const EXACT_PORT: u8 = 4;
}

/// A backend of one rule (or the rule itself, for `FORWARD`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Target {
    /// Address to write; unused for `FORWARD`.
    pub address: Address,
    /// Port to write, network order; zero = keep the packet's.
    pub port: [u8; 2],
    /// Bits of [`target`].
    pub flags: u16,
    /// Changes whenever the slot is given to another backend; flows of another epoch have lost their backend.
    /// 0 = the slot is free.
    pub epoch: u32,
    /// The next hop, fed by the agent while it lives.
    pub hop: Hop,
}
map_type!(Target, 44);

/// Flags of [`Target::flags`].
pub mod target {
    /// `FORWARD`: the destination stays.
    pub const FORWARD: u16 = 1;
}
