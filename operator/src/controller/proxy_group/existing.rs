//! What is there of a ProxyGroup.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
};
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::reflector::{Lookup, ObjectRef, Store},
};
use serde::de::DeserializeOwned;

use crate::{
    build::{
        group::{ACME_ACCOUNTS, GroupDuty, config_map_name},
        metrics,
    },
    context::{Context, labelled},
    error::{Error, ResultExt as _},
    label::{self, Labels, Parent},
};

/// What is there of a ProxyGroup, as far as the cache knows. All but the metrics has a name that follows from the group's.
pub(super) struct Existing {
    pub(super) stateful_set: Option<Arc<StatefulSet>>,
    pub(super) account: Option<Arc<ServiceAccount>>,
    pub(super) role: Option<Arc<Role>>,
    pub(super) binding: Option<Arc<RoleBinding>>,
    pub(super) config_map: Option<Arc<ConfigMap>>,
    /// State and configuration.
    pub(super) secrets: BTreeMap<String, Arc<Secret>>,
    /// Node ports.
    pub(super) services: BTreeMap<String, Arc<Service>>,
    pub(super) metrics: Vec<Arc<Service>>,
    /// Shared ACME accounts.
    pub(super) accounts: Option<Arc<Secret>>,
}

impl Existing {
    pub(super) fn find(context: &Context, parent: &Parent, duty: &GroupDuty) -> Self {
        let (cache, namespace) = (&context.cache, &context.settings.namespace);
        let labels = parent.child_labels();
        let name = &parent.name;
        Self {
            stateful_set: get(&cache.stateful_sets, namespace, name),
            account: get(&cache.accounts, namespace, name),
            role: get(&cache.roles, namespace, name),
            binding: get(&cache.bindings, namespace, name),
            config_map: get(&cache.config_maps, namespace, &config_map_name(name, duty)),
            secrets: by_name(&cache.secrets, &labels),
            services: by_name(&cache.services, &labels),
            metrics: metrics::selector(parent)
                .map(|labels| labelled(&cache.services, &labels))
                .unwrap_or_default(),
            accounts: get(&cache.secrets, namespace, ACME_ACCOUNTS),
        }
    }
}

fn get<K>(store: &Store<K>, namespace: &str, name: &str) -> Option<Arc<K>>
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + 'static,
{
    store.get(&ObjectRef::new(name).within(namespace))
}

fn by_name<K>(store: &Store<K>, labels: &Labels) -> BTreeMap<String, Arc<K>>
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + 'static,
{
    labelled(store, labels).into_iter().map(|object| (object.name_any(), object)).collect()
}

/// The pods of a ProxyGroup, by name.
pub(in crate::controller) fn pods(
    context: &Context,
    parent: &Parent,
) -> BTreeMap<String, Arc<Pod>> {
    by_name(&context.cache.pods, &parent.child_labels())
}

/// An object that has a name that the group's would have, and is somebody else's.
pub(super) async fn taken(context: &Context, parent: &Parent) -> Result<Option<String>, Error> {
    Ok(match is_taken::<StatefulSet>(context, parent).await? {
        Some(taken) => Some(taken),
        None => match is_taken::<ServiceAccount>(context, parent).await? {
            Some(taken) => Some(taken),
            None => match is_taken::<Role>(context, parent).await? {
                Some(taken) => Some(taken),
                None => is_taken::<RoleBinding>(context, parent).await?,
            },
        },
    })
}

async fn is_taken<K>(context: &Context, parent: &Parent) -> Result<Option<String>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let (namespace, name) = (&context.settings.namespace, &parent.name);
    let api: Api<K> = Api::namespaced(context.client.clone(), namespace);
    let kind = K::kind(&());
    let what = || format!("read {kind} {namespace}/{name}");
    let found = api.get_metadata_opt(name).await.doing(what)?;
    let is_other = |labels: Option<&Labels>| !label::has(labels, &parent.child_labels());
    let other = found.filter(|found| is_other(found.metadata.labels.as_ref()));
    Ok(other.map(|_| format!("{kind} {namespace}/{name}")))
}
