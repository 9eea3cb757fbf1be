//! Egress Services on a ProxyGroup: what its proxies are told to do, what they tell that they do, and the Service and the
//! EndpointSlices by which clients are led to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::IpAddr,
};

use k8s_openapi::{
    api::{
        core::v1::{Service, ServicePort, ServiceSpec},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use kube::ResourceExt as _;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::{
    annotation::{EgressPort, EgressRequest, EgressTarget, HEALTH_PORT},
    build::overlay::METRICS_PORT,
    label::{self, Labels, Parent},
};

/// The first number that is tried for the health port of a Service.
const FIRST_HEALTH_PORT: u16 = 9002;

/// What the proxies do for a Service, in the form of [`super::EGRESS_SERVICES`].
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressService {
    /// Where a proxy that ends asks whether clients are still led to it.
    pub health_check_endpoint: String,
    /// Where to.
    pub tailnet_target: Target,
    /// Which ports.
    pub ports: BTreeSet<PortMapping>,
}

/// One of the two is empty.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Target {
    /// An address.
    pub ip: String,
    /// A name.
    pub fqdn: String,
}

/// A port of the pods and the target's.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PortMapping {
    /// `TCP` or `UDP`.
    pub protocol: String,
    /// The pods'.
    pub match_port: u16,
    /// The target's.
    pub target_port: u16,
}

/// A Service and what is done for it: an annotation of what is made for the Service, so that it is known without the Service.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// What proxies call it.
    pub key: String,
    /// What they do.
    pub service: EgressService,
}

/// What a proxy tells in its Secret, under [`super::EGRESS_SERVICES`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EgressStatus {
    /// The pod's address, or empty.
    #[serde(rename = "podIPv4")]
    pub pod_ipv4: String,
    /// The pod's address, or empty.
    #[serde(rename = "podIPv6")]
    pub pod_ipv6: String,
    /// What it does, by [`Entry::key`].
    pub services: BTreeMap<String, Installed>,
}

/// What a proxy does for a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Installed {
    ports: BTreeSet<PortMapping>,
    #[serde(rename = "tailnetTargetIPs")]
    addresses: Vec<IpAddr>,
    tailnet_target: Target,
}

/// A pod that clients are led to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Served {
    /// Its address.
    pub address: IpAddr,
    /// Its UID.
    pub uid: String,
}

impl Installed {
    /// Whether this is what was asked for, and leads somewhere.
    pub fn does(&self, wanted: &EgressService) -> bool {
        self.tailnet_target == wanted.tailnet_target
            && self.ports == wanted.ports
            && !self.addresses.is_empty()
    }
}

impl EgressStatus {
    /// The pod's address of a family, as the proxy that told this had it.
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        let text = match family {
            Family::V4 => &self.pod_ipv4,
            Family::V6 => &self.pod_ipv6,
        };
        text.parse().ok()
    }
}

/// An address family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl Family {
    /// The families of a Service.
    pub fn of(service: &Service) -> Vec<Self> {
        let families = service.spec.as_ref().and_then(|spec| spec.ip_families.as_ref());
        let family = |text: &String| if text == "IPv6" { Self::V6 } else { Self::V4 };
        families.into_iter().flatten().map(family).collect()
    }

    /// Whether an address is of it.
    pub fn has(self, address: &IpAddr) -> bool {
        address.is_ipv4() == (self == Self::V4)
    }

    fn label(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// What leads clients to the proxies for one Service.
#[derive(Clone, Debug)]
pub struct EgressChild {
    /// The Service.
    pub parent: Parent,
    /// The ProxyGroup.
    pub group: String,
    /// The name of the Service that is made, and with a suffix of its EndpointSlices.
    pub name: String,
    /// The operator's namespace.
    pub namespace: String,
}

impl EgressChild {
    /// The labels of all that is made.
    pub fn labels(&self) -> Labels {
        let mut all = self.parent.child_labels();
        all.extend(label::labels([
            (label::PROXY_GROUP, self.group.as_str()),
            (label::SERVICE_TYPE, label::EGRESS),
        ]));
        all
    }

    /// The Service, with a port of the pods for each of its own.
    pub fn service(
        &self,
        request: &EgressRequest,
        pod_ports: &BTreeMap<PortKey, u16>,
        entry: &Entry,
    ) -> Service {
        let user = request.ports.iter().filter_map(|port| {
            let pod_port = pod_ports.get(&key(port))?;
            Some(service_port(&port.name, &port.protocol, port.port, i32::from(*pod_port)))
        });
        let health = service_port(HEALTH_PORT, "TCP", health_port(&request.ports), METRICS_PORT);
        // Strings and numbers always have a JSON form.
        let text = serde_json::to_string(entry).unwrap_or_default();
        let mut annotations = Labels::from([(label::LAST_EGRESS.to_owned(), text)]);
        let name = &entry.service.tailnet_target.fqdn;
        if !name.is_empty() {
            annotations.insert(label::MAGIC_DNS_NAME.into(), name.clone());
        }
        Service {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                labels: Some(self.labels()),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            },
            spec: Some(ServiceSpec {
                type_: Some("ClusterIP".into()),
                ip_family_policy: Some("PreferDualStack".into()),
                ports: Some(user.chain([health]).collect()),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    }

    /// What the proxies do for it.
    pub fn entry(
        &self,
        key: String,
        request: &EgressRequest,
        pod_ports: &BTreeMap<PortKey, u16>,
        cluster_domain: &str,
    ) -> Entry {
        let Self { name, namespace, .. } = self;
        let port = health_port(&request.ports);
        let mapping = |port: &EgressPort| {
            let match_port = *pod_ports.get(&self::key(port))?;
            let protocol = port.protocol.clone();
            Some(PortMapping { protocol, match_port, target_port: port.target })
        };
        let service = EgressService {
            health_check_endpoint: format!(
                "http://{name}.{namespace}.svc.{cluster_domain}:{port}/healthz"
            ),
            tailnet_target: match &request.target {
                EgressTarget::Ip(ip) => Target { ip: ip.to_string(), ..Target::default() },
                EgressTarget::Name(fqdn) => Target { fqdn: fqdn.clone(), ..Target::default() },
            },
            ports: request.ports.iter().filter_map(mapping).collect(),
        };
        Entry { key, service }
    }
}

/// A port of a Service: protocol and number, whatever it is called.
pub type PortKey = (String, u16);

/// What tells a port from the others of its Service.
pub fn key(port: &EgressPort) -> PortKey {
    (port.protocol.clone(), port.port)
}

/// The port at which proxies tell clients who they are.
fn health_port(ports: &[EgressPort]) -> u16 {
    let is_free = |number: &u16| ports.iter().all(|port| port.port != *number);
    // A Service has far fewer ports than there are numbers.
    (FIRST_HEALTH_PORT..=u16::MAX).find(is_free).unwrap_or(FIRST_HEALTH_PORT)
}

fn service_port(name: &str, protocol: &str, port: u16, target: i32) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        protocol: Some(protocol.to_owned()),
        port: i32::from(port),
        target_port: Some(IntOrString::Int(target)),
        ..ServicePort::default()
    }
}

/// The ports of the pods that a Service which is there has, its health port not among them.
pub fn pod_ports(service: &Service) -> BTreeMap<PortKey, u16> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let port = |port: &ServicePort| {
        let Some(IntOrString::Int(target)) = port.target_port else { return None };
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        Some(((protocol, port.port.try_into().ok()?), target.try_into().ok()?))
    };
    let all = ports.into_iter().flatten();
    all.filter(|port| port.name.as_deref() != Some(HEALTH_PORT)).filter_map(port).collect()
}

/// What the proxies do for the Service that this was made for; `None` if upstream's operator made it.
pub fn entry(service: &Service) -> Option<Entry> {
    serde_json::from_str(service.annotations().get(label::LAST_EGRESS)?).ok()
}

/// Tells one configuration from another.
pub fn config_hash(group: &str, entry: &Entry) -> String {
    let text = serde_json::json!({ "proxyGroup": group, "entry": entry }).to_string();
    let hash = digest(&SHA256, text.as_bytes());
    hash.as_ref().iter().fold(String::new(), |mut hex, byte| {
        // Writing into a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The EndpointSlice of a family.
pub fn slice_name(service: &str, family: Family) -> String {
    format!("{service}-{}", family.label().to_lowercase())
}

/// Leads clients of `child` to these pods.
pub fn slice(child: &Service, hash: &str, family: Family, served: &[Served]) -> EndpointSlice {
    let name = child.name_any();
    let mut labels = child.labels().clone();
    labels.extend(label::labels([
        (label::SLICE_SERVICE, name.as_str()),
        (label::SLICE_MANAGER, "tailscale.com"),
    ]));
    let ports = child.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let port = |port: &ServicePort| EndpointPort {
        name: port.name.clone(),
        protocol: port.protocol.clone(),
        port: match port.target_port {
            Some(IntOrString::Int(number)) => Some(number),
            _ => None,
        },
        ..EndpointPort::default()
    };
    let endpoint = |pod: &Served| Endpoint {
        addresses: vec![pod.address.to_string()],
        hostname: Some(pod.uid.clone()),
        conditions: Some(EndpointConditions {
            ready: Some(true),
            serving: Some(true),
            terminating: Some(false),
        }),
        ..Endpoint::default()
    };
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(slice_name(&name, family)),
            namespace: child.namespace(),
            labels: Some(labels),
            annotations: Some(Labels::from([(label::LAST_EGRESS.to_owned(), hash.to_owned())])),
            ..ObjectMeta::default()
        },
        address_type: family.label().to_owned(),
        endpoints: served.iter().filter(|pod| family.has(&pod.address)).map(endpoint).collect(),
        ports: Some(ports.into_iter().flatten().map(port).collect()),
    }
}
