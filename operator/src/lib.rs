//! Sluice's operator. Each controller is a pipeline: fetch -> validate (all errors at once) -> build (pure, cannot fail) ->
//! apply (server-side apply, orphans by label) -> status.

#![forbid(unsafe_code)]

pub mod annotation;
pub mod apply;
pub mod build;
pub mod context;
pub mod controller;
pub mod counters;
pub mod crd;
pub mod error;
pub mod health;
pub mod label;
pub mod leader;
pub mod name;
pub mod nameserver;
pub mod status;
pub mod tailnet_api;
pub mod tailnet_state;
pub mod telemetry;
pub mod top;
