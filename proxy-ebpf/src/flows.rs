//! The flow table, whose two families are maps of their own.

use aya_ebpf::bindings::BPF_NOEXIST;
use proxy_ebpf_common::{FlowHalf, FlowKey, FlowKeyV4};

use crate::{
    maps::{FLOWS_V4, FLOWS_V6},
    parse::{MAPPED, words},
};

/// The short key of a tuple of IPv4. Neither side ever mixes families.
#[inline(always)]
fn v4(key: &FlowKey) -> Option<FlowKeyV4> {
    let (src, dst) = (words(&key.src), words(&key.dst));
    if src[0] | src[1] != 0 || src[2] != MAPPED {
        return None;
    }
    // SAFETY: plain words; ports, protocol and side lie side by side at a multiple of four.
    unsafe {
        let rest = (&raw const key.src_port).cast::<[u32; 2]>();
        let [ports, kind] = *rest;
        Some(core::mem::transmute::<[u32; 4], FlowKeyV4>([src[3], dst[3], ports, kind]))
    }
}

/// The half for a tuple.
#[inline(never)]
fn look_up(key: &FlowKey) -> *mut FlowHalf {
    match v4(key) {
        Some(key) => FLOWS_V4.get_ptr_mut(&key),
        None => FLOWS_V6.get_ptr_mut(key),
    }
    .unwrap_or(core::ptr::null_mut())
}

/// The half for a tuple.
#[inline(always)]
pub(crate) fn get(key: &FlowKey) -> Option<&'static mut FlowHalf> {
    let half = look_up(key);
    // SAFETY: null or an element. The maps are not preallocated: a value is never another key's.
    if half.is_null() { None } else { Some(unsafe { &mut *half }) }
}

/// Inserts a half unless its tuple is taken: 0, or a negative error number.
#[inline(never)]
pub(crate) fn insert(key: &FlowKey, half: &FlowHalf) -> i32 {
    let result = match v4(key) {
        Some(key) => FLOWS_V4.insert(&key, half, u64::from(BPF_NOEXIST)),
        None => FLOWS_V6.insert(key, half, u64::from(BPF_NOEXIST)),
    };
    result.map_or_else(|error| error, |()| 0)
}

/// Removes a half, if it is there.
#[inline(never)]
pub(crate) fn remove(key: &FlowKey) -> u32 {
    let _gone = match v4(key) {
        Some(key) => FLOWS_V4.remove(&key),
        None => FLOWS_V6.remove(key),
    };
    0
}
