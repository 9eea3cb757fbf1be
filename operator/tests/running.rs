//! The program, as it runs in a cluster: what it says of itself, how it starts and ends, which of two replicas reconciles,
//! what it does beside upstream's operator, and how it tells what proxies carry (which are played here by servers that answer
//! as a real one has). Real processes on a real API server. Needs root, etcd and the programs of
//! `cargo xtask testbed`; with SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

macro_rules! kernel_or_skip {
    () => {
        if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
            eprintln!("skipped: SKIP_KERNEL_TESTS=1");
            return;
        }
    };
}

#[path = "running/bed.rs"]
mod bed;
#[path = "counters/figures.rs"]
mod figures;
#[path = "running/manifests.rs"]
mod manifests;
#[path = "running/process.rs"]
mod process;
#[path = "counters/proxies.rs"]
mod proxies;
#[path = "running/replicas.rs"]
mod replicas;
#[path = "standalone/rights.rs"]
mod rights;
#[path = "running/rival.rs"]
mod rival;
#[path = "counters/top.rs"]
mod top;
