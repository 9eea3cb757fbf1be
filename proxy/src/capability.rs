//! What the process may do and what the host offers: shown in status, never decided upon (a path is chosen by trying).

use std::{fs, path::PathBuf};

use caps::{CapSet, Capability};

/// The effective capabilities that matter to the data paths.
pub fn effective() -> Vec<String> {
    [
        Capability::CAP_BPF,
        Capability::CAP_NET_ADMIN,
        Capability::CAP_PERFMON,
        Capability::CAP_SYS_ADMIN,
        Capability::CAP_NET_BIND_SERVICE,
    ]
    .into_iter()
    .filter(|capability| caps::has_cap(None, CapSet::Effective, *capability).unwrap_or(false))
    .map(|capability| capability.to_string())
    .collect()
}

/// The first mounted bpffs that this process may write to.
pub fn bpffs() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (directory, kind) = (fields.next()?, fields.next()?);
        let directory = PathBuf::from(directory);
        (kind == "bpf" && nix::unistd::access(&directory, nix::unistd::AccessFlags::W_OK).is_ok())
            .then_some(directory)
    })
}

/// Resident memory of this process, in bytes.
pub fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
