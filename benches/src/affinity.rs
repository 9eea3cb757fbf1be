//! Which thread runs where.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

/// Pins the calling thread to the machine's last core and makes it real-time: first in, first out.
pub fn own_a_core() -> Result<()> {
    pin(cores() - 1)?;
    let priority = libc::sched_param { sched_priority: 50 };
    // SAFETY: 0 is the calling thread, and the parameter outlives the call.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    if result == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error()).context("real-time scheduling needs CAP_SYS_NICE")
}

/// Pins the calling thread to one core.
pub fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("pinning to core {core}"))
}

/// Number of cores.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Lets a softirq that nobody can wait for come to its end.
#[expect(clippy::disallowed_methods, reason = "counters in a map announce nothing")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
