//! `egress-services`: the targets of an egress ProxyGroup and, under the same key of the state Secret, what of them is
//! installed.

use std::{collections::BTreeMap, net::IpAddr};

use proxy_rules::{
    Protocol,
    config::{Backend, PortMap, PortSpec, Service},
};
use serde::{Deserialize, Serialize};

use super::{CLUSTER, FileError};

/// The file: by `<namespace>-<name>` of the Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EgressServices(pub BTreeMap<String, EgressService>);

/// One Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressService {
    /// Where the pre-shutdown hook asks whether clients still reach this replica; may be empty.
    pub health_check_endpoint: String,
    /// Where the traffic goes.
    pub tailnet_target: TailnetTarget,
    /// A set, in no order.
    #[serde(deserialize_with = "null_is_empty")]
    pub ports: Vec<PortMapping>,
}

/// One of the two is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TailnetTarget {
    /// An address.
    pub ip: String,
    /// A name of the tailnet.
    pub fqdn: String,
}

/// A port of the pod and the target's port.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PortMapping {
    /// `TCP` or `UDP`, in any case; empty means TCP, Kubernetes' default.
    pub protocol: String,
    /// The pod's port.
    pub match_port: u16,
    /// The target's port.
    pub target_port: u16,
}

/// What is installed, as upstream's operator reads it from the state Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressStatus {
    /// The pod's IPv4 address, or empty.
    #[serde(rename = "podIPv4")]
    pub pod_ipv4: String,
    /// The pod's IPv6 address.
    #[serde(rename = "podIPv6", skip_serializing_if = "String::is_empty", default)]
    pub pod_ipv6: String,
    /// By the name in the file; only those with rules in force for at least one address.
    pub services: BTreeMap<String, InstalledService>,
}

/// A Service with rules in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstalledService {
    /// The ports that are forwarded.
    pub ports: Vec<PortMapping>,
    /// The addresses that they are forwarded to.
    #[serde(rename = "tailnetTargetIPs")]
    pub tailnet_target_ips: Vec<IpAddr>,
    /// As in the file.
    pub tailnet_target: TailnetTarget,
}

impl TailnetTarget {
    fn name(&self) -> Option<&str> {
        [&self.ip, &self.fqdn].into_iter().find(|text| !text.is_empty()).map(String::as_str)
    }
}

impl EgressServices {
    /// As services of a document; what cannot be carried out is told and left out, the rest is not. `own` are TCP ports that the
    /// pod itself serves.
    pub fn services(&self, own: &[u16]) -> (Vec<Service>, Vec<FileError>) {
        let mut errors = Vec::new();
        let mut services = Vec::new();
        for (name, entry) in &self.0 {
            let Some(target) = entry.tailnet_target.name() else {
                errors.push(FileError {
                    path: format!("{name}.tailnetTarget"),
                    problem: "neither ip nor fqdn".to_owned(),
                    remedy: "annotate the Service with tailscale.com/tailnet-fqdn or -ip",
                });
                continue;
            };
            let ports = ports(name, entry, own, &mut errors);
            // Without ports a document's egress means all of them.
            if ports.is_empty() {
                continue;
            }
            services.push(Service {
                name: name.clone(),
                frontends: vec![CLUSTER.to_owned()],
                ports,
                backends: vec![Backend { address: target.to_owned(), ..Backend::default() }],
                ..Service::default()
            });
        }
        (services, errors)
    }
}

fn ports(
    name: &str,
    entry: &EgressService,
    own: &[u16],
    errors: &mut Vec<FileError>,
) -> Vec<PortMap> {
    let port = |(index, mapping): (usize, &PortMapping)| {
        let protocol = match mapping.protocol.to_ascii_lowercase().as_str() {
            "tcp" | "" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            other => {
                errors.push(FileError {
                    path: format!("{name}.ports[{index}].protocol"),
                    problem: format!("`{}` is not forwarded", other.escape_debug()),
                    remedy: "use TCP or UDP",
                });
                return None;
            }
        };
        for (field, port) in
            [("matchPort", mapping.match_port), ("targetPort", mapping.target_port)]
        {
            if port == 0 {
                errors.push(FileError {
                    path: format!("{name}.ports[{index}].{field}"),
                    problem: "0 is no port".to_owned(),
                    remedy: "use a number from 1 to 65535",
                });
                return None;
            }
        }
        if protocol == Protocol::Tcp && own.contains(&mapping.match_port) {
            errors.push(FileError {
                path: format!("{name}.ports[{index}].matchPort"),
                problem: format!(
                    "{} is where this pod serves health and status",
                    mapping.match_port
                ),
                remedy: "use another port, or set TS_LOCAL_ADDR_PORT to one that no Service uses",
            });
            return None;
        }
        let target_port = Some(mapping.target_port);
        let port = Some(PortSpec::Number(i64::from(mapping.match_port)));
        Some(PortMap { protocol, port, target_port, count_per_port: false })
    };
    let mut seen = std::collections::BTreeSet::new();
    let unique = entry.ports.iter().enumerate().filter(|(_, mapping)| {
        seen.insert((mapping.protocol.to_ascii_lowercase(), mapping.match_port))
    });
    unique.filter_map(port).collect()
}

/// Go writes an empty list as `null`.
fn null_is_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
