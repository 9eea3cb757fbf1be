//! Criterion benches and the packet-rate benchmark. `README.md` beside this crate has the method and a run's table.
#![allow(
    clippy::print_stdout,
    missing_docs,
    reason = "a tool: its output is its purpose, its modules are documented as a whole"
)]

pub mod affinity;
pub mod ebpf;
pub mod generator;
pub mod kernel;
pub mod ladder;
pub mod netns;
pub mod offload;
pub mod ours;
pub mod plan;
pub mod progress;
pub mod rig;
pub mod rival;
pub mod rung;
pub mod stats;
