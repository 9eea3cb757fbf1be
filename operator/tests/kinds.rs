//! DNSConfig, Recorder, ProxyGroupPolicy and PeerRelay on a real API server: what is made, what users are told, and that all
//! of it goes again. Needs root, etcd and the programs of `cargo xtask testbed`; with SKIP_KERNEL_TESTS=1 it says so and does
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

#[expect(dead_code, reason = "of another target too")]
#[path = "standalone/cluster.rs"]
mod cluster;
#[path = "standalone/cluster_wide.rs"]
mod cluster_wide;
#[path = "kinds/dns.rs"]
mod dns;
#[path = "kinds/dns_records.rs"]
mod dns_records;
#[expect(dead_code, reason = "of another target too")]
#[path = "standalone/golden.rs"]
mod golden;
#[path = "kinds/made.rs"]
mod made;
#[path = "kinds/peer_relays.rs"]
mod peer_relays;
#[path = "kinds/policies.rs"]
mod policies;
#[path = "kinds/recorders.rs"]
mod recorders;
