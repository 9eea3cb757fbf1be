//! The `sluice-proxy` program.

fn main() {}
