//! Sluice's eBPF path with the hook that a rung asks for.

use anyhow::Result;
use proxy::data_path::{
    DataPath,
    ebpf::{EbpfOptions, EbpfPath, XdpChoice},
};

/// On TC only.
pub fn with_tc() -> Result<Box<dyn DataPath>> {
    Ok(path(XdpChoice::Off))
}

/// On XDP too, in the driver. The product never chooses that on a veth by itself.
pub fn with_xdp() -> Result<Box<dyn DataPath>> {
    Ok(path(XdpChoice::Native))
}

/// Nothing is pinned: the benchmark leaves nothing behind.
fn path(xdp: XdpChoice) -> Box<dyn DataPath> {
    Box::new(EbpfPath::new(EbpfOptions { bpffs: None, xdp }))
}
