//! The kinds on a real API server: what it takes and refuses, fills in and leaves out, and that all of it can be read.
//! Needs root, etcd and the programs of `cargo xtask testbed`; with SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

#[path = "crds/cases.rs"]
mod cases;
#[path = "crds/columns.rs"]
mod columns;
#[path = "crds/content.rs"]
mod content;
#[path = "crds/server.rs"]
mod server;

macro_rules! kernel_or_skip {
    () => {
        if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
            eprintln!("skipped: SKIP_KERNEL_TESTS=1");
            return;
        }
    };
}
use kernel_or_skip;
