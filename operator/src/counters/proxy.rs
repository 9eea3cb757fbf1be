//! Where a proxy is, and what it was made for.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use super::Parent;
use crate::build::METRICS_PORT;

/// A pod of a proxy that runs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Proxy {
    pub(super) parent: Parent,
    /// The pod's name.
    pub(super) pod: String,
    /// The pod's UID: one that was made anew counts anew.
    pub(super) uid: String,
    /// Where it tells what it carries.
    pub(super) address: SocketAddr,
}

impl Proxy {
    /// Of a pod, if it runs, has an address and is a proxy's.
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        let status =
            pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Running"))?;
        let ip: IpAddr = status.pod_ip.as_ref()?.parse().ok()?;
        Some(Self {
            parent: Parent::of(pod)?,
            pod: pod.name_any(),
            uid: pod.uid()?,
            address: SocketAddr::new(ip, u16::try_from(METRICS_PORT).ok()?),
        })
    }
}
