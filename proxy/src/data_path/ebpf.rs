//! The eBPF data path.
