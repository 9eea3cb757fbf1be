//! Annotations of Services and Ingresses -> a typed request, all errors at once.

mod egress;
mod group;
mod ingress;
mod service;

use std::fmt;

use kube::{Resource, ResourceExt as _};

pub(crate) use self::ingress::first_host;
pub use self::{
    egress::{EgressPort, EgressRequest, EgressTarget, HEALTH_PORT, egress, egress_group},
    group::{GroupIngress, GroupRequest, GroupService, group_ingress, group_service, proxy_group},
    ingress::{IngressRequest, ingress},
    service::{Carries, Options, Request, on_proxy_group, proxy_class, service},
};
use crate::{
    label,
    name::{self, NameError},
};

/// Something that an object asks for and that cannot be done.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Violation {
    /// Two annotations contradict each other.
    #[error("annotations `{0}` and `{1}` are both set: remove one, a Service leads to one target")]
    Both(&'static str, &'static str),
    /// An annotation's value.
    #[error("annotation `{0}`: {1}")]
    Name(&'static str, NameError),
    /// Not an address.
    #[error(
        "annotation `{0}`: `{1}` is not an IP address: write one of the tailnet, such as `100.64.0.9`"
    )]
    Address(&'static str, String),
    /// A name that is made of others is too long.
    #[error(
        "the hostname follows from namespace and name, and {0}: set annotation `tailscale.com/hostname`"
    )]
    Hostname(NameError),
    /// The first label of an Ingress's TLS host is no name for a node.
    #[error("field `spec.tls[0].hosts[0]`: its first label is the hostname, and {0}")]
    TlsHost(NameError),
    /// A name that is made of others is too long.
    #[error(
        "the hostname follows from namespace and name, and {0}: set field `spec.tls[0].hosts[0]`"
    )]
    NoTlsHost(NameError),
    /// A Service that leads out of the cluster has no address of its own.
    #[error("field `spec.type`: is {0}, use ExternalName for what leads to the tailnet")]
    NotExternal(String),
    /// Nothing to forward.
    #[error("field `spec.ports`: is empty, name the ports of the target")]
    NoPorts,
    /// A protocol that proxies do not carry.
    #[error("field `spec.ports[{0}].protocol`: {1} is not forwarded, use TCP or UDP")]
    Protocol(usize, String),
    /// A name that the operator gives to a port of its own.
    #[error("field `spec.ports[{0}].name`: `{1}` is the name of a port that is added, use another")]
    PortName(usize, &'static str),
    /// The address that a Service has is none.
    #[error("field `spec.clusterIP`: `{0}` is not an IP address: create the Service anew")]
    ClusterIp(String),
    /// On a ProxyGroup, without an address that its proxies could lead to.
    #[error(
        "field `spec.clusterIP`: a Service on an ingress ProxyGroup needs a cluster IP, headless Services and external names have none: give it one, or remove annotation `tailscale.com/proxy-group` to have a proxy of its own"
    )]
    NoClusterIp,
    /// On a ProxyGroup, with more names than one.
    #[error(
        "field `spec.tls`: an Ingress on a ProxyGroup has one name: leave one entry with one host, and make an Ingress for each other name"
    )]
    TooManyTlsHosts,
}

/// Everything that is wrong with an object. Never empty.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violations(pub Vec<Violation>);

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, violation) in self.0.iter().enumerate() {
            write!(f, "{}{violation}", if place > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Violations {}

/// The tags that an object asks for; what is wrong with them goes to the others.
fn tags(object: &impl Resource, violations: &mut Vec<Violation>) -> Option<Vec<String>> {
    let text = object.annotations().get(label::TAGS).filter(|tags| !tags.is_empty())?;
    let (tags, errors) = name::tags(text);
    violations.extend(errors.into_iter().map(|error| Violation::Name(label::TAGS, error)));
    Some(tags)
}
