//! `cleanup`: removes what an earlier run may have left in this network namespace.

use std::{io::Write as _, path::PathBuf};

use anyhow::{Context as _, Result};
use proxy_rules::validate;

use crate::{
    data_path::{
        DataPath as _,
        ebpf::{EbpfOptions, EbpfPath},
        nftables::NftPath,
    },
    only::Only,
};

/// Removes pins and filters of eBPF and the table and settings of nftables. Says what it does.
pub fn cleanup(config: Option<PathBuf>, bpffs: Option<PathBuf>, dry_run: bool) -> Result<()> {
    let mut devices = Vec::new();
    let mut pins = bpffs;
    if let Some(file) = config {
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("reading {}", file.display()))?;
        let config = validate::validate(&text).context("the rules file is not valid")?;
        let interfaces = &config.table.settings().interfaces;
        devices.extend(interfaces.tailnet.iter().chain(&interfaces.cluster).cloned());
        pins = pins.or(config.options.bpffs);
    }
    if devices.is_empty() {
        let all = nix::net::if_::if_nameindex().context("listing the devices")?;
        devices.extend(all.iter().map(|device| device.name().to_string_lossy().into_owned()));
    }
    let pins = pins.or_else(crate::capability::bpffs);
    let mut out = std::io::stdout();
    // Beside a running one it would end what that carries.
    let _alone = if dry_run {
        None
    } else {
        Some(Only::claim().context("nothing is removed while a proxy runs here")?)
    };
    let verb = if dry_run { "would remove" } else { "removing" };
    let on = devices.join(", ");
    let below = pins.as_ref().map_or_else(|| "no bpffs".into(), |pins| pins.display().to_string());
    writeln!(out, "{verb} eBPF filters on {on} and pins below {below}")?;
    writeln!(out, "{verb} the nftables table, and putting kernel settings back")?;
    if !dry_run {
        EbpfPath::clean(&EbpfOptions { bpffs: pins, ..EbpfOptions::default() }, &devices);
        NftPath::new().remove().context("removing what nftables holds")?;
    }
    Ok(())
}
