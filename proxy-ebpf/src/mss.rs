//! MSS clamp on SYN and SYN-ACK (RFC 9293 section 3.7.1): lowered to what both links carry, never raised.

use aya_ebpf::{
    bindings::__sk_buff,
    helpers::generated::{bpf_l4_csum_replace, bpf_skb_load_bytes},
};

use crate::{
    maps::SCRATCH,
    packet::{load, store},
};

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
    // Opaque, so that the compiler leaves the arithmetic in by which the verifier sees that `len` is 4 to 64. It would
    // check a copy instead, and before 6.8 the verifier learns nothing from `!= 0`.
    let len = ((core::hint::black_box(words).wrapping_sub(6) & 15) + 1) * 4;
    if l4 + 20 + len > end {
        return 0;
    }
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: per-CPU, and no other program runs on this CPU before this one ends.
    let scratch = unsafe { &mut *scratch };
    let options = &mut scratch.options;
    // SAFETY: `len` is at most the size of `options`; the helper fails if the packet is shorter.
    let code = unsafe {
        bpf_skb_load_bytes(skb.cast_const().cast(), l4 + 20, options.as_mut_ptr().cast(), len)
    };
    if code != 0 {
        return 0;
    }
    let cursor = &raw mut scratch.cursor;
    // SAFETY: as above. The cursor lives in a map and is accessed as volatile, so that the verifier knows nothing of its value
    // and walks each turn of the loop once, not once for each way to have come there.
    unsafe { cursor.write_volatile(0) };
    for _ in 0..MAX_OPTIONS {
        // SAFETY: as above.
        let place = unsafe { cursor.read_volatile() };
        if place > MAX_OPTIONS - 4 || place + 4 > len {
            return 0;
        }
        let kind = byte(options, place);
        if kind == OPTION_END {
            return 0;
        }
        let size = if kind == OPTION_NOP { 1 } else { u32::from(byte(options, place + 1)) };
        if kind == OPTION_MSS && size == 4 {
            let old = [byte(options, place + 2), byte(options, place + 3)];
            return lower(skb, l4, l4 + 20 + place + 2, old, mss as u16);
        }
        if size == 0 || size == 1 && kind != OPTION_NOP {
            return 0;
        }
        // SAFETY: as above.
        unsafe { cursor.write_volatile(place + size) };
    }
    0
}

#[inline(always)]
fn byte(options: &[u8; 64], index: u32) -> u8 {
    // SAFETY: the mask keeps the index inside.
    unsafe { *options.as_ptr().add((index & 63) as usize) }
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
