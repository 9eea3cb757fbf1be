//! From what is valid to objects: pure, cannot fail.

mod access;
pub mod admission;
pub mod certificate;
mod config;
mod environment;
pub mod group;
pub mod ingress_config;
pub mod metrics;
pub mod nameserver;
mod overlay;
pub mod peer_relay;
mod pod;
mod proxy;
pub mod recorder;
mod secret;
mod serve;
mod stateful_set;

pub(crate) use self::overlay::METRICS_PORT;
pub use self::{
    config::auth_key,
    proxy::{Duty, Node, Objects, Proxy, ProxyType, Routes, objects, secret_name},
    serve::serve_config,
};
