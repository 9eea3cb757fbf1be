//! A proxy of its own for a Service, an Ingress or a Connector, and everything that makes it.

use std::collections::BTreeMap;

use ipnet::IpNet;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{Secret, Service, ServiceAccount, ServiceSpec},
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::api::DynamicObject;
use secrecy::SecretString;

use super::{access::Access, metrics::Measured, overlay::Applies, secret, stateful_set};
use crate::{
    annotation::Carries,
    crd::proxy_class::ProxyClassSpec,
    label::{self, Labels, Parent},
};

/// A proxy, with everything that is known about it.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// What it is made for.
    pub parent: Parent,
    /// The name of its StatefulSet and of what goes with it.
    pub base: String,
    /// What its pods are selected by: the parent's UID when the StatefulSet was made.
    pub app: String,
    /// Where it is: the operator's namespace.
    pub namespace: String,
    /// What it does.
    pub duty: Duty,
    /// Its replicas.
    pub nodes: Vec<Node>,
    /// Where its nodes log in.
    pub login_server: String,
    /// What users want of its pods.
    pub class: Option<ProxyClassSpec>,
    /// The proxies' image.
    pub image: String,
    /// `TS_DEBUG_FIREWALL_MODE`.
    pub firewall_mode: Option<String>,
    /// The priority class of pods whose ProxyClass says nothing about pods.
    pub priority_class: Option<String>,
}

/// A replica of a proxy.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name in the tailnet.
    pub hostname: String,
    /// What it logs in with, until it has.
    pub auth_key: Option<SecretString>,
}

/// What a proxy does.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Duty {
    /// Carries packets.
    Carry(Carries),
    /// Routes subnets, is an exit node, or both; or else is an app connector.
    Connect(Routes),
    /// Serves HTTP and HTTPS.
    Serve {
        /// The serve configuration, JSON.
        config: String,
        /// Whether connections to the pod's address are led to its tailnet address.
        forward_cluster_traffic: bool,
    },
}

/// What a Connector offers to the tailnet.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Routes {
    /// Routes, an exit node's too, in order.
    pub advertised: Vec<IpNet>,
    /// Whether it is an app connector.
    pub app_connector: bool,
}

/// What metrics call a proxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ProxyType {
    /// `egress_service`
    Egress,
    /// `ingress_service`
    Ingress,
    /// `ingress_resource`
    IngressResource,
    /// `connector`
    Connector,
    /// `proxygroup`
    ProxyGroup,
}

impl ProxyType {
    /// As metrics have it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Egress => "egress_service",
            Self::Ingress => "ingress_service",
            Self::IngressResource => "ingress_resource",
            Self::Connector => "connector",
            Self::ProxyGroup => "proxygroup",
        }
    }

    /// Whether metrics tell the parent's namespace.
    pub fn has_namespace(self) -> bool {
        matches!(self, Self::Ingress | Self::IngressResource)
    }
}

impl Duty {
    /// What metrics call it.
    pub fn proxy_type(&self) -> ProxyType {
        match self {
            Self::Carry(carries) if carries.is_egress() => ProxyType::Egress,
            Self::Carry(_) => ProxyType::Ingress,
            Self::Connect(_) => ProxyType::Connector,
            Self::Serve { .. } => ProxyType::IngressResource,
        }
    }

    /// What tailscaled tells the control server about itself (`TS_INTERNAL_APP`).
    pub fn app(&self) -> &'static str {
        match self {
            Self::Carry(carries) if carries.is_egress() => "k8s-operator-egress-proxy",
            Self::Carry(_) => "k8s-operator-ingress-proxy",
            Self::Serve { .. } => "k8s-operator-ingress-resource",
            Self::Connect(_) => "k8s-operator-connector-resource",
        }
    }

    /// Which parts of a ProxyClass concern it.
    pub(super) fn applies(&self) -> Applies {
        Applies {
            endpoints: !self.takes_pod_address(),
            certificates: matches!(self, Self::Serve { .. }),
        }
    }

    /// Whether no packets are forwarded: tailscaled needs no device.
    pub fn is_user_space(&self) -> bool {
        matches!(self, Self::Serve { forward_cluster_traffic: false, .. })
    }

    /// Whether every connection to the pod's address is led elsewhere, so that nobody can read its metrics.
    pub fn takes_pod_address(&self) -> bool {
        match self {
            Self::Carry(carries) => carries.is_egress(),
            Self::Connect(_) => false,
            Self::Serve { forward_cluster_traffic, .. } => *forward_cluster_traffic,
        }
    }
}

/// Everything that makes a proxy, in the order in which it is applied. Not `Debug`: Secrets hold keys.
pub struct Objects {
    /// Who its pods are for the API server.
    pub account: ServiceAccount,
    /// What they may do.
    pub role: Role,
    /// That it is they who may.
    pub binding: RoleBinding,
    /// Gives the pods names.
    pub headless: Service,
    /// Configuration and state, one a replica.
    pub secrets: Vec<Secret>,
    /// The pods.
    pub stateful_set: StatefulSet,
    /// Where metrics are read, if they are wanted.
    pub metrics: Option<Service>,
    /// How Prometheus finds that, if it is wanted.
    pub monitor: Option<DynamicObject>,
}

/// What makes this proxy.
pub fn objects(proxy: &Proxy) -> Box<Objects> {
    let secrets = (0..proxy.nodes.len()).map(|ordinal| secret_name(&proxy.base, ordinal));
    let access = Access {
        metadata: proxy.metadata(&proxy.base),
        secrets: secrets.collect(),
        lists_secrets: false,
    };
    let measured = Measured::of(proxy);
    Box::new(Objects {
        account: access.account(),
        role: access.role(),
        binding: access.binding(),
        headless: headless(proxy),
        secrets: secret::all(proxy),
        stateful_set: stateful_set::stateful_set(proxy),
        metrics: measured.as_ref().map(Measured::service),
        monitor: measured.as_ref().and_then(Measured::monitor),
    })
}

/// The Secret of a replica, which is its pod's name too.
pub fn secret_name(base: &str, ordinal: usize) -> String {
    format!("{base}-{ordinal}")
}

impl Proxy {
    /// The metadata of an object that is this proxy's alone.
    pub(super) fn metadata(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.clone()),
            labels: Some(self.parent.child_labels()),
            ..ObjectMeta::default()
        }
    }

    /// What its pods are selected by.
    pub(super) fn pod_selector(&self) -> Labels {
        label::labels([(label::APP, self.app.as_str())])
    }
}

fn headless(proxy: &Proxy) -> Service {
    Service {
        metadata: proxy.metadata(&proxy.base),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            selector: Some(BTreeMap::from([(label::APP.into(), proxy.app.clone())])),
            ip_family_policy: Some("PreferDualStack".into()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}
