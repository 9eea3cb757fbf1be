//! From a valid request to what proxies are to do and the Service by which clients reach them.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};

use super::{
    children,
    group::on_group,
    group_of,
    status::{Outcome, Readiness, is_told},
};
use crate::{
    annotation::EgressRequest,
    apply::set_finalizer,
    build::{
        group::egress::{
            EgressChild, Family, PortKey, config_hash, entry, key, pod_ports, slice_name,
        },
        secret_name,
    },
    context::{Assigned, Context},
    controller::{
        dns_records::release,
        proxy_group::replicas,
        service::{api, lead_to},
        standalone::delete,
    },
    crd::{ProxyGroup, proxy_group::ProxyGroupType},
    error::Error,
    label::{self, Parent},
    name,
    status::ConditionType,
};

/// Has it done. What cannot be done now is an outcome, what failed is an error.
pub(super) async fn provision(
    service: &Service,
    context: &Context,
    parent: &Parent,
    request: &EgressRequest,
) -> Result<Outcome, Error> {
    let found = context.cache.groups.get(&ObjectRef::new(&request.group));
    let Some(group) = found.filter(|group| group.metadata.deletion_timestamp.is_none()) else {
        return Ok(Outcome::NoGroup(request.group.clone()));
    };
    if group.spec.type_ != ProxyGroupType::Egress {
        return Ok(Outcome::Invalid(format!(
            "annotation `{}`: ProxyGroup `{}` is of type {}, name one of type egress",
            label::PROXY_GROUP,
            request.group,
            group.spec.type_.label()
        )));
    }
    set_finalizer(&api(context, service), service, label::FINALIZER, true).await?;
    let made = children(context, parent);
    let own = made.iter().find(|made| group_of(made) == Some(request.group.as_str()));
    let child = EgressChild {
        parent: parent.clone(),
        group: request.group.clone(),
        name: own.map_or_else(
            || name::base(&parent.name, &format!("{}/{}", parent.uid, request.group)),
            |own| own.name_any(),
        ),
        namespace: context.settings.namespace.clone(),
    };
    let wanted: Vec<_> = request.ports.iter().map(key).collect();
    let Some(assigned) = assign(context, &child, own, &wanted) else {
        return Ok(Outcome::NoPorts(request.group.clone()));
    };
    let domain = &context.cluster_domain;
    let wanted = child.entry(assigned.key, request, &assigned.ports, domain);
    let desired = child.service(request, &assigned.ports, &wanted);
    let live = context.applier.apply(&desired, own.map(AsRef::as_ref)).await?;

    let hash = config_hash(&request.group, &wanted);
    let slices = slices(context, &live, &hash);
    if slices.is_some() {
        lead_to(service, context, &child.name).await?;
        // It was on another ProxyGroup; clients are led elsewhere by now.
        for stray in made.iter().filter(|made| made.name_any() != child.name) {
            for family in Family::of(stray) {
                delete::<EndpointSlice>(context, &slice_name(&stray.name_any(), family)).await?;
            }
            release(context, stray).await?;
            delete::<Service>(context, &stray.name_any()).await?;
            context.egress_ports.forget(&stray.name_any());
        }
    }
    if slices.is_none() && is_under_way(service, context, &group) {
        return Ok(Outcome::UnderWay);
    }
    Ok(Outcome::Made {
        group: request.group.clone(),
        hash,
        readiness: slices.map(|slices| readiness(context, &group, &slices)),
    })
}

/// Whether nothing was told yet, and something will be in a moment: the proxies are there and are being told.
fn is_under_way(service: &Service, context: &Context, group: &ProxyGroup) -> bool {
    let name = ObjectRef::new(&group.name_any()).within(&context.settings.namespace);
    let conditions = group.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let fails = conditions.iter().any(|each| {
        each.type_ == ConditionType::ProxyGroupReady.label()
            && !matches!(each.reason.as_str(), "ProxyGroupReady" | "ProxyGroupCreating")
    });
    !is_told(service) && !fails && context.cache.stateful_sets.get(&name).is_some()
}

/// The name that proxies know it by and the pods' ports: those that are there, if that is all of them.
fn assign(
    context: &Context,
    child: &EgressChild,
    own: Option<&Arc<Service>>,
    wanted: &[PortKey],
) -> Option<Assigned> {
    let assigned = |service: &Service| {
        let key = entry(service).map(|entry| entry.key);
        // As upstream's operator calls it.
        let label = |key: &str| service.labels().get(key).cloned().unwrap_or_default();
        let usual = || format!("{}-{}", label(label::PARENT_NAMESPACE), label(label::PARENT_NAME));
        Assigned { key: key.unwrap_or_else(usual), ports: pod_ports(service) }
    };
    if let Some(own) = own.map(|own| assigned(own))
        && own.ports.len() == wanted.len()
        && wanted.iter().all(|port| own.ports.contains_key(port))
    {
        return Some(own);
    }
    let there: BTreeMap<_, _> = on_group(context, &child.group)
        .iter()
        .map(|service| (service.name_any(), assigned(service)))
        .collect();
    let Parent { namespace, name, uid, .. } = &child.parent;
    let usual = format!("{namespace}-{name}");
    let ports = &context.egress_ports;
    ports.assign((&child.group, uid), &child.name, (&usual, wanted), &there).ok()
}

/// The EndpointSlices, once they are those of this configuration: it has been written for the proxies then.
fn slices(context: &Context, child: &Service, hash: &str) -> Option<Vec<Arc<EndpointSlice>>> {
    let slice = |family: Family| {
        let name = slice_name(&child.name_any(), family);
        let slice =
            context.cache.slices.get(&ObjectRef::new(&name).within(&context.settings.namespace))?;
        let written = slice.annotations().get(label::LAST_EGRESS).is_some_and(|own| own == hash);
        written.then_some(slice)
    };
    let all: Option<Vec<_>> = Family::of(child).into_iter().map(slice).collect();
    all.filter(|all| !all.is_empty())
}

/// How many replicas clients of every family are led to.
fn readiness(context: &Context, group: &ProxyGroup, slices: &[Arc<EndpointSlice>]) -> Readiness {
    let wanted = replicas(group);
    let mut ready = 0;
    for ordinal in 0..wanted {
        let name = secret_name(&group.name_any(), ordinal);
        let pod = ObjectRef::new(&name).within(&context.settings.namespace);
        let Some(pod) = context.cache.pods.get(&pod) else {
            return Readiness::PodMissing(name);
        };
        let is_served = |slice: &Arc<EndpointSlice>| {
            slice.endpoints.iter().any(|endpoint| endpoint.hostname == pod.uid())
        };
        ready += usize::from(slices.iter().all(is_served));
    }
    Readiness::Counted { ready, wanted }
}
