//! Criterion benches, the packet-rate, the tailnet and the operator benchmark. `README.md` beside this crate has the method and a run's table.
#![allow(
    clippy::print_stdout,
    missing_docs,
    reason = "a tool: its output is its purpose, its modules are documented as a whole"
)]

pub mod affinity;
pub mod apply;
pub mod ebpf;
pub mod generator;
pub mod goals;
pub mod kernel;
pub mod ladder;
pub mod limits;
pub mod machine;
pub mod netns;
pub mod netstack;
pub mod offload;
pub mod operator;
pub mod ours;
pub mod pairs;
pub mod panels;
pub mod plan;
pub mod plot;
pub mod progress;
pub mod report;
pub mod resident;
pub mod rig;
pub mod rival;
pub mod rung;
pub mod series;
pub mod sockets;
pub mod stats;
pub mod table;
pub mod tailnet;
pub mod tcp;
pub mod tun;
pub mod usage;
