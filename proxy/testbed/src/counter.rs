//! The kernel's own counters, per namespace.

use anyhow::{Context as _, Result};

use crate::Namespace;

/// A counter of /proc/net/snmp or /proc/net/netstat, such as `("Tcp", "InCsumErrors")`. IPv6's are in snmp6, by one
/// word: `("", "Ip6InDiscards")`.
pub fn kernel(namespace: &Namespace, group: &str, name: &str) -> Result<u64> {
    if group.is_empty() {
        let text = namespace.read("/proc/thread-self/net/snmp6")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        return line.with_context(|| format!("no counter {name}"));
    }
    let files = ["snmp", "netstat"].map(|file| format!("/proc/thread-self/net/{file}"));
    for file in &files {
        let text = namespace.read(file)?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(':'));
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            let mut pairs = names.split_whitespace().zip(values.split_whitespace());
            if let Some((_, value)) = pairs.find(|(word, _)| *word == name) {
                return value.parse().with_context(|| format!("{group} {name}"));
            }
        }
    }
    anyhow::bail!("no counter {group} {name}")
}
