//! What ingress ProxyGroups serve, on a real API server with a tailnet in memory: Tailscale Services, certificates, what
//! proxies are told, what users are told, and that all of it goes again. Needs root, etcd and the programs of `cargo xtask
//! testbed`; with SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

macro_rules! kernel_or_skip {
    () => {
        if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
            eprintln!("skipped: SKIP_KERNEL_TESTS=1");
            return;
        }
    };
}

#[path = "groups/bed.rs"]
#[expect(dead_code, reason = "other targets use more of it")]
mod bed;
#[path = "standalone/cluster.rs"]
#[expect(dead_code, reason = "other targets use more of it")]
mod cluster;
#[path = "standalone/cluster_wide.rs"]
#[expect(dead_code, reason = "other targets use more of it")]
mod cluster_wide;
#[path = "ha/endings.rs"]
mod endings;
#[path = "ha/golden.rs"]
mod golden;
#[path = "ha/group.rs"]
mod group;
#[path = "ha/ingresses.rs"]
mod ingresses;
#[path = "ha/names.rs"]
mod names;
#[path = "ha/services.rs"]
mod services;
