//! Criterion benches and the packet-rate benchmark.
