//! ProxyGroups and egress Services on them, on a real API server: what is made, what users are told, and that all of it
//! goes again. Needs root, etcd and the programs of `cargo xtask testbed`; with SKIP_KERNEL_TESTS=1 it says so and does
//! nothing.
#![cfg(test)]

macro_rules! kernel_or_skip {
    () => {
        if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
            eprintln!("skipped: SKIP_KERNEL_TESTS=1");
            return;
        }
    };
}

#[path = "groups/adoption.rs"]
mod adoption;
#[path = "groups/bed.rs"]
mod bed;
#[path = "standalone/cluster.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod cluster;
#[path = "standalone/cluster_wide.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod cluster_wide;
#[path = "groups/egress.rs"]
mod egress;
#[path = "groups/egress_bed.rs"]
mod egress_bed;
#[path = "groups/egress_changes.rs"]
mod egress_changes;
#[path = "groups/egress_many.rs"]
mod egress_many;
#[path = "groups/endings.rs"]
mod endings;
#[path = "groups/fixed_addresses.rs"]
mod fixed_addresses;
#[path = "groups/gate.rs"]
mod gate;
#[path = "standalone/golden.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod golden;
#[path = "groups/proxy_groups.rs"]
mod proxy_groups;
