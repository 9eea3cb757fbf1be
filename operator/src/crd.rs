//! The kinds of `tailscale.com/v1alpha1`, one a file: types and documentation, no logic.
//!
//! A type accepts every object that its schema accepts: one object that cannot be read would hide all others of its kind
//! from a watch. What the schema does not bound (node ports, for one) is therefore wide here and checked by the
//! controller, and the schema bounds what is narrow here. Optional lists and maps are empty when absent, because the two
//! mean the same in every one of them.

#![expect(
    clippy::duplicated_attributes,
    reason = "each printer column of a kind has a type of its own"
)]

pub mod connector;
pub mod container;
pub mod data_path;
pub mod dns_config;
mod embedded;
pub mod peer_relay;
pub mod proxy_class;
pub mod proxy_group;
pub mod proxy_group_policy;
pub mod recorder;
mod schema;
mod structural;
pub mod tailnet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

pub use connector::Connector;
pub use dns_config::DnsConfig;
pub use peer_relay::PeerRelay;
pub use proxy_class::ProxyClass;
pub use proxy_group::ProxyGroup;
pub use proxy_group_policy::ProxyGroupPolicy;
pub use recorder::Recorder;
pub use tailnet::Tailnet;

/// The API group of every kind.
pub const GROUP: &str = "tailscale.com";

/// The only version, served and stored.
pub const VERSION: &str = "v1alpha1";

/// The definition of every kind, as an API server takes it.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![
        Connector::crd(),
        DnsConfig::crd(),
        PeerRelay::crd(),
        ProxyClass::crd(),
        ProxyGroup::crd(),
        ProxyGroupPolicy::crd(),
        Recorder::crd(),
        Tailnet::crd(),
    ];
    definitions.iter_mut().for_each(structural::complete);
    definitions
}
