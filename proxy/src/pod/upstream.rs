//! Upstream's ways of saying what a proxy forwards, translated into a `ProxyRules` document with names: the environment's
//! targets, the `egress-services` of an egress ProxyGroup, the `ingress-config.json` of an ingress ProxyGroup.

mod egress;
mod ingress;
#[cfg(test)]
mod tests;

use proxy_rules::{
    Protocol, Side,
    config::{
        Backend, Document, PortMap, Route, Service, Settings as RuleSettings, WireInterfaces,
    },
};

pub use self::{
    egress::{
        EgressService, EgressServices, EgressStatus, InstalledService, PortMapping, TailnetTarget,
    },
    ingress::{IngressConfig, IngressStatus, Mapping, ServiceMapping},
};
use super::{
    resolve::{ADVERTISED, ASSIGNED, CLUSTER, REACHABLE, TAILNET},
    settings::{Destination, Egress, Targets},
};

/// The name of the rules of `TS_DEST_IP` and `TS_EXPERIMENTAL_DEST_DNS_NAME`.
pub const INGRESS: &str = "ingress";
/// The name of the rules of `TS_TAILNET_TARGET_IP` and `TS_TAILNET_TARGET_FQDN`.
pub const EGRESS: &str = "egress";
/// The name of the rules of subnet routes, the exit node and app connectors.
pub const ROUTES: &str = "routes";

/// The name of the rules of what the hosts of an advertised subnet send to the tailnet.
pub const ROUTES_BACK: &str = "routes-back";

/// What a file of upstream's says that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}: {remedy}")]
pub struct FileError {
    /// Where in the file.
    pub path: String,
    /// What is wrong.
    pub problem: String,
    /// What would help.
    pub remedy: &'static str,
}

/// The document that every pod begins with: the devices, and only what the tailnet assigns is protected.
pub fn base(tailnet_device: &str, cluster_device: Option<&str>) -> Document {
    let interfaces = WireInterfaces {
        tailnet: vec![tailnet_device.to_owned()],
        cluster: cluster_device.into_iter().map(str::to_owned).collect(),
    };
    let protected_sources = vec![ASSIGNED.to_owned()];
    Document {
        settings: RuleSettings { interfaces, protected_sources, ..RuleSettings::default() },
        routes: vec![
            Route {
                name: ROUTES.to_owned(),
                from: Side::Tailnet,
                destinations: vec![ADVERTISED.to_owned()],
                ..Route::default()
            },
            Route {
                name: ROUTES_BACK.to_owned(),
                from: Side::Cluster,
                destinations: vec![REACHABLE.to_owned()],
                snat: "keep".to_owned(),
                ..Route::default()
            },
        ],
        ..Document::default()
    }
}

/// Adds the environment's targets: upstream forwards every port of every protocol.
pub fn add_targets(document: &mut Document, targets: &Targets) {
    if let Some(destination) = &targets.ingress {
        let address = match destination {
            Destination::Ip(address) => address.to_string(),
            Destination::DnsName(name) => name.clone(),
        };
        document.ingress.push(Service {
            name: INGRESS.to_owned(),
            frontends: vec![TAILNET.to_owned()],
            ports: every_port(),
            backends: vec![Backend { address, ..Backend::default() }],
            ..Service::default()
        });
    }
    if let Some(egress) = &targets.egress {
        let address = match egress {
            Egress::Ip(address) => address.to_string(),
            Egress::Fqdn(name) => name.clone(),
        };
        document.egress.push(Service {
            name: EGRESS.to_owned(),
            frontends: vec![CLUSTER.to_owned()],
            backends: vec![Backend { address, ..Backend::default() }],
            ..Service::default()
        });
    }
}

/// Every port of the protocols that are counted by name.
fn every_port() -> Vec<PortMap> {
    let every = |protocol| PortMap { protocol, ..PortMap::default() };
    vec![every(Protocol::Tcp), every(Protocol::Udp), every(Protocol::Icmp)]
}
