//! The nftables path with real packets in network namespaces. Needs root, `ip`, `nft` and `sysctl`; with
//! SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

/// The three namespaces, unless the machine's tests are told to do without.
macro_rules! rig_or_skip {
    () => {
        if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
            eprintln!("skipped: SKIP_KERNEL_TESTS=1");
            return;
        } else {
            Rig::new()
        }
    };
}

#[path = "nftables/carry.rs"]
mod carry;
#[path = "nftables/lifecycle.rs"]
mod lifecycle;
#[path = "nftables/limits.rs"]
mod limits;
#[path = "nftables/support.rs"]
mod support;
