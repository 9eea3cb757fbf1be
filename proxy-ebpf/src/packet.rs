//! Access to a packet: one trait, implemented for TC and for XDP.
//!
//! Headers at a known offset are read and written in place through [`at`], whose bounds check the verifier follows. The rest
//! is copied by helpers, which also reach what is not in the linear part. Every change of size or checksum
//! by a helper invalidates pointers from [`at`]: none is kept across such a call.

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::{
        __sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, TC_ACT_SHOT, TC_ACT_UNSPEC,
        xdp_action::{XDP_DROP, XDP_PASS},
        xdp_md,
    },
    helpers::generated::{
        bpf_l4_csum_replace, bpf_redirect, bpf_skb_change_head, bpf_skb_load_bytes,
        bpf_skb_pull_data, bpf_skb_store_bytes, bpf_xdp_get_buff_len,
    },
};
use proxy_ebpf_common::Hop;

use crate::checksum;

/// `BPF_F_IPV6` of `bpf_l4_csum_replace` (include/uapi/linux/bpf.h, 6.16).
const F_IPV6: u64 = 1 << 7;

/// What carrying a packet needs of it, at either hook.
pub(crate) trait Packet {
    /// The kernel's context.
    type Context;
    /// Bytes before the IP header: 14 on Ethernet, 0 on a TUN.
    const LINK: usize;
    /// The action that leaves the packet to the next program, or to the kernel.
    const LEAVE: i32;
    /// The action that drops it.
    const DROP: i32;
    /// Whether it can leave by a device without a link header.
    const LEAVES_BARE: bool;

    /// The packet of a context.
    fn new(context: *mut Self::Context) -> Self;
    /// The context again, for subprograms.
    fn context(&self) -> *mut Self::Context;
    /// Address of the first byte.
    fn start(&self) -> usize;
    /// Address after the last byte that can be reached in place.
    fn end(&self) -> usize;
    /// The device it arrived on.
    fn ifindex(&self) -> u32;
    /// Bytes from the first to the last, reachable in place or not.
    fn len(&self) -> u32;
    /// Whether it stands for several packets on the wire.
    fn is_gso(&self) -> bool;
    /// Whether it carries an 802.1Q tag outside the data.
    fn has_vlan(&self) -> bool;
    /// Adds differences to the L4 checksum at `offset`: `addresses` is part of the pseudo header, `rest` is not.
    fn update_l4(&mut self, offset: usize, sums: &L4Sums) -> bool;
    /// Sends it to a next hop whose Ethernet addresses are known, or needed not. `None`: there is no room for a header.
    fn send(&mut self, hop: &Hop, ifindex: u32, v6: bool) -> Option<i32>;
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

/// Notes the packet's sender as the way back. Volatile, as below: the compiler would call a copy of single bytes.
///
/// # Safety
///
/// `ethernet` must point to 14 bytes.
#[inline(always)]
pub(crate) unsafe fn read_macs(ethernet: *const [u16; 7], hop: &mut Hop) {
    let from = ethernet.cast::<u16>();
    let to = core::ptr::from_mut(hop).cast::<u16>();
    for index in 0..3 {
        // SAFETY: the caller's promise, and a hop's two addresses lie side by side.
        unsafe {
            to.add(index).write_volatile(from.add(index + 3).read_volatile());
            to.add(index + 3).write_volatile(from.add(index).read_volatile());
        }
    }
}

/// Writes the hop's Ethernet addresses.
///
/// # Safety
///
/// `ethernet` must point to 14 bytes.
#[inline(always)]
unsafe fn write_macs(ethernet: *mut [u16; 7], hop: &Hop) {
    const { assert!(core::mem::offset_of!(Hop, smac) == 6) };
    let from = core::ptr::from_ref(hop).cast::<u32>();
    let to = ethernet.cast::<u32>();
    for index in 0..3 {
        // SAFETY: the caller's promise; a hop's two addresses lie side by side, as in the header, at a multiple of four.
        unsafe { to.add(index).write_volatile(from.add(index).read_volatile()) };
    }
}

/// A packet at a TC hook.
pub(crate) struct Tc<const LINK: usize> {
    pub(crate) skb: *mut __sk_buff,
}

impl<const LINK: usize> Tc<LINK> {
    /// A pointer to a `T` at `offset`, after pulling it into reach where that is needed.
    #[inline(always)]
    pub(crate) fn reach<T>(&mut self, offset: usize) -> Option<*mut T> {
        if let Some(pointer) = at(self, offset) {
            return Some(pointer);
        }
        let len = (offset + size_of::<T>()) as u32;
        // SAFETY: the helper takes any length and fails if the packet is shorter.
        if len > self.len() || unsafe { bpf_skb_pull_data(self.skb, len) } != 0 {
            return None;
        }
        at(self, offset)
    }

    /// The packet's Ethernet header; one that has none is given one, without addresses. Without a header the kernel drops what
    /// is redirected to an Ethernet device, uncounted (net/core/filter.c, `__bpf_redirect_common`, 6.18).
    #[inline(always)]
    pub(crate) fn make_ethernet(&mut self, v6: bool) -> Option<*mut [u16; 7]> {
        // SAFETY: the helper checks the length.
        if LINK == 0 && unsafe { bpf_skb_change_head(self.skb, 14, 0) } != 0 {
            return None;
        }
        let ethernet = at::<[u16; 7], _>(self, 0)?;
        if LINK == 0 {
            // SAFETY: `at` checked the bounds.
            unsafe { (*ethernet)[6] = if v6 { 0x86dd_u16.to_be() } else { 0x0800_u16.to_be() } };
        }
        Some(ethernet)
    }

    /// Copies words from any place. The verifier takes a packet pointer at an offset that it does not know only from programs
    /// with CAP_PERFMON: what lies behind the IP header is read and written by helpers, or at constant offsets.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        let mut words = MaybeUninit::<[u32; N]>::uninit();
        // SAFETY: there is room for N words; the helper checks the packet's bounds and then fills all of it.
        unsafe {
            let to = words.as_mut_ptr().cast();
            let code = bpf_skb_load_bytes(self.skb.cast_const().cast(), offset, to, (N * 4) as u32);
            (code == 0).then(|| words.assume_init())
        }
    }
}

impl<const LINK: usize> Packet for Tc<LINK> {
    type Context = __sk_buff;
    const LINK: usize = LINK;
    const LEAVE: i32 = TC_ACT_UNSPEC;
    const DROP: i32 = TC_ACT_SHOT;
    const LEAVES_BARE: bool = true;

    #[inline(always)]
    fn new(skb: *mut __sk_buff) -> Self {
        Self { skb }
    }

    #[inline(always)]
    fn context(&self) -> *mut __sk_buff {
        self.skb
    }

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

    #[inline(always)]
    fn send(&mut self, hop: &Hop, ifindex: u32, v6: bool) -> Option<i32> {
        if hop.fresh_until != Hop::NO_HEADER {
            let ethernet = self.make_ethernet(v6)?;
            // SAFETY: it points to 14 bytes.
            unsafe { write_macs(ethernet, hop) };
        }
        // SAFETY: the kernel checks the ifindex, and takes a link header off where the device has none
        // (`__bpf_redirect_no_mac`).
        Some(unsafe { bpf_redirect(ifindex, 0) } as i32)
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

/// A packet at the XDP hook: always Ethernet, always with complete checksums or none.
pub(crate) struct Xdp {
    ctx: *mut xdp_md,
}

impl Packet for Xdp {
    type Context = xdp_md;
    const LINK: usize = 14;
    const LEAVE: i32 = XDP_PASS as i32;
    const DROP: i32 = XDP_DROP as i32;
    const LEAVES_BARE: bool = false;

    #[inline(always)]
    fn new(ctx: *mut xdp_md) -> Self {
        Self { ctx }
    }

    #[inline(always)]
    fn context(&self) -> *mut xdp_md {
        self.ctx
    }

    #[inline(always)]
    fn start(&self) -> usize {
        // SAFETY: the kernel passes a valid context; the verifier checks each access.
        unsafe { (*self.ctx).data as usize }
    }

    #[inline(always)]
    fn end(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.ctx).data_end as usize }
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
    fn update_l4(&mut self, offset: usize, sums: &L4Sums) -> bool {
        let Some(sum) = at::<u16, _>(self, offset) else { return false };
        // SAFETY: `at` checked the bounds; x86 and arm64 read unaligned halfwords.
        unsafe {
            let old = *sum;
            if sums.udp && old == 0 {
                return true;
            }
            let new = checksum::apply(old, u64::from(sums.addresses) + u64::from(sums.rest));
            *sum = if sums.udp && new == 0 { 0xffff } else { new };
        }
        true
    }

    #[inline(always)]
    fn send(&mut self, hop: &Hop, ifindex: u32, _v6: bool) -> Option<i32> {
        let ethernet = at::<[u16; 7], _>(self, 0)?;
        // SAFETY: `at` checked the bounds; the kernel checks the ifindex.
        unsafe {
            write_macs(ethernet, hop);
            Some(bpf_redirect(ifindex, 0) as i32)
        }
    }
}
