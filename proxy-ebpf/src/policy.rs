//! A new flow's first packet -> the entry of the rule table that decides. See `proxy_ebpf_common::rule` for the steps.

use aya_ebpf::maps::lpm_trie::Key;
use proxy_ebpf_common::{
    Address, AddressKey, AddressPrefix, CLASS_HAS_RANGES, FlowKey, PortKey, PortPrefix, RuleEntry,
    SourcePrefix, action, prefix, protocol,
};

use crate::maps::{ADDRESSES, PORTS, PROTECTED, RANGES, ROUTES, SOURCES};

/// The class of a destination for packets from `side`, 0 if no rule names it. A subprogram for the sake of the stack.
#[inline(never)]
pub(crate) fn class(address: &Address, side: u8) -> u32 {
    let exact = AddressKey { address: *address, side, reserved: [0; 3] };
    // SAFETY: the map is not preallocated, so a value is never another key's.
    if let Some(class) = unsafe { ADDRESSES.get(&exact) } {
        return *class;
    }
    let data = AddressPrefix { side: [0, 0, 0, side], address: *address };
    ROUTES.get(Key::new(prefix::ADDRESS_FULL, data)).copied().unwrap_or(0)
}

/// The entry for any packet at all to this class, whatever its protocol.
#[inline(always)]
pub(crate) fn any_protocol(class: u32) -> bool {
    let key = PortKey { class, port: [0; 2], protocol: protocol::ANY, reserved: 0 };
    // SAFETY: as above.
    unsafe { PORTS.get(&key) }.is_some_and(|entry| entry.action != action::NONE)
}

/// The entry that decides on a flow with this key, if a rule names it. A subprogram for the sake of the stack.
#[inline(never)]
pub(crate) fn find(key: &FlowKey) -> Option<&'static RuleEntry> {
    let class = class(&key.dst, key.side);
    if class == 0 {
        return None;
    }
    let entry = by_port(class, key)?;
    let decided = if entry.source_group == 0 { entry } else { by_source(entry, &key.src) };
    if decided.action == action::NONE { None } else { Some(decided) }
}

#[inline(always)]
fn by_port(class: u32, key: &FlowKey) -> Option<&'static RuleEntry> {
    let mut port = PortKey { class, port: key.dst_port, protocol: key.protocol, reserved: 0 };
    if key.protocol != protocol::ICMP {
        // SAFETY: as above.
        if let Some(entry) = unsafe { PORTS.get(&port) } {
            return Some(entry);
        }
        if class & CLASS_HAS_RANGES != 0 {
            let data = PortPrefix {
                class: class.to_be_bytes(),
                protocol: key.protocol,
                port: key.dst_port,
                reserved: 0,
            };
            if let Some(entry) = RANGES.get(Key::new(prefix::PORT_FULL, data)) {
                return Some(entry);
            }
        }
    }
    port.port = [0; 2];
    // SAFETY: as above.
    if let Some(entry) = unsafe { PORTS.get(&port) } {
        return Some(entry);
    }
    port.protocol = protocol::ANY;
    // SAFETY: as above.
    unsafe { PORTS.get(&port) }
}

#[inline(always)]
fn by_source(entry: &'static RuleEntry, src: &Address) -> &'static RuleEntry {
    let data = SourcePrefix { group: entry.source_group.to_be_bytes(), address: *src };
    SOURCES.get(Key::new(prefix::ADDRESS_FULL, data)).unwrap_or(entry)
}

/// Whether a source address must not arrive from the cluster side. A subprogram for the sake of the stack.
#[inline(never)]
pub(crate) fn is_protected(src: &Address) -> bool {
    let data = AddressPrefix { side: [0; 4], address: *src };
    PROTECTED.get(Key::new(prefix::ADDRESS_FULL, data)).is_some_and(|protected| *protected != 0)
}

/// Whether a destination is a multicast or link-local address (or IPv4 broadcast), which no rule can name.
#[inline(always)]
pub(crate) fn is_local_scope(address: &Address, v6: bool) -> bool {
    if v6 {
        address[0] == 0xff || (address[0] == 0xfe && address[1] & 0xc0 == 0x80)
    } else {
        address[12] >= 224
    }
}
