//! What a change of a watched object is told as.

use k8s_openapi::api::{
    core::v1::{Pod, Secret, Service},
    discovery::v1::EndpointSlice,
    networking::v1::Ingress,
};
use kube::{Resource, ResourceExt as _};

use super::SERVICE_NAME;
use crate::{
    build::{admission::Way, group::ACME_ACCOUNTS},
    crd::ProxyGroupPolicy,
    label,
};

/// What changed, so that its parents are reconciled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Trigger {
    /// Something that was made for this.
    Child {
        /// The value of [`label::PARENT_KIND`].
        kind: String,
        /// The parent's namespace; to be ignored for what has none.
        namespace: String,
        /// The parent's name.
        name: String,
    },
    /// A ProxyClass.
    Class(String),
    /// A ProxyGroup.
    Group(String),
    /// A pod of a ProxyGroup.
    Pod(String),
    /// Something that was made for a Service on a ProxyGroup.
    OnGroup(String),
    /// Pods behind a Service, or a DNSConfig: names of the tailnet may lead elsewhere.
    Names,
    /// What says which ProxyGroups the objects of this namespace may name.
    Policies(String),
    /// A node.
    Node,
    /// The Secret with shared ACME accounts.
    Accounts,
    /// A Service of a user's.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// An Ingress of a user's.
    Ingress {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Endpoints of a Service.
    Endpoints {
        /// The Service's namespace.
        namespace: String,
        /// The Service's name.
        service: String,
    },
}

/// Spreads changes of one kind.
pub(super) type Tell<K> = fn(&K) -> Vec<Trigger>;

pub(super) fn child<K: Resource<DynamicType = ()>>(object: &K) -> Vec<Trigger> {
    let label = |key: &str| object.labels().get(key).cloned();
    let parent = label(label::PARENT_KIND).zip(label(label::PARENT_NAME));
    let parent = parent.map(|(kind, name)| {
        let namespace = label(label::PARENT_NAMESPACE).unwrap_or_default();
        Trigger::Child { kind, namespace, name }
    });
    parent.into_iter().chain(label(label::PROXY_GROUP).map(Trigger::OnGroup)).collect()
}

pub(super) fn secret(secret: &Secret) -> Vec<Trigger> {
    if secret.metadata.name.as_deref() == Some(ACME_ACCOUNTS) {
        return vec![Trigger::Accounts];
    }
    child(secret)
}

pub(super) fn slice(slice: &EndpointSlice) -> Vec<Trigger> {
    // Those that Kubernetes makes for Services of ours are not made for their parents.
    let is_ours = slice.labels().contains_key(label::SERVICE_TYPE);
    let parents = if is_ours { child(slice) } else { Vec::new() };
    parents.into_iter().chain([Trigger::Names]).collect()
}

pub(super) fn policy(policy: &ProxyGroupPolicy) -> Vec<Trigger> {
    policy.metadata.namespace.clone().map(Trigger::Policies).into_iter().collect()
}

/// The namespace that a policy of the API server is about, as its name has it.
pub(super) fn restricted<K: Resource<DynamicType = ()>>(policy: &K) -> Vec<Trigger> {
    let name = policy.name_any();
    let mut namespaces = Way::ALL.into_iter().filter_map(|way| name.strip_prefix(way.prefix()));
    namespaces.next().map(|name| Trigger::Policies(name.to_owned())).into_iter().collect()
}

pub(super) fn pod(pod: &Pod) -> Vec<Trigger> {
    let group = pod.labels().get(label::PARENT_NAME).cloned();
    group.map(Trigger::Pod).into_iter().collect()
}

pub(super) fn service(service: &Service) -> Vec<Trigger> {
    let namespace = service.metadata.namespace.clone().unwrap_or_default();
    vec![Trigger::Service { namespace, name: service.name_any() }]
}

pub(super) fn ingress(ingress: &Ingress) -> Vec<Trigger> {
    let namespace = ingress.metadata.namespace.clone().unwrap_or_default();
    vec![Trigger::Ingress { namespace, name: ingress.name_any() }]
}

pub(super) fn endpoints(slice: &EndpointSlice) -> Vec<Trigger> {
    let service = slice.labels().get(SERVICE_NAME).cloned();
    let namespace = slice.metadata.namespace.clone().unwrap_or_default();
    service.map(|service| Trigger::Endpoints { namespace, service }).into_iter().collect()
}
