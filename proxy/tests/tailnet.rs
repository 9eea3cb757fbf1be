//! A pod on a real tailnet: real tailscaled everywhere, real traffic between namespaces. Needs root and the programs of
//! `cargo xtask testbed`; with SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

/// Ends the test where there is no kernel to test with.
macro_rules! kernel_or_skip {
    () => {
        if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
            eprintln!("skipped: SKIP_KERNEL_TESTS=1");
            return;
        }
    };
}

#[path = "tailnet/cases.rs"]
mod cases;
#[path = "tailnet/certificates.rs"]
mod certificates;
#[path = "tailnet/changes.rs"]
mod changes;
#[path = "tailnet/faults.rs"]
mod faults;
#[path = "tailnet/groups.rs"]
mod groups;
#[path = "tailnet/kube.rs"]
mod kube;
#[path = "tailnet/mtu.rs"]
mod mtu;
#[path = "tailnet/names.rs"]
mod names;
#[path = "tailnet/pod.rs"]
mod pod;
#[path = "tailnet/routes.rs"]
mod routes;
#[path = "tailnet/scenarios.rs"]
mod scenarios;
#[path = "tailnet/serve.rs"]
mod serve;
#[path = "tailnet/through.rs"]
mod through;
#[path = "tailnet/userspace.rs"]
mod userspace;
#[path = "tailnet/web.rs"]
mod web;
