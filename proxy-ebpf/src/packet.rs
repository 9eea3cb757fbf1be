//! Access to a packet: one trait, implemented for TC and for XDP.
//!
//! Headers at a known offset are read and written in place through [`at`], whose bounds check the verifier follows. The rest
//! is copied by helpers, which also reach what is not in the linear part. Every change of size or checksum
//! by a helper invalidates pointers from [`at`]: none is kept across such a call.

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, xdp_md},
    helpers::generated::{
        bpf_l4_csum_replace, bpf_skb_load_bytes, bpf_skb_pull_data, bpf_skb_store_bytes,
        bpf_xdp_get_buff_len,
    },
};

use crate::checksum;

/// `BPF_F_IPV6` of `bpf_l4_csum_replace` (include/uapi/linux/bpf.h, 6.16).
const F_IPV6: u64 = 1 << 7;

/// What the engine needs of a packet.
pub(crate) trait Packet {
    /// Bytes before the IP header: 14 on Ethernet, 0 on a TUN.
    const LINK: usize;

    /// Address of the first byte.
    fn start(&self) -> usize;
    /// Address after the last byte that can be reached in place.
    fn end(&self) -> usize;
    /// Makes the first `len` bytes reachable in place, if the packet has them.
    fn pull(&mut self, len: u32) -> bool;
    /// The device it arrived on.
    fn ifindex(&self) -> u32;
    /// Bytes from the first to the last, reachable in place or not.
    fn len(&self) -> u32;
    /// Whether it stands for several packets on the wire.
    fn is_gso(&self) -> bool;
    /// Whether it carries an 802.1Q tag outside the data.
    fn has_vlan(&self) -> bool;
    /// Copies words from any place. The verifier takes a packet pointer at an offset that it does not know only from programs
    /// with CAP_PERFMON: what lies behind the IP header is read and written by helpers, or at constant offsets.
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]>;
    /// Writes bytes to any place; checksums are the caller's.
    fn put<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> bool;
    /// Adds differences to the L4 checksum at `offset`: `addresses` is part of the pseudo header, `rest` is not.
    fn update_l4(&mut self, offset: usize, sums: &L4Sums) -> bool;
}

/// A change of the L4 checksum.
pub(crate) struct L4Sums {
    /// Difference of what the pseudo header covers, already folded to 32 bits.
    pub(crate) addresses: u32,
    /// Difference of what the segment itself covers.
    pub(crate) rest: u32,
    /// UDP: zero means "no checksum" (RFC 768).
    pub(crate) udp: bool,
    /// IPv6.
    pub(crate) v6: bool,
    /// The kernel knows `BPF_F_IPV6`.
    pub(crate) ipv6_flag: bool,
}

/// A pointer to a `T` at `offset`, if all of it is reachable in place.
#[inline(always)]
pub(crate) fn at<T, P: Packet>(packet: &P, offset: usize) -> Option<*mut T> {
    let start = packet.start() + offset;
    if start + size_of::<T>() > packet.end() { None } else { Some(start as *mut T) }
}

/// As [`at`], pulling the bytes into reach first where that is needed.
#[inline(always)]
pub(crate) fn reach<T, P: Packet>(packet: &mut P, offset: usize) -> Option<*mut T> {
    if let Some(pointer) = at(packet, offset) {
        return Some(pointer);
    }
    if !packet.pull((offset + size_of::<T>()) as u32) {
        return None;
    }
    at(packet, offset)
}

/// A packet at a TC hook.
pub(crate) struct Tc<const LINK: usize> {
    pub(crate) skb: *mut __sk_buff,
}

impl<const LINK: usize> Packet for Tc<LINK> {
    const LINK: usize = LINK;

    #[inline(always)]
    fn start(&self) -> usize {
        // SAFETY: the kernel passes a valid context; the verifier checks each access.
        unsafe { (*self.skb).data as usize }
    }

    #[inline(always)]
    fn end(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.skb).data_end as usize }
    }

    #[inline(always)]
    fn pull(&mut self, len: u32) -> bool {
        // SAFETY: the helper takes any length and fails if the packet is shorter.
        len <= self.len() && unsafe { bpf_skb_pull_data(self.skb, len) } == 0
    }

    #[inline(always)]
    fn ifindex(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.skb).ifindex }
    }

    #[inline(always)]
    fn len(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.skb).len }
    }

    #[inline(always)]
    fn is_gso(&self) -> bool {
        // SAFETY: as above. `gso_segs` is 0 on packets from a TUN (6.18), `gso_size` is right everywhere.
        unsafe { (*self.skb).gso_size != 0 }
    }

    #[inline(always)]
    fn has_vlan(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.skb).vlan_present != 0 }
    }

    #[inline(always)]
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        let mut words = MaybeUninit::<[u32; N]>::uninit();
        // SAFETY: there is room for N words; the helper checks the packet's bounds and then fills all of it.
        unsafe {
            let to = words.as_mut_ptr().cast();
            let code = bpf_skb_load_bytes(self.skb.cast_const().cast(), offset, to, (N * 4) as u32);
            (code == 0).then(|| words.assume_init())
        }
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> bool {
        store(self.skb, offset, bytes)
    }

    #[inline(always)]
    fn update_l4(&mut self, offset: usize, sums: &L4Sums) -> bool {
        let mangled = if sums.udp { u64::from(BPF_F_MARK_MANGLED_0) } else { 0 };
        if sums.addresses != 0 {
            let v6 = if sums.v6 && sums.ipv6_flag { F_IPV6 } else { 0 };
            let flags = u64::from(BPF_F_PSEUDO_HDR) | mangled | v6;
            // SAFETY: the helper checks offset and writability. It knows CHECKSUM_PARTIAL and CHECKSUM_COMPLETE.
            let code = unsafe {
                bpf_l4_csum_replace(self.skb, offset as u32, 0, u64::from(sums.addresses), flags)
            };
            if code != 0 {
                return false;
            }
        }
        if sums.rest != 0 {
            // SAFETY: as above. Without the pseudo-header flag a CHECKSUM_PARTIAL packet is left alone, as it must be.
            let code = unsafe {
                bpf_l4_csum_replace(self.skb, offset as u32, 0, u64::from(sums.rest), mangled)
            };
            if code != 0 {
                return false;
            }
        }
        true
    }
}

/// Copies bytes out of a TC packet, wherever they lie.
#[inline(always)]
pub(crate) fn load<const N: usize>(skb: *mut __sk_buff, offset: u32, to: &mut [u8; N]) -> bool {
    // SAFETY: `to` has N bytes; the helper checks the packet's bounds.
    unsafe {
        bpf_skb_load_bytes(skb.cast_const().cast(), offset, to.as_mut_ptr().cast(), N as u32) == 0
    }
}

/// Copies bytes into a TC packet; checksums are the caller's.
#[inline(always)]
pub(crate) fn store<const N: usize>(skb: *mut __sk_buff, offset: u32, from: &[u8; N]) -> bool {
    // SAFETY: `from` has N bytes; the helper checks the packet's bounds.
    unsafe { bpf_skb_store_bytes(skb, offset, from.as_ptr().cast(), N as u32, 0) == 0 }
}

/// A packet at the XDP hook whose transport header begins at `L4`: always Ethernet, always with complete checksums or none.
pub(crate) struct Xdp<const L4: usize> {
    pub(crate) ctx: *mut xdp_md,
}

impl<const L4: usize> Packet for Xdp<L4> {
    const LINK: usize = 14;

    // Volatile: else the compiler passes the two addresses to subprograms instead of the context, as numbers.

    #[inline(always)]
    fn start(&self) -> usize {
        // SAFETY: the kernel passes a valid context; the verifier checks each access.
        unsafe { (&raw const (*self.ctx).data).read_volatile() as usize }
    }

    #[inline(always)]
    fn end(&self) -> usize {
        // SAFETY: as above.
        unsafe { (&raw const (*self.ctx).data_end).read_volatile() as usize }
    }

    #[inline(always)]
    fn pull(&mut self, _len: u32) -> bool {
        false
    }

    #[inline(always)]
    fn ifindex(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.ctx).ingress_ifindex }
    }

    #[inline(always)]
    fn len(&self) -> u32 {
        // Not the difference of the two pointers, which the verifier takes only with CAP_PERFMON.
        // SAFETY: as above (kernel 5.18).
        unsafe { bpf_xdp_get_buff_len(self.ctx) as u32 }
    }

    #[inline(always)]
    fn is_gso(&self) -> bool {
        false
    }

    #[inline(always)]
    fn has_vlan(&self) -> bool {
        false
    }

    #[inline(always)]
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        if offset != L4 as u32 {
            return None;
        }
        // SAFETY: `at` checks the bounds.
        at::<[u32; N], _>(self, L4).map(|words| unsafe { *words })
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> bool {
        if offset != L4 as u32 {
            return false;
        }
        // SAFETY: `at` checks the bounds.
        at::<[u8; N], _>(self, L4).map(|to| unsafe { *to = *bytes }).is_some()
    }

    #[inline(always)]
    fn update_l4(&mut self, _offset: usize, sums: &L4Sums) -> bool {
        let change = u64::from(sums.addresses) + u64::from(sums.rest);
        if sums.udp {
            update_udp::<L4>(self.ctx, change) == 0
        } else {
            update_tcp::<L4>(self.ctx, change) == 0
        }
    }
}

/// 0 if the checksum was reached. Subprograms, so that the compiler cannot make one pointer with two offsets of them.
#[inline(never)]
fn update_udp<const L4: usize>(ctx: *mut xdp_md, change: u64) -> u32 {
    let Some(sum) = at::<u16, _>(&Xdp::<L4> { ctx }, L4 + 6) else { return 1 };
    // SAFETY: `at` checked the bounds; x86 and arm64 read unaligned halfwords.
    unsafe {
        if *sum != 0 {
            let new = checksum::apply(*sum, change);
            *sum = if new == 0 { 0xffff } else { new };
        }
    }
    0
}

#[inline(never)]
fn update_tcp<const L4: usize>(ctx: *mut xdp_md, change: u64) -> u32 {
    let Some(sum) = at::<u16, _>(&Xdp::<L4> { ctx }, L4 + 16) else { return 1 };
    // SAFETY: as above.
    unsafe { *sum = checksum::apply(*sum, change) };
    0
}
