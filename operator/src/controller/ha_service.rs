//! Services on ingress ProxyGroups: packets to the addresses of a Tailscale Service, led to a Service's by every replica that
//! has the rules for it.

mod installed;
mod status;

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::Service;
use kube::{
    ResourceExt as _,
    runtime::{
        controller::Action,
        reflector::{ObjectRef, Store},
    },
};
use serde_json::json;

use self::status::Outcome;
use super::{
    service::api,
    tailscale_service::{
        self, Group, OnGroup, Owned, Record, Refusal, Wanted, mark, offer, record, rival,
        set_entry, sweep, withdraw,
    },
};
use crate::{
    annotation::{self, GroupService, Violations},
    build::ingress_config::{File, Mapping},
    context::{Context, Trigger},
    error::Error,
    label::{self, Parent, ParentKind},
};

/// What a Tailscale Service serves that leads to a cluster IP: the devices know best.
const ANY_PORT: &str = "do-not-validate";
/// How soon it is looked again whether a Tailscale Service is somebody else's: nobody tells us.
const LOOK_AGAIN: Duration = Duration::from_mins(5);

impl OnGroup for Service {
    const FINALIZER: &str = label::SERVICE_GROUP_FINALIZER;
    const FILE: File = File::Ingress;
}

/// Those on ProxyGroups that something else concerns.
pub(super) fn touched(
    context: &Context,
    store: &Store<Service>,
    trigger: &Trigger,
) -> Vec<ObjectRef<Service>> {
    tailscale_service::touched(context, store, trigger, tailscale_service::of_service)
}

/// Undoes what was made, if anything was.
pub(super) async fn end(
    service: &Service,
    context: &Context,
    parent: &Parent,
) -> Result<(), Error> {
    context.waiting.set(ParentKind::Service.label(), &parent.namespace, &parent.name, false);
    let kept = service.finalizers().iter().any(|own| own == Service::FINALIZER);
    // Upstream's operator records nothing.
    let asked = || {
        let options = context.settings.service_options(&context.cluster_domain);
        let asks = annotation::group_service(service, &options).ok()??.asks;
        Some(Record::of(context, &asks))
    };
    let record = record(service).or_else(|| kept.then(asked).flatten());
    if let Some(record) = &record {
        withdraw(context, service, parent, record, None).await?;
    }
    if kept || record.is_some() {
        mark(&api(context, service), service, Service::FINALIZER, None).await?;
    }
    Ok(())
}

/// Has it served, and tells how it is.
pub(super) async fn reconcile(
    service: &Service,
    context: &Context,
    parent: &Parent,
    request: Result<GroupService, Violations>,
) -> Result<Action, Error> {
    let outcome = match request {
        Ok(request) => provision(service, context, parent, &request).await,
        Err(violations) => Ok((Outcome::invalid(&violations), None)),
    };
    match outcome {
        Ok((outcome, pause)) => {
            status::tell(service, context, &outcome).await?;
            Ok(pause.map_or_else(Action::await_change, Action::requeue))
        }
        Err(error) => {
            if !error.is_conflict() {
                status::tell(service, context, &Outcome::Failed(error.to_string())).await?;
            }
            Err(error)
        }
    }
}

async fn provision(
    service: &Service,
    context: &Context,
    parent: &Parent,
    request: &GroupService,
) -> Result<(Outcome, Option<Duration>), Error> {
    let asks = &request.asks;
    let group = match Group::find(context, &asks.group) {
        Ok(group) => group,
        Err(refusal @ (Refusal::Missing(_) | Refusal::Ending(_))) => {
            return Ok((Outcome::NoGroup(refusal.to_string()), None));
        }
        Err(refusal @ Refusal::OtherType(..)) => return Ok((Outcome::invalid(&refusal), None)),
        Err(refusal @ Refusal::NotReady(_)) => {
            return Ok((Outcome::Waiting(refusal.to_string()), None));
        }
    };
    let own = tailscale_service::of_service(context, service);
    if let Some(rival) = own.and_then(|own| rival(context, &own)) {
        end(service, context, parent).await?;
        context.waiting.set(ParentKind::Service.label(), &parent.namespace, &parent.name, true);
        let why = format!(
            "the name `{}` is that of {} already: choose another one in annotation `{}`",
            asks.service.label(),
            rival.shown(),
            label::HOSTNAME
        );
        return Ok((Outcome::Invalid(why), None));
    }
    context.waiting.set(ParentKind::Service.label(), &parent.namespace, &parent.name, false);

    let wanted = Wanted {
        service: asks.service.clone(),
        ports: vec![ANY_PORT.to_owned()],
        tags: asks.tags.clone().unwrap_or_else(|| context.settings.proxy_tags.clone()),
    };
    let owned = Owned::shared(context, &group.tailnet).await?;
    let held = match owned.look(&wanted).await? {
        Ok(look) => {
            let is = Record::of(context, asks);
            if let Some(was) = record(service).filter(|was| *was != is) {
                withdraw(context, service, parent, &was, Some(&is)).await?;
            }
            mark(&api(context, service), service, Service::FINALIZER, Some(&is)).await?;
            owned.hold(&wanted, look).await?
        }
        Err(refused) => Err(refused),
    };
    let there = match held {
        Ok(there) => there,
        Err(refused) => return Ok((Outcome::NotOurs(refused.to_string()), Some(LOOK_AGAIN))),
    };

    let mapping = Mapping::between(&there.addresses, &request.addresses);
    let leads = mapping != Mapping::default();
    let entry = leads.then(|| json!(mapping));
    set_entry(context, &group.name, File::Ingress, &asks.service, entry.as_ref()).await?;
    let is_ready = has_endpoints(context, parent);
    let ready = group.states.iter().filter(|state| {
        leads && is_ready && installed::is_installed(context, state, &asks.service, &mapping)
    });
    let on: BTreeSet<_> = ready.map(|state| format!("{}-config", state.name_any())).collect();
    offer(context, &group.name, &asks.service, &on).await?;
    sweep::<Service>(context, &group.name, &group.tailnet).await?;

    let outcome = if leads {
        let domain = group.domain();
        Outcome::Served {
            name: domain.map(|domain| format!("{}.{domain}", asks.service.label())),
            offering: group.offering(&asks.service),
            replicas: group.states.len(),
            is_ready,
            addresses: installed::addresses(&mapping),
        }
    } else {
        Outcome::Invalid(format!(
            "the Tailscale Service {} and the Service have no address of the same family: field `spec.ipFamilies`",
            asks.service
        ))
    };
    Ok((outcome, context.known.pause(&group.tailnet, &asks.service)))
}

/// Whether somebody answers.
fn has_endpoints(context: &Context, parent: &Parent) -> bool {
    let found = context.cache.endpoints.state_filter(|slice| {
        slice.metadata.namespace.as_ref() == Some(&parent.namespace)
            && slice.labels().get(crate::context::SERVICE_NAME) == Some(&parent.name)
            && !slice.endpoints.is_empty()
    });
    !found.is_empty()
}
