//! Packets through proxies that the operator has made: a real API server, a real control server with its API, the real
//! `sluice-proxy` started as the kubelet would from the operator's StatefulSets. Needs root and the programs of
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

#[path = "traffic/egress.rs"]
mod egress;
#[path = "traffic/ingress.rs"]
mod ingress;
#[path = "traffic/routes.rs"]
mod routes;
#[path = "traffic/world.rs"]
mod world;
