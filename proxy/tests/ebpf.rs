//! The eBPF path with real packets in network namespaces. Needs root and `ip`; with SKIP_KERNEL_TESTS=1 it says so
//! and does nothing.
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

#[path = "ebpf/carry.rs"]
mod carry;
#[path = "ebpf/explain.rs"]
mod explain;
#[path = "ebpf/lifecycle.rs"]
mod lifecycle;
#[expect(dead_code, reason = "shared with the nftables tests, which use more of it")]
#[path = "nftables/support.rs"]
mod support;
