//! What becomes of a packet, as one number, so that it passes through kernel subprograms.

use proxy_ebpf_common::DropReason;

/// Our decision on a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Verdict(u32);

impl Verdict {
    const ANSWER: u32 = 1 << 8;

    /// Not ours, or not to be touched: the kernel goes on with it.
    pub(crate) const PASS: Self = Self(0);
    /// Ours, and to be sent on.
    pub(crate) const CARRY: Self = Self(64);

    /// Dropped in silence.
    #[inline(always)]
    pub(crate) const fn drop(reason: DropReason) -> Self {
        Self(reason as u32)
    }

    /// Dropped, and the sender is told.
    #[inline(always)]
    pub(crate) const fn answer(reason: DropReason) -> Self {
        Self(reason as u32 | Self::ANSWER)
    }

    /// Dropped for the reason with this number.
    #[inline(always)]
    pub(crate) const fn drop_raw(reason: u32) -> Self {
        Self(reason & 0x1f)
    }

    /// From a subprogram.
    #[inline(always)]
    pub(crate) const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// To a subprogram's caller.
    #[inline(always)]
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }

    /// The number of the drop reason.
    #[inline(always)]
    pub(crate) const fn reason(self) -> u32 {
        self.0 & 0x1f
    }

    /// Whether the sender is to be told.
    #[inline(always)]
    pub(crate) const fn wants_answer(self) -> bool {
        self.0 & Self::ANSWER != 0
    }

    /// Whether it is for this reason.
    #[inline(always)]
    pub(crate) const fn is(self, reason: DropReason) -> bool {
        self.reason() == reason as u32
    }
}
