//! The proxy process: configuration -> rule table -> data path -> report.

pub mod admin;
pub mod args;
pub mod capability;
pub mod cleanup;
pub mod client;
pub mod config_watch;
pub mod conntrack;
pub mod data_path;
pub mod engine;
pub mod explain;
pub mod localapi;
pub mod memory;
pub mod metrics;
pub mod only;
pub mod parsers;
pub mod pod;
pub mod quiet;
pub mod run;
pub mod shared;
pub mod status;
pub mod tailscaled;
pub mod telemetry;
pub mod top;
