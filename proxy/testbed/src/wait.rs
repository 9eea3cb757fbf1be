//! Waiting for what another party will bring about.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// No event that a test waits for takes longer.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// Asks until the condition holds. What can be awaited as an event is awaited as one; this is for counters and other
/// states that announce nothing.
pub fn poll_until(deadline: Duration, what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + deadline;
    while !done() {
        if Instant::now() >= end {
            bail!("{what}: not seen within {deadline:?}");
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    Ok(())
}
