//! The tailnet API's clients against the testbed's control server, whose HTTP API acts on a real tailnet. Needs root and
//! the programs of `cargo xtask testbed`; with SKIP_KERNEL_TESTS=1 it says so and does nothing.
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

#[path = "tailnet_api/bed.rs"]
mod bed;
#[path = "tailnet_api/credentials.rs"]
mod credentials;
#[path = "tailnet_api/devices.rs"]
mod devices;
#[path = "tailnet_api/failures.rs"]
mod failures;
#[path = "tailnet_api/headscale.rs"]
mod headscale;
#[path = "tailnet_api/identity.rs"]
mod identity;
#[path = "tailnet_api/services.rs"]
mod services;
