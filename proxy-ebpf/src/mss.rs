//! MSS clamp on SYN and SYN-ACK (RFC 9293 section 3.7.1): lowered to what both links carry, never raised.

use aya_ebpf::{
    bindings::__sk_buff,
    cty::c_void,
    helpers::generated::{bpf_l4_csum_replace, bpf_loop},
};

use crate::packet::{load, store};

const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_MSS: u8 = 2;
/// The longest options: data offset 15.
const MAX_OPTIONS: u32 = 40;

/// Lowers the MSS option of the TCP header at `l4` to `mss`, if it is there and larger. A header that runs beyond the IP
/// packet's `end` is left as it is: what follows is padding.
#[inline(never)]
pub(crate) fn clamp(skb: *mut __sk_buff, l4: u32, end: u32, mss: u32) -> u32 {
    let mut offset_byte = [0u8; 1];
    if !load(skb, l4 + 12, &mut offset_byte) {
        return 0;
    }
    let words = u32::from(offset_byte[0] >> 4);
    if words <= 5 {
        return 0;
    }
    let end_of_options = l4 + words * 4;
    if end_of_options > end {
        return 0;
    }
    let mut walk = Walk { skb, place: l4 + 20, end: end_of_options, option: [0; 4], found: 0 };
    // SAFETY: the callback's frame ends before this one does. Flags must be 0.
    unsafe {
        bpf_loop(MAX_OPTIONS, step as *mut c_void, (&raw mut walk).cast(), 0);
        // Its place on the stack is used again; without CAP_PERFMON half a pointer must not be overwritten.
        (&raw mut walk.skb).write_volatile(core::ptr::null_mut());
    }
    if walk.found == 0 {
        return 0;
    }
    let [_, _, high, low] = walk.option;
    lower(skb, l4, walk.place + 2, [high, low], mss as u16)
}

/// A walk through TCP options.
#[repr(C)]
struct Walk {
    skb: *mut __sk_buff,
    /// Where it stands.
    place: u32,
    /// Where the options end.
    end: u32,
    /// The bytes there.
    option: [u8; 4],
    /// Not 0 if they are the MSS option.
    found: u32,
}

/// One step; not 0 ends the walk. A callback (kernel 5.17): the verifier walks one step instead of forty. Bytes are copied by a
/// helper, since an index into a map would make it walk every path without CAP_PERFMON.
unsafe extern "C" fn step(_turn: u32, walk: *mut Walk) -> u64 {
    // SAFETY: the caller's frame outlives this one.
    let walk = unsafe { &mut *walk };
    let place = walk.place;
    if place + 4 > walk.end || !load(walk.skb, place, &mut walk.option) {
        return 1;
    }
    let [kind, size, ..] = walk.option;
    if kind == OPTION_END {
        return 1;
    }
    if kind == OPTION_NOP {
        walk.place = place + 1;
        return 0;
    }
    if kind == OPTION_MSS && size == 4 {
        walk.found = 1;
        return 1;
    }
    if size < 2 {
        return 1;
    }
    walk.place = place + u32::from(size);
    0
}

#[inline(always)]
fn lower(skb: *mut __sk_buff, l4: u32, place: u32, old: [u8; 2], mss: u16) -> u32 {
    if u16::from_be_bytes(old) <= mss {
        return 0;
    }
    let new = mss.to_be_bytes();
    if !store(skb, place, &new) {
        return 0;
    }
    // At an odd offset each byte counts for the other half of its 16-bit word (RFC 1071 section 2(B)).
    let (from, to) = if (place - l4) & 1 == 0 {
        (u16::from_ne_bytes(old), u16::from_ne_bytes(new))
    } else {
        (u16::from_ne_bytes(old).swap_bytes(), u16::from_ne_bytes(new).swap_bytes())
    };
    // SAFETY: the helper checks offset and writability; without the pseudo-header flag CHECKSUM_PARTIAL is left alone.
    unsafe { bpf_l4_csum_replace(skb, l4 + 16, u64::from(from), u64::from(to), 2) as u32 }
}
