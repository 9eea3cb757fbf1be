//! Processor time and memory.
//!
//! The kernel does a proxy's packet work wherever it happens to be: mostly in tailscaled's own system calls, as a write
//! to the TUN device runs the packet's whole way before it returns, but also in interrupts and kernel threads. Without
//! `CONFIG_IRQ_TIME_ACCOUNTING` the former is part of the process's time, as it is here, and the latter is nobody's. So
//! the machine's time is measured beside the processes': it holds everything, the ends included.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use nix::{
    time::{clock_getcpuclockid, clock_gettime},
    unistd::{Pid, SysconfVar, sysconf},
};

/// Seconds that a process has used, in user and kernel mode, its threads together: `utime` and `stime` of
/// `/proc/PID/stat`, but to the nanosecond instead of the hundredth.
pub fn process(id: u32) -> Result<f64> {
    let read = clock_getcpuclockid(Pid::from_raw(id as i32)).and_then(clock_gettime);
    let time = read.with_context(|| format!("the processor time of process {id}"))?;
    Ok(Duration::from(time).as_secs_f64())
}

/// Seconds that all processors have been busy with anything: processes, interrupts, softirqs.
pub fn machine() -> Result<f64> {
    let ticks = busy(&fs::read_to_string("/proc/stat").context("/proc/stat")?)
        .context("/proc/stat does not begin with the processors' times")?;
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("CLK_TCK")?;
    Ok(ticks as f64 / per_second as f64)
}

/// Megabytes (10^6) that processes of one program hold in memory: `VmRSS`, but with the pages of its file counted once.
pub fn memory(ids: &[u32]) -> Result<f64> {
    let (mut own, mut shared) = (0, 0);
    for id in ids {
        let status = fs::read_to_string(format!("/proc/{id}/status"))
            .with_context(|| format!("the memory of process {id}"))?;
        let field = |name| kibibytes(&status, name).with_context(|| format!("no {name}"));
        own += field("RssAnon:")? + field("RssShmem:")?;
        shared = shared.max(field("RssFile:")?);
    }
    Ok((own + shared) as f64 * 1024.0 / 1e6)
}

/// Megabytes (10^6) that were resident at most: `VmHWM` of a `/proc/PID/status`.
pub fn peak(status: &str) -> Option<f64> {
    Some(kibibytes(status, "VmHWM:")? as f64 * 1024.0 / 1e6)
}

fn kibibytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn busy(stat: &str) -> Option<u64> {
    let mut words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let mut next = || words.next()?.parse::<u64>().ok();
    let (user, nice, system, _idle, _wait) = (next()?, next()?, next()?, next()?, next()?);
    Some(user + nice + system + next()? + next()?)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn idle_and_stolen_time_is_not_busy() {
        assert_eq!(busy("cpu  1 2 4 1000 2000 8 16 4000 0 0\ncpu0 7 7 7 7"), Some(31));
        assert_eq!(busy("cpu0 1 2 4 8 16 32 64"), None);
    }

    #[test]
    fn pages_of_the_programs_file_are_counted_once() {
        let own = std::process::id();
        let once = memory(&[own]).unwrap();
        assert!(once > 0.5, "{once}");
        let twice = memory(&[own, own]).unwrap();
        assert!(twice > once && twice < 2.0 * once, "{once} {twice}");
    }

    #[test]
    fn what_this_process_burns_is_seen() {
        let (before, start) = (process(std::process::id()).unwrap(), Instant::now());
        while start.elapsed() < Duration::from_millis(30) {}
        let used = process(std::process::id()).unwrap() - before;
        assert!(used > 0.005, "{used}");
        assert!(machine().unwrap() >= used);
    }
}
