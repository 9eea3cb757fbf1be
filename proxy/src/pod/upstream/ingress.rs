//! `ingress-config.json`: the Tailscale Services of an ingress ProxyGroup on layer 3 and, under the same key of the state
//! Secret, which of them are installed.

use std::{collections::BTreeMap, net::IpAddr};

use proxy_rules::config::{Backend, Service};
use serde::{Deserialize, Serialize};

use super::{FileError, every_port};

/// The file: by the name of the Tailscale Service, `svc:web`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IngressConfig(pub BTreeMap<String, ServiceMapping>);

/// One Tailscale Service; a family that is missing is not served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceMapping {
    /// IPv4.
    #[serde(rename = "IPv4Mapping", skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Mapping>,
    /// IPv6.
    #[serde(rename = "IPv6Mapping", skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Mapping>,
}

/// Where the Service's address leads. Upstream writes the empty text where control gave it no address of the family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mapping {
    /// An address of the Tailscale Service.
    #[serde(rename = "TailscaleServiceIP")]
    pub tailscale_service_ip: String,
    /// The cluster's address.
    #[serde(rename = "ClusterIP")]
    pub cluster_ip: String,
}

/// What is installed, as upstream's operator reads it from the state Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IngressStatus {
    /// Those with rules in force.
    pub configs: IngressConfig,
    /// The pod's IPv4 address, or empty.
    #[serde(rename = "podIPv4")]
    pub pod_ipv4: String,
    /// The pod's IPv6 address, or empty.
    #[serde(rename = "podIPv6")]
    pub pod_ipv6: String,
}

impl IngressConfig {
    /// As services of a document; what cannot be carried out is told and left out, the rest is not.
    pub fn services(&self) -> (Vec<Service>, Vec<FileError>) {
        let mut errors = Vec::new();
        let mut services = Vec::new();
        for (name, mapping) in &self.0 {
            let mut service =
                Service { name: name.clone(), ports: every_port(), ..Service::default() };
            let families = [("IPv4Mapping", &mapping.ipv4), ("IPv6Mapping", &mapping.ipv6)];
            for (field, mapping) in families {
                let Some(mapping) = mapping else { continue };
                // Control has given the Service no address of this family (yet).
                if mapping.tailscale_service_ip.is_empty() {
                    continue;
                }
                let path = format!("{name}.{field}");
                let vip = address(&path, "TailscaleServiceIP", &mapping.tailscale_service_ip);
                let cluster = address(&path, "ClusterIP", &mapping.cluster_ip);
                match (vip, cluster) {
                    (Ok(vip), Ok(cluster)) => {
                        service.frontends.push(vip.to_string());
                        let address = cluster.to_string();
                        service.backends.push(Backend { address, ..Backend::default() });
                    }
                    (vip, cluster) => errors.extend(vip.err().into_iter().chain(cluster.err())),
                }
            }
            if !service.frontends.is_empty() {
                services.push(service);
            }
        }
        (services, errors)
    }
}

fn address(path: &str, field: &str, text: &str) -> Result<IpAddr, FileError> {
    text.parse().map_err(|_| FileError {
        path: format!("{path}.{field}"),
        problem: format!("`{}` is not an address", text.escape_debug()),
        remedy: "use an IPv4 or IPv6 address",
    })
}
