//! Which names of the tailnet lead to which addresses in the cluster.
//!
//! All records are made anew from what the cache has whenever something of it changes, so nothing has to be remembered and
//! nothing has to be cleaned up: no finalizer, no annotation for a record's name. Upstream's operator leaves a finalizer on
//! Services, which nobody else would take off ([`release`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Api, ResourceExt as _, runtime::reflector::ObjectRef};

use super::standalone::https_name;
use crate::{
    apply::set_finalizer,
    build::secret_name,
    context::{Cache, Context},
    error::Error,
    label::{self, ParentKind},
    nameserver::File,
};

/// Whether what is made for this kind of parent may have a record.
pub(super) fn concerns(kind: &str) -> bool {
    [ParentKind::Service, ParentKind::Ingress].iter().any(|one| one.label() == kind)
}

/// All records.
pub(super) fn records(cache: &Cache) -> File {
    let mut all: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
    let mut slices: BTreeMap<String, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in cache.slices.state() {
        if let Some(service) = slice.labels().get(label::SLICE_SERVICE) {
            slices.entry(service.clone()).or_default().push(slice);
        }
    }
    for service in cache.services.state() {
        if service.metadata.deletion_timestamp.is_some() {
            continue;
        }
        if let Some((name, addresses)) = record(cache, &service, &slices) {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            all.entry(name).or_default().extend(addresses);
        }
    }
    all.into()
}

/// The record of a Service that leads to a proxy, or to those of a group.
fn record(
    cache: &Cache,
    service: &Service,
    slices: &BTreeMap<String, Vec<Arc<EndpointSlice>>>,
) -> Option<(String, Vec<IpAddr>)> {
    let kind = service.labels().get(label::PARENT_KIND)?;
    let spec = service.spec.as_ref()?;
    if service.labels().contains_key(label::PROXY_GROUP) {
        // Whoever makes it puts the name there.
        let name = service.annotations().get(label::MAGIC_DNS_NAME)?.clone();
        let addresses = spec.cluster_ips.iter().flatten();
        return Some((name, addresses.filter_map(|address| address.parse().ok()).collect()));
    }
    let headless = spec.cluster_ip.as_deref() == Some("None");
    if !headless || !concerns(kind) {
        return None;
    }
    let name = if kind == ParentKind::Ingress.label() {
        serves(cache, service)?
    } else {
        leads_to(cache, service)?
    };
    let own = slices.get(&service.name_any());
    Some((name, own.into_iter().flatten().flat_map(|slice| ready(slice)).collect()))
}

/// The name that an Ingress is served under, from the state of its proxy.
fn serves(cache: &Cache, headless: &Service) -> Option<String> {
    let secret = secret_name(&headless.name_any(), 0);
    let secret = cache.secrets.get(&ObjectRef::new(&secret).within(&headless.namespace()?))?;
    https_name(&secret)?.ok()
}

/// The name that an egress proxy leads to, as its pods were told.
fn leads_to(cache: &Cache, headless: &Service) -> Option<String> {
    let reference = ObjectRef::new(&headless.name_any()).within(&headless.namespace()?);
    let set = cache.stateful_sets.get(&reference)?;
    let template = set.spec.as_ref()?.template.metadata.as_ref()?;
    template.annotations.as_ref()?.get(label::LAST_TAILNET_FQDN).cloned()
}

/// The addresses of pods that are ready, without zones.
fn ready(slice: &EndpointSlice) -> impl Iterator<Item = IpAddr> {
    let endpoints = slice.endpoints.iter().filter(|endpoint| {
        // Not told is ready, as the API has it.
        endpoint.conditions.as_ref().is_none_or(|told| told.ready != Some(false))
    });
    endpoints.flat_map(|endpoint| &endpoint.addresses).filter_map(|address| {
        let address = address.split_once('%').map_or(address.as_str(), |(address, _)| address);
        address.parse().ok()
    })
}

/// Takes upstream's finalizer off a Service.
pub(super) async fn release(context: &Context, service: &Service) -> Result<(), Error> {
    let namespace = &context.settings.namespace;
    let api: Api<Service> = Api::namespaced(context.client.clone(), namespace);
    set_finalizer(&api, service, label::DNS_RECORDS_FINALIZER, false).await
}
