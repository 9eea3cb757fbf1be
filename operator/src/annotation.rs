//! Annotations of Services and Ingresses -> a typed request, all errors at once.

mod ingress;
mod service;

use std::fmt;

pub use self::{
    ingress::{IngressRequest, ingress},
    service::{Carries, Options, Request, on_proxy_group, proxy_class, service},
};
use crate::name::NameError;

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
    /// The address that a Service has is none.
    #[error("field `spec.clusterIP`: `{0}` is not an IP address: create the Service anew")]
    ClusterIp(String),
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
