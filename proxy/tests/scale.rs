//! A million flows on ten thousand ports, in the loaded programs, over a day. Needs CAP_BPF and CAP_NET_ADMIN; with
//! SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

#[path = "scale/crowd.rs"]
mod crowd;
#[path = "scale/day.rs"]
mod day;
