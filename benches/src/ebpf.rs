//! Sluice's eBPF path with the hook that a rung asks for.

use anyhow::{Result, bail};
use proxy::data_path::DataPath;

/// On TC only.
pub fn with_tc() -> Result<Box<dyn DataPath>> {
    bail!("the eBPF path is not there yet")
}

/// On XDP too, whatever a probe would say.
pub fn with_xdp() -> Result<Box<dyn DataPath>> {
    bail!("the eBPF path is not there yet")
}
