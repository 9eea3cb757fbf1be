//! Proxies of their own, on a real API server: what is made, what users are told, and that all of it goes again. Needs root,
//! etcd and the programs of `cargo xtask testbed`; with SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

#[path = "standalone/cluster.rs"]
mod cluster;
#[path = "standalone/golden.rs"]
mod golden;
#[path = "standalone/services.rs"]
mod services;
