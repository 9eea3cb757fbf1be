//! What users have run into (R-numbers: the catalogue of cases), on the eBPF and the nftables path, both families.
//! Needs root, `ip`, `nft`; with SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

#[path = "cases/address.rs"]
mod address;
#[path = "cases/coexistence.rs"]
mod coexistence;
#[path = "rig/driver.rs"]
mod driver;
#[path = "cases/egress.rs"]
mod egress;
#[path = "cases/mtu.rs"]
mod mtu;
#[path = "cases/platform.rs"]
mod platform;
#[path = "cases/rate.rs"]
mod rate;
#[path = "rig/rules.rs"]
mod rules;
#[path = "cases/tracking.rs"]
mod tracking;
