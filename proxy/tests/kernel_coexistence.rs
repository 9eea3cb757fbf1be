//! Parts of the kernel that also carry packets, beside ours: a flowtable of other people's rules, a kernel WireGuard
//! device. Needs root, `ip`, `nft`, `conntrack`, `wg`, and a kernel with both, as the emulated ones are; with
//! SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

#[path = "rig/driver.rs"]
mod driver;
#[path = "kernel_coexistence/flowtable.rs"]
mod flowtable;
#[path = "rig/rules.rs"]
mod rules;
#[path = "kernel_coexistence/wireguard.rs"]
mod wireguard;

use proxy_rules::{Count, Snapshot};

/// The sum of a rule's counts.
fn count(snapshot: &Snapshot, id: &str) -> Count {
    let of_rule = snapshot.series.iter().filter(|(series, _)| series.rule.as_str() == id);
    of_rule.fold(Count::default(), |sum, (_, count)| sum.plus(*count))
}
