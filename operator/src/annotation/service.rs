//! What a Service asks for.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use kube::{Resource, ResourceExt as _};

use super::{Violation, Violations, tags};
use crate::{
    label,
    name::{self, Hostname},
};

/// What the reading of a Service depends on besides the Service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Options {
    /// Whether load balancers without a class are ours (`OPERATOR_DEFAULT_LOAD_BALANCER`).
    pub default_load_balancer: bool,
    /// The cluster's DNS domain, without dots at its ends.
    pub cluster_domain: String,
}

/// A proxy that a Service asks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// What it carries.
    pub carries: Carries,
    /// Its name in the tailnet.
    pub hostname: Hostname,
    /// Its tags, if they are not the operator's for all proxies.
    pub tags: Option<Vec<String>>,
    /// Whether the Service waits for addresses of a load balancer.
    pub load_balancer: bool,
}

/// What a proxy carries, and where to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Carries {
    /// From the tailnet to an address of the cluster.
    ClusterIp(IpAddr),
    /// From the tailnet to all addresses of a DNS name.
    ClusterName(String),
    /// From the cluster to an address of the tailnet.
    TailnetIp(IpAddr),
    /// From the cluster to a name of the tailnet, with a dot at its end.
    TailnetName(String),
}

impl Carries {
    /// Whether traffic comes from the cluster.
    pub fn is_egress(&self) -> bool {
        matches!(self, Self::TailnetIp(_) | Self::TailnetName(_))
    }
}

/// Whether a Service is a ProxyGroup's: the key decides, whatever its value.
pub fn on_proxy_group(service: &Service) -> bool {
    service.annotations().contains_key(label::PROXY_GROUP)
}

/// The ProxyClass of an object: its label, else its annotation, else the default. An empty name is none.
pub fn proxy_class(object: &impl Resource, default: Option<&str>) -> Option<String> {
    let own = object.labels().get(label::PROXY_CLASS);
    let own = own.or_else(|| object.annotations().get(label::PROXY_CLASS));
    own.map_or(default, |name| Some(name.as_str()))
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
}

/// What a Service asks for: `None` if nothing, or what a ProxyGroup is to do.
pub fn service(service: &Service, options: &Options) -> Result<Option<Request>, Violations> {
    let Some(spec) = service.spec.as_ref().filter(|_| !on_proxy_group(service)) else {
        return Ok(None);
    };
    let mut violations = Vec::new();
    let load_balancer = is_load_balancer(spec, options);
    let Some(carries) = carries(service, spec, options, &mut violations) else {
        return if violations.is_empty() { Ok(None) } else { Err(Violations(violations)) };
    };
    let hostname = hostname(service).map_err(|violation| violations.push(violation)).ok();
    let tags = tags(service, &mut violations);
    match hostname {
        Some(hostname) if violations.is_empty() => {
            Ok(Some(Request { carries, hostname, tags, load_balancer }))
        }
        _ => Err(Violations(violations)),
    }
}

pub(super) fn is_load_balancer(spec: &ServiceSpec, options: &Options) -> bool {
    spec.type_.as_deref() == Some("LoadBalancer")
        && match spec.load_balancer_class.as_deref() {
            Some(class) => class == label::LOAD_BALANCER_CLASS,
            None => options.default_load_balancer,
        }
}

/// What is asked for; what is wrong with it goes to the others. `None` without violations: nothing is asked for.
fn carries(
    service: &Service,
    spec: &ServiceSpec,
    options: &Options,
    violations: &mut Vec<Violation>,
) -> Option<Carries> {
    let set = |key: &str| {
        service.annotations().get(key).map(String::as_str).filter(|value| !value.is_empty())
    };
    let exposed = set(label::EXPOSE) == Some("true");
    let cluster_ip = spec.cluster_ip.as_deref().filter(|address| !address.is_empty());
    let external = spec.external_name.as_deref().filter(|name| !name.is_empty());
    let has_ip = set(label::TAILNET_IP);
    let has_fqdn = set(label::TAILNET_FQDN);
    if let (Some(_), Some(_)) = (has_ip, has_fqdn) {
        violations.push(Violation::Both(label::TAILNET_IP, label::TAILNET_FQDN));
    }
    if let Some(address) = cluster_ip.filter(|_| exposed || is_load_balancer(spec, options)) {
        let both_families = spec.cluster_ips.as_ref().is_some_and(|all| all.len() > 1);
        if address == "None" || both_families {
            // Its DNS name has the addresses of its ready endpoints, and of both families.
            return Some(Carries::ClusterName(dns_name(service, &options.cluster_domain)));
        }
        let parsed = address.parse();
        return parsed
            .map(Carries::ClusterIp)
            .map_err(|_| violations.push(Violation::ClusterIp(address.to_owned())))
            .ok();
    }
    if let Some(name) =
        external.filter(|_| exposed && spec.type_.as_deref() == Some("ExternalName"))
    {
        return Some(Carries::ClusterName(name.to_owned()));
    }
    let ip = has_ip.map(|value| (label::TAILNET_IP, value)).or_else(|| {
        set(label::TAILNET_IP_DEPRECATED).map(|value| (label::TAILNET_IP_DEPRECATED, value))
    });
    if let Some((key, value)) = ip {
        return value
            .parse()
            .map(Carries::TailnetIp)
            .map_err(|_| violations.push(Violation::Address(key, value.to_owned())))
            .ok();
    }
    let name = name::fqdn(has_fqdn?);
    name.map(Carries::TailnetName)
        .map_err(|error| violations.push(Violation::Name(label::TAILNET_FQDN, error)))
        .ok()
}

fn dns_name(service: &Service, domain: &str) -> String {
    format!("{}.{}.svc.{domain}", service.name_any(), service.namespace().unwrap_or_default())
}

pub(super) fn hostname(service: &Service) -> Result<Hostname, Violation> {
    if let Some(name) = service.annotations().get(label::HOSTNAME) {
        return Hostname::new(name).map_err(|error| Violation::Name(label::HOSTNAME, error));
    }
    let namespace = service.namespace().unwrap_or_default();
    let name = format!("{namespace}-{}", service.name_any());
    Hostname::new(&name).map_err(Violation::Hostname)
}

#[cfg(test)]
mod tests;
