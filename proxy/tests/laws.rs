//! The laws of a data path, the same for each. Needs root, `ip`, `nft`, `tc` and `sysctl`; with SKIP_KERNEL_TESTS=1 it
//! says so and does nothing.
#![cfg(test)]

#[path = "rig/driver.rs"]
mod driver;
#[path = "laws/flows.rs"]
mod flows;
#[path = "rig/rules.rs"]
mod rules;
#[path = "laws/tables.rs"]
mod tables;

use proxy::data_path::{DataPath, userspace::UserspacePath};
use proxy_rules::{Count, Snapshot};

fn userspace() -> Box<dyn DataPath> {
    Box::new(UserspacePath::new().unwrap())
}

/// The sum of a rule's counts.
fn count(snapshot: &Snapshot, id: &str) -> Count {
    let of_rule = snapshot.series.iter().filter(|(series, _)| series.rule.as_str() == id);
    of_rule.fold(Count::default(), |sum, (_, count)| sum.plus(*count))
}
