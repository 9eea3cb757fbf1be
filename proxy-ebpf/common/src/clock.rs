//! The programs' clock: `CLOCK_MONOTONIC`, coarse, in ticks of 2^30 nanoseconds (1.07 s). A shift costs the packet path
//! a cycle where a division by 10^9 costs dozens.

/// Nanoseconds as ticks.
pub const fn ticks(nanoseconds: u64) -> u32 {
    (nanoseconds >> 30) as u32
}

/// Ticks as seconds.
pub const fn seconds(ticks: u32) -> u64 {
    ((ticks as u64) << 30) / 1_000_000_000
}

/// Seconds as ticks, at least as long.
pub const fn from_seconds(seconds: u64) -> u64 {
    (seconds * 1_000_000_000).div_ceil(1 << 30)
}
