//! The only writer of counters.

use proxy_ebpf_common::half;

use crate::maps::{COUNTERS, DROPS};

/// A packet of a flow.
#[inline(always)]
pub(crate) fn carried(counter: u32, flags: u8, bytes: u32) {
    if let Some(slot) = COUNTERS.get_ptr_mut(counter) {
        // SAFETY: per-CPU slot, and no other program runs on this CPU before this one ends.
        unsafe {
            if flags & half::REPLY == 0 {
                (*slot).original_packets += 1;
                (*slot).original_bytes += u64::from(bytes);
            } else {
                (*slot).reply_packets += 1;
                (*slot).reply_bytes += u64::from(bytes);
            }
        }
    }
}

/// A flow was created.
#[inline(always)]
pub(crate) fn created(counter: u32) {
    if let Some(slot) = COUNTERS.get_ptr_mut(counter) {
        // SAFETY: as above.
        unsafe { (*slot).flows += 1 };
    }
}

/// A packet of this series was dropped.
#[inline(always)]
pub(crate) fn dropped_of(counter: u32) {
    if let Some(slot) = COUNTERS.get_ptr_mut(counter) {
        // SAFETY: as above.
        unsafe { (*slot).dropped += 1 };
    }
}

/// A packet was dropped for this reason.
#[inline(always)]
pub(crate) fn dropped(reason: u32) {
    if let Some(slot) = DROPS.get_ptr_mut(reason) {
        // SAFETY: as above.
        unsafe { *slot += 1 };
    }
}
