//! What the kernel programs and the user side must agree on, and nothing else.
//!
//! Every type here is a map key or value. Bytes that travel on the wire keep network order as byte arrays, so
//! no integer has an ambiguous order; everything else is in host order. `map_type!` proves at compile
//! time that a type has the stated size and no padding, so a layout cannot drift by accident.
#![no_std]
#![warn(missing_docs)]

/// Declares a map type's layout: asserts its size, proves the absence of padding, and lets aya copy it.
macro_rules! map_type {
    ($type:ty, $size:literal) => {
        const _: () =
            assert!(size_of::<$type>() == $size, "map layout changed: raise LAYOUT_VERSION");
        const _: fn() = || {
            fn plain<T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable>() {}
            plain::<$type>();
        };
        // SAFETY: FromBytes and IntoBytes, required just above, mean that every bit pattern is valid and
        // that there is no padding.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $type {}
    };
}

pub mod clock;
mod counter;
mod device;
mod drop_reason;
mod flow;
mod hash;
pub mod name;
mod rule;

pub use counter::{Counter, CounterIndex};
pub use device::{Globals, Link, link, stance};
pub use drop_reason::DropReason;
pub use flow::{FlowHalf, FlowKey, FlowKeyV4, FragmentKey, FragmentPorts, Hop, half, tcp};
pub use hash::tuple_hash;
pub use rule::{
    ADDRESS_BITS, AddressKey, AddressPrefix, CLASS_HAS_RANGES, PortKey, PortPrefix, RuleEntry,
    SourcePrefix, Target, action, entry, prefix, snat, target,
};

/// Raised with every change of a map's layout; pinned maps of another version are never reused.
pub const LAYOUT_VERSION: u32 = 2;

/// An address as the maps hold it: IPv6 as it is, IPv4 as `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2).
pub type Address = [u8; 16];

/// Where a packet came from, as the maps hold it.
pub mod side {
    /// From the tailnet (the TUN device).
    pub const TAILNET: u8 = 0;
    /// From the cluster (the pod's Ethernet device).
    pub const CLUSTER: u8 = 1;
}

/// Protocol numbers of flow and port keys. ICMP and ICMPv6 echo are both `ICMP`; the address tells them apart.
pub mod protocol {
    /// Any protocol: only in [`crate::PortKey`] and [`crate::PortPrefix`].
    pub const ANY: u8 = 0;
    /// ICMP and ICMPv6 echo; the identifier takes the place of the port.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
}
