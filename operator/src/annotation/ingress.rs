//! What an Ingress asks for, but for its backends.

use k8s_openapi::api::networking::v1::Ingress;
use kube::ResourceExt as _;

use super::{Violation, Violations};
use crate::{
    label,
    name::{self, Hostname},
};

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
    let annotations = ingress.annotations();
    let spec = ingress.spec.as_ref();
    let own = spec.and_then(|spec| spec.ingress_class_name.as_deref()) == Some(class);
    let group = annotations.get(label::PROXY_GROUP).is_some_and(|group| !group.is_empty());
    if !own || group {
        return Ok(None);
    }
    let mut violations = Vec::new();
    let tls = spec.and_then(|spec| spec.tls.as_ref()?.first()?.hosts.as_ref()?.first());
    let host = tls.filter(|host| !host.is_empty()).cloned();
    let hostname = if let Some(host) = &host {
        let first = host.split('.').next().unwrap_or_default();
        Hostname::new(first).map_err(Violation::TlsHost)
    } else {
        let namespace = ingress.namespace().unwrap_or_default();
        let name = format!("{namespace}-{}-ingress", ingress.name_any());
        Hostname::new(&name).map_err(Violation::NoTlsHost)
    };
    let hostname = hostname.map_err(|violation| violations.push(violation)).ok();
    let tags = annotations.get(label::TAGS).filter(|tags| !tags.is_empty()).map(|text| {
        let (tags, errors) = name::tags(text);
        violations.extend(errors.into_iter().map(|error| Violation::Name(label::TAGS, error)));
        tags
    });
    let is_true = |key: &str| annotations.get(key).is_some_and(|value| value == "true");
    match hostname {
        Some(hostname) if violations.is_empty() => Ok(Some(IngressRequest {
            hostname,
            tags,
            host,
            funnel: is_true(label::FUNNEL),
            redirect: is_true(label::HTTP_REDIRECT),
            forward_cluster_traffic: is_true(label::FORWARD_CLUSTER_TRAFFIC),
        })),
        _ => Err(Violations(violations)),
    }
}
