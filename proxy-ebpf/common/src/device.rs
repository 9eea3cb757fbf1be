//! The devices, and what every program must know.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Address;

/// A device that the programs are attached to or send to; key of the map is the ifindex.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Link {
    /// The device's own IPv4 address as `::ffff:a.b.c.d`, for masquerade; zero if it has none.
    pub address4: Address,
    /// The device's own global IPv6 address, for masquerade; zero if it has none.
    pub address6: Address,
    /// MTU in bytes.
    pub mtu: u16,
    /// One of [`crate::side`].
    pub side: u8,
    /// Bits of [`link`].
    pub flags: u8,
}
map_type!(Link, 36);

/// Flags of [`Link::flags`].
pub mod link {
    /// No Ethernet header (TUN, WireGuard).
    pub const L3: u8 = 1;
}

/// What every program reads first; the one element of its array.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Globals {
    /// The default device towards each side, indexed by [`crate::side`]; 0 = none.
    pub ifindex: [u32; 2],
    /// First port of the pool for translated sources, host order.
    pub snat_first: u16,
    /// Last port of the pool, host order.
    pub snat_last: u16,
    /// How many ports a new flow may try before it is refused.
    pub snat_tries: u16,
    /// One of [`stance`].
    pub stance: u8,
    /// Bits of [`stance::flags`].
    pub flags: u8,
}
map_type!(Globals, 16);

/// What the programs may do with packets that belong to no flow.
pub mod stance {
    /// Carry everything.
    pub const ALL: u8 = 0;
    /// Carry known flows only and leave the rest to the kernel: while another data path takes over or hands over.
    pub const KNOWN_FLOWS: u8 = 1;
    /// Carry everything but what was left to the kernel under [`KNOWN_FLOWS`]: while the last of that is taken over.
    pub const HANDOVER: u8 = 2;

    /// Flags of [`crate::Globals::flags`].
    pub mod flags {
        /// Drop what comes from the tailnet side and matches no rule (unless it is for this host).
        pub const DROP_UNMATCHED: u8 = 1;
        /// Drop fragments instead of tracking them.
        pub const DROP_FRAGMENTS: u8 = 2;
        /// Pass `BPF_F_IPV6` to the checksum helper (kernel 6.16 and later).
        pub const CSUM_IPV6: u8 = 4;
    }
}
