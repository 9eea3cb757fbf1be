//! What an Ingress asks for, but for its backends.

use k8s_openapi::api::networking::v1::Ingress;
use kube::ResourceExt as _;

use super::{Violation, Violations, proxy_group, tags};
use crate::{label, name::Hostname};

/// A proxy that an Ingress asks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IngressRequest {
    /// Its name in the tailnet.
    pub hostname: Hostname,
    /// Its tags, if they are not the operator's for all proxies.
    pub tags: Option<Vec<String>>,
    /// The only host that rules may name, if they may name one: the first of the TLS block.
    pub host: Option<String>,
    /// Whether the internet may come in.
    pub funnel: bool,
    /// Whether plain HTTP is answered with the way to HTTPS.
    pub redirect: bool,
    /// Whether connections to the pod's address are led to its tailnet address.
    pub forward_cluster_traffic: bool,
}

/// What an Ingress of this class asks for: `None` if it is of another one, or a ProxyGroup's.
pub fn ingress(ingress: &Ingress, class: &str) -> Result<Option<IngressRequest>, Violations> {
    if !is_of_class(ingress, class) || proxy_group(ingress).is_some() {
        return Ok(None);
    }
    let mut violations = Vec::new();
    match read(ingress, &mut violations) {
        Some(request) if violations.is_empty() => Ok(Some(request)),
        _ => Err(Violations(violations)),
    }
}

pub(super) fn is_of_class(ingress: &Ingress, class: &str) -> bool {
    let spec = ingress.spec.as_ref();
    spec.and_then(|spec| spec.ingress_class_name.as_deref()) == Some(class)
}

/// What it asks for, whoever is to do it; what is wrong with it goes to the others.
pub(super) fn read(ingress: &Ingress, violations: &mut Vec<Violation>) -> Option<IngressRequest> {
    let annotations = ingress.annotations();
    let host = first_host(ingress).map(str::to_owned);
    let hostname = if let Some(host) = &host {
        let first = host.split('.').next().unwrap_or_default();
        Hostname::new(first).map_err(Violation::TlsHost)
    } else {
        let namespace = ingress.namespace().unwrap_or_default();
        let name = format!("{namespace}-{}-ingress", ingress.name_any());
        Hostname::new(&name).map_err(Violation::NoTlsHost)
    };
    let hostname = hostname.map_err(|violation| violations.push(violation)).ok();
    let tags = tags(ingress, violations);
    let is_true = |key: &str| annotations.get(key).is_some_and(|value| value == "true");
    Some(IngressRequest {
        hostname: hostname?,
        tags,
        host,
        funnel: is_true(label::FUNNEL),
        redirect: is_true(label::HTTP_REDIRECT),
        forward_cluster_traffic: is_true(label::FORWARD_CLUSTER_TRAFFIC),
    })
}

/// The first host of the TLS block.
pub(crate) fn first_host(ingress: &Ingress) -> Option<&str> {
    let tls = ingress.spec.as_ref()?.tls.as_ref()?.first()?;
    tls.hosts.as_ref()?.first().map(String::as_str).filter(|host| !host.is_empty())
}
