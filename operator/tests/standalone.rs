//! Proxies of their own and their classes, on a real API server: what is made, what users are told, and that all of it
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

#[path = "standalone/adoption.rs"]
mod adoption;
#[path = "standalone/cluster.rs"]
mod cluster;
#[path = "standalone/cluster_wide.rs"]
mod cluster_wide;
#[path = "standalone/connectors.rs"]
mod connectors;
#[path = "standalone/endings.rs"]
mod endings;
#[path = "standalone/golden.rs"]
mod golden;
#[path = "standalone/ingresses.rs"]
mod ingresses;
#[path = "standalone/monitors.rs"]
mod monitors;
#[path = "standalone/proxy_classes.rs"]
mod proxy_classes;
#[path = "standalone/services.rs"]
mod services;
#[path = "standalone/tailnets.rs"]
mod tailnets;
