//! What the figures were measured on.

use std::{fs, process::Command};

use serde::Serialize;

/// Facts about the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub kernel: String,
    pub cpu: String,
    pub cores: usize,
    pub memory_mib: u64,
    /// Load averages when the run began: other work makes rounds noisier.
    pub load: String,
    pub nft: String,
    /// What this machine's kernel cannot run, so that no figure stands for it.
    pub absent: [&'static str; 1],
}

/// Looks.
pub fn machine() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':'))
            .map_or(String::new(), |(_, v)| v.trim().to_owned())
    };
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let memory: u64 =
        memory.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or_default();
    let nft = Command::new("nft").arg("--version").output();
    Machine {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        cpu: field(&read("/proc/cpuinfo"), "model name"),
        cores: crate::affinity::cores(),
        memory_mib: memory / 1024,
        load: read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" "),
        nft: nft.map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned()),
        absent: ["flowtable, IPVS, kernel WireGuard and pktgen are not measured"],
    }
}
