//! Which objects on ProxyGroups a change of something else concerns.

use std::sync::Arc;

use kube::runtime::reflector::{ObjectRef, Store};

use super::{Claimant, OnGroup, claim, record};
use crate::{
    annotation::proxy_group,
    context::{Context, Trigger},
    crd::proxy_group::ProxyGroupType,
    label::ParentKind,
};

/// `claim` is what an object of the kind wants.
pub(in crate::controller) fn touched<K: OnGroup>(
    context: &Context,
    store: &Store<K>,
    trigger: &Trigger,
    claim: fn(&Context, &K) -> Option<Claimant>,
) -> Vec<ObjectRef<K>> {
    let refs = |found: Vec<Arc<K>>| {
        found.iter().map(|object| ObjectRef::from(object.as_ref())).collect::<Vec<_>>()
    };
    match trigger {
        Trigger::Group(group) => refs(on_group(store, group)),
        Trigger::Child { kind, name: group, .. }
            if kind == ParentKind::ProxyGroup.label() && is_ingress(context, group) =>
        {
            refs(on_group(store, group))
        }
        Trigger::Pod(group) if is_ingress(context, group) => refs(on_group(store, group)),
        Trigger::Endpoints { namespace, service } if K::KIND == ParentKind::Service => {
            let object = ObjectRef::new(service).within(namespace);
            let on_group = |object: &Arc<K>| proxy_group(object.as_ref()).is_some();
            store.get(&object).filter(on_group).map(|_| vec![object]).unwrap_or_default()
        }
        Trigger::Ingress { namespace, name } => {
            let object = ObjectRef::new(name).within(namespace);
            let changed = context.cache.ingresses.get(&object);
            let changed = changed.and_then(|ingress| claim::of_ingress(context, &ingress));
            rivals(context, store, changed, claim)
        }
        Trigger::Service { namespace, name } => {
            let object = ObjectRef::new(name).within(namespace);
            let changed = context.cache.backends.get(&object);
            let changed = changed.and_then(|service| claim::of_service(context, &service));
            rivals(context, store, changed, claim)
        }
        _ => Vec::new(),
    }
}

fn is_ingress(context: &Context, group: &str) -> bool {
    let found = context.cache.groups.get(&ObjectRef::new(group));
    found.is_none_or(|group| group.spec.type_ == ProxyGroupType::Ingress)
}

/// Those that are on a ProxyGroup, or were.
fn on_group<K: OnGroup>(store: &Store<K>, group: &str) -> Vec<Arc<K>> {
    store.state_filter(|object| {
        proxy_group(object) == Some(group)
            || record(object).is_some_and(|record| record.group == group)
    })
}

/// Those that wait for a name, and those that want what somebody wants who has changed.
fn rivals<K: OnGroup>(
    context: &Context,
    store: &Store<K>,
    changed: Option<Claimant>,
    claim: fn(&Context, &K) -> Option<Claimant>,
) -> Vec<ObjectRef<K>> {
    let waiting = context.waiting.of(K::KIND.label()).into_iter();
    let mut all: Vec<_> =
        waiting.map(|(namespace, name)| ObjectRef::new(&name).within(&namespace)).collect();
    if let Some(changed) = changed {
        let wants = |object: &K| {
            proxy_group(object).is_some()
                && claim(context, object).is_some_and(|other| other.contests(&changed))
        };
        let found = store.state_filter(wants);
        all.extend(found.iter().map(|object| ObjectRef::from(object.as_ref())));
    }
    all
}
