//! The only writer of counters.

use proxy_ebpf_common::half;

use crate::maps::{COUNTERS, DROPS};

/// A packet of a flow. Without a branch on the direction: of two branches the compiler makes one pointer with a variable
/// offset, which the verifier refuses without CAP_PERFMON or pays for by walking every path.
#[inline(always)]
pub(crate) fn carried(counter: u32, flags: u8, bytes: u32) {
    const { assert!(half::REPLY == 1) };
    if let Some(slot) = COUNTERS.get_ptr_mut(counter) {
        let reply = u64::from(flags & half::REPLY);
        let bytes = u64::from(bytes);
        let reply_bytes = bytes & reply.wrapping_neg();
        // SAFETY: per-CPU slot, and no other program runs on this CPU before this one ends.
        unsafe {
            (*slot).original_packets += 1 - reply;
            (*slot).original_bytes += bytes - reply_bytes;
            (*slot).reply_packets += reply;
            (*slot).reply_bytes += reply_bytes;
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
