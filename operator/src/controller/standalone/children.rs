//! What is there of a proxy.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Secret, Service, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};

use crate::{
    build::metrics,
    context::{Cache, labelled},
    label::{self, Parent},
    name,
};

/// What is there of a parent's proxy, as far as the cache knows.
pub(in crate::controller) struct Children {
    /// The name of all that is the proxy's: of what is there, or of what will be.
    pub(super) base: String,
    /// What its pods are selected by.
    pub(super) app: String,
    pub(super) headless: Option<Arc<Service>>,
    pub(super) stateful_set: Option<Arc<StatefulSet>>,
    pub(super) secrets: BTreeMap<String, Arc<Secret>>,
    pub(super) account: Option<Arc<ServiceAccount>>,
    pub(super) role: Option<Arc<Role>>,
    pub(super) binding: Option<Arc<RoleBinding>>,
    pub(super) metrics: Vec<Arc<Service>>,
}

impl Children {
    /// Found by labels: upstream's operator has names generated.
    pub(in crate::controller) fn find(cache: &Cache, namespace: &str, parent: &Parent) -> Self {
        let labels = parent.child_labels();
        let stateful_set = labelled(&cache.stateful_sets, &labels).into_iter().next();
        let services = labelled(&cache.services, &labels);
        let set_name = stateful_set.as_ref().map(|set| set.name_any());
        let mut headless = services.into_iter().filter(|service| is_headless(service));
        let headless = match &set_name {
            Some(name) => headless.find(|service| service.name_any() == *name),
            None => headless.next(),
        };
        let base = set_name
            .or_else(|| headless.as_ref().map(|service| service.name_any()))
            .unwrap_or_else(|| name::base(&parent.name, &parent.uid));
        let selector = stateful_set.as_ref().and_then(|set| {
            set.spec.as_ref()?.selector.match_labels.as_ref()?.get(label::APP).cloned()
        });
        let mut secrets = labelled(&cache.secrets, &labels);
        // Certificates of the same on a ProxyGroup have the labels of these and more.
        secrets.retain(|secret| !secret.labels().contains_key(label::PROXY_GROUP));
        Self {
            // The selector of a StatefulSet cannot be changed; pods go on when their parent was made anew.
            app: selector.unwrap_or_else(|| parent.uid.clone()),
            secrets: secrets.into_iter().map(|secret| (secret.name_any(), secret)).collect(),
            account: cache.accounts.get(&ObjectRef::new(&base).within(namespace)),
            role: cache.roles.get(&ObjectRef::new(&base).within(namespace)),
            binding: cache.bindings.get(&ObjectRef::new(&base).within(namespace)),
            metrics: metrics::selector(parent)
                .map(|labels| labelled(&cache.services, &labels))
                .unwrap_or_default(),
            base,
            headless,
            stateful_set,
        }
    }

    /// The name of all that is the proxy's.
    pub(in crate::controller) fn base(&self) -> &str {
        &self.base
    }

    /// What its pods are selected by.
    pub(in crate::controller) fn app(&self) -> &str {
        &self.app
    }

    /// The Secret of a replica.
    pub(in crate::controller) fn secret(&self, name: &str) -> Option<&Arc<Secret>> {
        self.secrets.get(name)
    }

    /// Whether anything is there.
    pub(in crate::controller) fn any(&self) -> bool {
        self.stateful_set.is_some()
            || self.headless.is_some()
            || !self.secrets.is_empty()
            || self.account.is_some()
    }
}

/// Services of egress ProxyGroups have the labels of these and more, and an address.
fn is_headless(service: &Service) -> bool {
    let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
    address == Some("None") && !service.labels().contains_key(label::PROXY_GROUP)
}
