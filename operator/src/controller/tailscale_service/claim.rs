//! Who of a cluster's objects has a name in a tailnet that several want: who has it already, or else who is older.

use k8s_openapi::{
    api::{core::v1::Service, networking::v1::Ingress},
    jiff::Timestamp,
};
use kube::{Resource, ResourceExt as _, runtime::reflector::ObjectRef};

use super::record;
use crate::{
    annotation::{self, GroupRequest},
    context::Context,
    crd::proxy_group::ProxyGroupType,
    label::{self, ParentKind},
    tailnet_api::ServiceName,
};

/// An object that wants a Tailscale Service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::controller) struct Claimant {
    pub(in crate::controller) kind: ParentKind,
    pub(in crate::controller) namespace: String,
    pub(in crate::controller) name: String,
    /// The ProxyGroup that is to offer it.
    pub(in crate::controller) group: String,
    /// The Tailnet of that.
    pub(in crate::controller) tailnet: String,
    /// Its name.
    pub(in crate::controller) service: ServiceName,
    /// Whether it was made for this object.
    has_it: bool,
    since: Option<Timestamp>,
}

impl Claimant {
    /// `None` if what is asked for cannot be had: its ProxyGroup is no ingress ProxyGroup.
    pub(in crate::controller) fn new(
        context: &Context,
        kind: ParentKind,
        object: &impl Resource,
        asks: GroupRequest,
    ) -> Option<Self> {
        let group = context.cache.groups.get(&ObjectRef::new(&asks.group))?;
        if group.spec.type_ != ProxyGroupType::Ingress {
            return None;
        }
        let tailnet = group.spec.tailnet.clone().unwrap_or_default();
        let has_it = record(object)
            .is_some_and(|record| record.service == asks.service && record.tailnet == tailnet);
        Some(Self {
            kind,
            namespace: object.meta().namespace.clone().unwrap_or_default(),
            name: object.name_any(),
            group: asks.group,
            tailnet,
            service: asks.service,
            has_it,
            since: object.meta().creation_timestamp.as_ref().map(|time| time.0),
        })
    }

    fn is(&self, other: &Self) -> bool {
        (self.kind, &self.namespace, &self.name) == (other.kind, &other.namespace, &other.name)
    }

    /// Whether both want the same, and are not the same.
    pub(super) fn contests(&self, other: &Self) -> bool {
        !self.is(other) && self.wants_the_same(&other.tailnet, &other.service)
    }

    fn wants_the_same(&self, tailnet: &str, service: &ServiceName) -> bool {
        self.service == *service && self.tailnet == tailnet
    }

    /// The least is first.
    fn rank(&self) -> (bool, Option<Timestamp>, (&'static str, String, String)) {
        let place = (self.kind.label(), self.namespace.clone(), self.name.clone());
        (!self.has_it, self.since, place)
    }

    /// As users call it.
    pub(in crate::controller) fn shown(&self) -> String {
        let kind = match self.kind {
            ParentKind::Ingress => "Ingress",
            _ => "Service",
        };
        format!("{kind} {}/{}", self.namespace, self.name)
    }
}

/// What an Ingress wants, whatever else is wrong with it.
pub(in crate::controller) fn of_ingress(context: &Context, ingress: &Ingress) -> Option<Claimant> {
    let class = &context.settings.ingress_class_name;
    let asked = annotation::group_ingress(ingress, class).ok()??;
    Claimant::new(context, ParentKind::Ingress, ingress, asked.asks)
}

/// The same of a Service.
pub(in crate::controller) fn of_service(context: &Context, service: &Service) -> Option<Claimant> {
    // Nearly all Services ask for nothing.
    annotation::proxy_group(service)?;
    let options = context.settings.service_options(&context.cluster_domain);
    let asked = annotation::group_service(service, &options).ok()??;
    Claimant::new(context, ParentKind::Service, service, asked.asks)
}

/// All that are not being deleted.
pub(super) fn all(context: &Context) -> Vec<Claimant> {
    let ingresses = context
        .cache
        .ingresses
        .state_filter(|ingress| annotation::proxy_group(ingress).is_some() && !is_ending(ingress));
    let services = context
        .cache
        .backends
        .state_filter(|service| annotation::proxy_group(service).is_some() && !is_ending(service));
    let ingresses = ingresses.iter().filter_map(|ingress| of_ingress(context, ingress));
    ingresses.chain(services.iter().filter_map(|service| of_service(context, service))).collect()
}

fn is_ending(object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// Who has what this one wants.
pub(in crate::controller) fn rival(context: &Context, own: &Claimant) -> Option<Claimant> {
    let others = named(context, &own.service).into_iter();
    let others = others.filter(|other| other.contests(own) && other.rank() < own.rank());
    others.min_by_key(Claimant::rank)
}

/// Who of the others will have a Tailscale Service when this object leaves it.
pub(super) fn heir(
    context: &Context,
    (kind, namespace, name): (ParentKind, &str, &str),
    tailnet: &str,
    service: &ServiceName,
) -> Option<Claimant> {
    let others = named(context, service).into_iter().filter(|other| {
        other.wants_the_same(tailnet, service)
            && (other.kind, other.namespace.as_str(), other.name.as_str())
                != (kind, namespace, name)
    });
    others.min_by_key(Claimant::rank)
}

/// All that want a Tailscale Service of that name in some tailnet, and are not being deleted.
fn named(context: &Context, service: &ServiceName) -> Vec<Claimant> {
    let is_named = |name: Option<&str>| name.is_some_and(|name| is_label(name, service));
    let ingresses = context.cache.ingresses.state_filter(|ingress| {
        annotation::proxy_group(ingress).is_some()
            && !is_ending(ingress)
            && match annotation::first_host(ingress) {
                Some(host) => is_named(host.split('.').next()),
                // Its name is made of others.
                None => true,
            }
    });
    let services = context.cache.backends.state_filter(|object| {
        annotation::proxy_group(object).is_some()
            && !is_ending(object)
            && match object.annotations().get(label::HOSTNAME) {
                Some(name) => is_named(Some(name)),
                None => true,
            }
    });
    let ingresses = ingresses.iter().filter_map(|ingress| of_ingress(context, ingress));
    let all = ingresses.chain(services.iter().filter_map(|object| of_service(context, object)));
    all.filter(|claimant| claimant.service == *service).collect()
}

fn is_label(name: &str, service: &ServiceName) -> bool {
    name.eq_ignore_ascii_case(service.label())
}
