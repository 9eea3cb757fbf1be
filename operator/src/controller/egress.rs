//! Services that a ProxyGroup leads to a target in the tailnet.
//!
//! Two reconciliations share the work and meet in objects only. Each Service's makes a Service with an address and a port of
//! the pods for each of its ports, and writes on it what the proxies are to do. The ProxyGroup's gathers these into one
//! ConfigMap, however many changed, and leads clients to the pods that say they do it. By the EndpointSlices that appear the
//! first learns that the second is done.

mod gate;
mod group;
mod provision;
mod status;

use std::sync::Arc;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    ResourceExt as _,
    runtime::{
        controller::Action,
        reflector::{ObjectRef, Store},
    },
};

pub(super) use self::group::{gather, settle};
use self::status::Outcome;
use super::{dns_records::release, standalone::delete_all};
use crate::{
    annotation,
    context::{Context, Trigger, labelled},
    error::Error,
    label::{self, Labels, Parent},
};

/// One reconciliation of a Service that asks for this.
pub(super) async fn step(
    service: &Service,
    context: &Context,
    parent: &Parent,
) -> Result<Action, Error> {
    let outcome = match annotation::egress(service) {
        Ok(None) => return Ok(Action::await_change()),
        Err(violations) => Ok(Outcome::Invalid(violations.to_string())),
        Ok(Some(request)) => provision::provision(service, context, parent, &request).await,
    };
    match outcome {
        Ok(outcome) => status::tell(service, context, &outcome).await?,
        Err(error) => {
            if !error.is_conflict() {
                status::tell(service, context, &Outcome::Failed(error.to_string())).await?;
            }
            return Err(error);
        }
    }
    Ok(Action::await_change())
}

/// Takes away what was made for a Service, if anything was. Its ProxyGroup forgets it when it sees that.
pub(super) async fn end(context: &Context, parent: &Parent) -> Result<(), Error> {
    let made = children(context, parent);
    let decided = context.egress_ports.end(&parent.uid);
    if made.is_empty() && !decided {
        return Ok(());
    }
    for service in &made {
        release(context, service).await?;
    }
    let all = label::selector(&labels(parent));
    delete_all::<EndpointSlice>(context, &all).await?;
    delete_all::<Service>(context, &all).await
}

/// What was made for a Service, on whichever ProxyGroup.
fn children(context: &Context, parent: &Parent) -> Vec<Arc<Service>> {
    labelled(&context.cache.services, &labels(parent))
}

fn labels(parent: &Parent) -> Labels {
    let mut all = parent.child_labels();
    all.insert(label::SERVICE_TYPE.into(), label::EGRESS.into());
    all
}

/// The Services that a change of a ProxyGroup or of its pods concerns.
pub(super) fn touched(store: &Store<Service>, trigger: &Trigger) -> Vec<ObjectRef<Service>> {
    let (Trigger::Group(name) | Trigger::Pod(name)) = trigger else { return Vec::new() };
    let found =
        store.state_filter(|service| annotation::egress_group(service) == Some(name.as_str()));
    found.iter().map(|service| ObjectRef::from(service.as_ref())).collect()
}

/// The ProxyGroup that something was made on.
fn group_of(service: &Service) -> Option<&str> {
    service.labels().get(label::PROXY_GROUP).map(String::as_str)
}
