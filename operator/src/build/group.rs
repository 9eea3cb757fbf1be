//! The proxies of a ProxyGroup, and everything that makes them.

mod config;
pub mod egress;
mod environment;
mod node_port;
mod stateful_set;

use std::{collections::BTreeMap, net::SocketAddr};

use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Secret, Service, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::api::DynamicObject;
use secrecy::SecretString;

pub use self::{
    config::{CONFIG, Stored, stored},
    environment::READINESS_GATE,
    node_port::{node_port_name, tailscaled_port},
};
use super::{access::Access, metrics::Measured, proxy::ProxyType, secret_name};
use crate::{
    crd::proxy_class::ProxyClassSpec,
    label::{self, Parent},
};

/// The Secret with the ACME accounts that ingress ProxyGroups share.
pub const ACME_ACCOUNTS: &str = "tailscale-acme-accounts";
/// The key of an egress ProxyGroup's ConfigMap with its Services.
pub const EGRESS_SERVICES: &str = "egress-services";
/// The same, with how often a replica that ends asks whether clients are still led to it.
const PINGS: &str = "hep-pings";

/// A ProxyGroup, with everything that is known about it.
#[derive(Clone, Debug)]
pub struct Group {
    /// The ProxyGroup. Its name is the StatefulSet's.
    pub parent: Parent,
    /// The same: what is made ends with it.
    pub owner: OwnerReference,
    /// Where the proxies are: the operator's namespace.
    pub namespace: String,
    /// What they do.
    pub duty: GroupDuty,
    /// All of them.
    pub replicas: Vec<Replica>,
    /// Where they log in.
    pub login_server: String,
    /// What users want of their pods.
    pub class: Option<ProxyClassSpec>,
    /// Their image.
    pub image: String,
    /// `TS_DEBUG_FIREWALL_MODE`.
    pub firewall_mode: Option<String>,
    /// The priority class of pods whose ProxyClass says nothing about pods.
    pub priority_class: Option<String>,
    /// The UDP port of every tailscaled, where peers reach it at fixed addresses.
    pub port: Option<u16>,
}

/// What the proxies of a ProxyGroup do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum GroupDuty {
    /// Carry from the cluster to targets in the tailnet.
    Egress {
        /// The targets, in the form of [`EGRESS_SERVICES`].
        services: String,
    },
    /// Carry from the tailnet to Services, and serve Ingresses.
    Ingress {
        /// The field of [`ACME_ACCOUNTS`] with their account, if they share it.
        account: Option<String>,
    },
}

/// A proxy of a ProxyGroup.
#[derive(Clone, Debug, Default)]
pub struct Replica {
    /// Its name in the tailnet.
    pub hostname: String,
    /// What it logs in with, until it has.
    pub auth_key: Option<SecretString>,
    /// The Tailscale Services that it offers: others decide that, and it is kept.
    pub advertised: Vec<String>,
    /// Where peers reach it, at fixed addresses.
    pub endpoints: Vec<SocketAddr>,
    /// The node port of those.
    pub node_port: Option<u16>,
    /// The version of the Secret that `advertised` is of: a later one says otherwise.
    pub seen: Option<String>,
    /// The file as it is there. One that says the same in other words stays.
    pub file: Option<ByteString>,
}

/// Everything that makes the proxies, in the order in which it is applied. Not `Debug`: Secrets hold keys.
pub struct GroupObjects {
    /// Who their pods are for the API server.
    pub account: ServiceAccount,
    /// What they may do.
    pub role: Role,
    /// That it is they who may.
    pub binding: RoleBinding,
    /// What they forward.
    pub config_map: ConfigMap,
    /// State, one a replica.
    pub states: Vec<Secret>,
    /// Configuration, one a replica.
    pub configs: Vec<Secret>,
    /// Node ports, one a replica, where peers reach them at fixed addresses.
    pub node_ports: Vec<Service>,
    /// Shared ACME accounts, if they share one.
    pub accounts: Option<Secret>,
    /// The pods.
    pub stateful_set: StatefulSet,
    /// Where metrics are read, if they are wanted.
    pub metrics: Option<Service>,
    /// How Prometheus finds that, if it is wanted.
    pub monitor: Option<DynamicObject>,
}

impl GroupDuty {
    /// As in the names of ConfigMaps and what tailscaled tells the control server.
    fn label(&self) -> &'static str {
        match self {
            Self::Egress { .. } => "egress",
            Self::Ingress { .. } => "ingress",
        }
    }
}

/// What makes these proxies.
pub fn group_objects(group: &Group) -> Box<GroupObjects> {
    let metadata = group.metadata(&group.parent.name);
    let access = Access {
        metadata,
        secrets: group.secrets(),
        lists_secrets: matches!(group.duty, GroupDuty::Ingress { .. }),
    };
    let measured = group.measured();
    Box::new(GroupObjects {
        account: access.account(),
        role: access.role(),
        binding: access.binding(),
        config_map: config_map(group),
        states: (0..group.replicas.len()).map(|ordinal| state(group, ordinal)).collect(),
        configs: group.replicas.iter().enumerate().map(|one| config(group, one)).collect(),
        node_ports: node_port::services(group),
        accounts: matches!(group.duty, GroupDuty::Ingress { account: Some(_) })
            .then(|| accounts(&group.namespace)),
        stateful_set: stateful_set::stateful_set(group),
        metrics: measured.as_ref().map(Measured::service),
        monitor: measured.as_ref().and_then(Measured::monitor),
    })
}

/// The name of a ProxyGroup's ConfigMap.
pub fn config_map_name(group: &str, duty: &GroupDuty) -> String {
    format!("{group}-{}-config", duty.label())
}

/// The Secret with the configuration of a replica.
pub fn config_name(group: &str, ordinal: usize) -> String {
    format!("{}-config", secret_name(group, ordinal))
}

impl Group {
    /// The metadata of an object that ends with the ProxyGroup.
    fn metadata(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.clone()),
            labels: Some(self.parent.child_labels()),
            owner_references: Some(vec![self.owner.clone()]),
            ..ObjectMeta::default()
        }
    }

    /// The Secrets that the pods read and write.
    fn secrets(&self) -> Vec<String> {
        let name = &self.parent.name;
        let ordinals = 0..self.replicas.len();
        let mut all: Vec<_> = ordinals
            .flat_map(|ordinal| [config_name(name, ordinal), secret_name(name, ordinal)])
            .collect();
        if matches!(self.duty, GroupDuty::Ingress { account: Some(_) }) {
            all.push(ACME_ACCOUNTS.to_owned());
        }
        all
    }

    fn measured(&self) -> Option<Measured<'_>> {
        let wanted = self.class.as_ref()?.metrics.as_ref().filter(|metrics| metrics.enable)?;
        Some(Measured {
            parent: &self.parent,
            kind: ProxyType::ProxyGroup,
            base: &self.parent.name,
            namespace: &self.namespace,
            wanted,
        })
    }
}

/// Of an ingress ProxyGroup it is empty here: what is in it is written by whoever serves Ingresses and Services.
fn config_map(group: &Group) -> ConfigMap {
    let bytes = |text: String| ByteString(text.into_bytes());
    let data = match &group.duty {
        GroupDuty::Ingress { .. } => None,
        GroupDuty::Egress { services } => {
            let pings = (group.replicas.len() * 3).to_string();
            // Without Services too: a proxy takes a missing file for one that says what it said before.
            Some(BTreeMap::from([
                (PINGS.to_owned(), bytes(pings)),
                (EGRESS_SERVICES.to_owned(), bytes(services.clone())),
            ]))
        }
    };
    ConfigMap {
        metadata: group.metadata(&config_map_name(&group.parent.name, &group.duty)),
        binary_data: data,
        ..ConfigMap::default()
    }
}

fn state(group: &Group, ordinal: usize) -> Secret {
    Secret {
        metadata: typed(
            group.metadata(&secret_name(&group.parent.name, ordinal)),
            label::SECRET_STATE,
        ),
        ..Secret::default()
    }
}

fn config(group: &Group, (ordinal, replica): (usize, &Replica)) -> Secret {
    let name = config_name(&group.parent.name, ordinal);
    let mut metadata = typed(group.metadata(&name), label::SECRET_CONFIG);
    metadata.resource_version.clone_from(&replica.seen);
    let file = config::file(group, replica);
    Secret {
        metadata,
        data: Some(BTreeMap::from([(CONFIG.to_owned(), file)])),
        ..Secret::default()
    }
}

fn typed(mut metadata: ObjectMeta, kind: &str) -> ObjectMeta {
    metadata.labels.get_or_insert_default().insert(label::SECRET_TYPE.into(), kind.to_owned());
    metadata
}

/// Nobody's: accounts outlive the ProxyGroups that use them.
fn accounts(namespace: &str) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(ACME_ACCOUNTS.into()),
            namespace: Some(namespace.to_owned()),
            labels: Some(label::labels([(label::MANAGED, "true")])),
            finalizers: Some(vec![label::ACME_FINALIZER.into()]),
            ..ObjectMeta::default()
        },
        ..Secret::default()
    }
}
