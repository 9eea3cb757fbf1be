//! What Services and Ingresses ask of the proxies of an ingress ProxyGroup.

use std::net::IpAddr;

use k8s_openapi::api::{core::v1::Service, networking::v1::Ingress};
use kube::{Resource, ResourceExt as _};

use super::{
    IngressRequest, Options, Violation, Violations,
    ingress::{is_of_class, read},
    service::{hostname, is_load_balancer},
    tags,
};
use crate::{
    label,
    name::{Hostname, NameError},
    tailnet_api::ServiceName,
};

/// What every object asks of an ingress ProxyGroup.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GroupRequest {
    /// The ProxyGroup.
    pub group: String,
    /// The Tailscale Service that its proxies are to offer.
    pub service: ServiceName,
    /// The Tailscale Service's tags, if they are not the operator's for all proxies.
    pub tags: Option<Vec<String>>,
}

/// An Ingress on a ProxyGroup.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GroupIngress {
    /// What it asks of the ProxyGroup.
    pub asks: GroupRequest,
    /// What it asks for as every Ingress does.
    pub ingress: IngressRequest,
    /// Whether plain HTTP is served like HTTPS.
    pub endpoint: bool,
}

/// A Service on an ingress ProxyGroup.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GroupService {
    /// What it asks of the ProxyGroup.
    pub asks: GroupRequest,
    /// Where traffic is led to: of each family one.
    pub addresses: Vec<IpAddr>,
}

/// The ProxyGroup that an object names.
pub fn proxy_group(object: &impl Resource) -> Option<&str> {
    let group = object.annotations().get(label::PROXY_GROUP).map(String::as_str);
    group.filter(|group| !group.is_empty())
}

/// What an Ingress of this class asks of a ProxyGroup: `None` if it is of another one, or names none.
pub fn group_ingress(ingress: &Ingress, class: &str) -> Result<Option<GroupIngress>, Violations> {
    let Some(group) = proxy_group(ingress).filter(|_| is_of_class(ingress, class)) else {
        return Ok(None);
    };
    let mut violations = Vec::new();
    let tls = ingress.spec.as_ref().and_then(|spec| spec.tls.as_deref()).unwrap_or_default();
    if tls.len() > 1 || tls.iter().flat_map(|one| &one.hosts).flatten().count() > 1 {
        violations.push(Violation::TooManyTlsHosts);
    }
    let request = read(ingress, &mut violations);
    let service = request.as_ref().and_then(|request| {
        named(&request.hostname).map_err(|error| violations.push(Violation::TlsHost(error))).ok()
    });
    let endpoint = ingress.annotations().get(label::HTTP_ENDPOINT);
    match (request, service) {
        (Some(request), Some(service)) if violations.is_empty() => Ok(Some(GroupIngress {
            asks: GroupRequest { group: group.to_owned(), service, tags: request.tags.clone() },
            endpoint: endpoint.is_some_and(|value| value == "enabled"),
            ingress: request,
        })),
        _ => Err(Violations(violations)),
    }
}

/// What a Service asks of an ingress ProxyGroup: `None` if nothing, or names none.
pub fn group_service(
    service: &Service,
    options: &Options,
) -> Result<Option<GroupService>, Violations> {
    let (Some(group), Some(spec)) = (proxy_group(service), &service.spec) else {
        return Ok(None);
    };
    let exposed = service.annotations().get(label::EXPOSE).is_some_and(|value| value == "true");
    if !exposed && !is_load_balancer(spec, options) {
        return Ok(None);
    }
    let mut violations = Vec::new();
    let texts = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in texts.filter_map(|text| text.parse().ok()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        violations.push(Violation::NoClusterIp);
    }
    let name = hostname(service).and_then(|hostname| {
        named(&hostname).map_err(|error| Violation::Name(label::HOSTNAME, error))
    });
    let name = name.map_err(|violation| violations.push(violation)).ok();
    let tags = tags(service, &mut violations);
    match name {
        Some(service) if violations.is_empty() => Ok(Some(GroupService {
            asks: GroupRequest { group: group.to_owned(), service, tags },
            addresses,
        })),
        _ => Err(Violations(violations)),
    }
}

/// Capitals are allowed in what users write, and mean the same.
fn named(hostname: &Hostname) -> Result<ServiceName, NameError> {
    let label = hostname.as_str().to_ascii_lowercase();
    ServiceName::of_label(&label).map_err(|_| NameError::Label(label))
}

#[cfg(test)]
mod tests;
