//! Services: with a proxy of their own, from the tailnet to a Service or from a Service to the tailnet; or on an ingress
//! ProxyGroup.

mod provision;
mod status;

use std::{sync::Arc, time::Duration};

use futures::Future;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, ResourceExt as _,
    runtime::{
        controller::Action,
        reflector::{ObjectRef, Store},
    },
};

pub(super) use self::provision::lead_to;
use self::status::Outcome;
use super::{
    egress, ha_service,
    standalone::{self, Children, Done, Standalone, clean_up},
};
use crate::{
    annotation,
    apply::set_finalizer,
    context::{Context, Trigger},
    error::Error,
    label::{self, Parent, ParentKind},
};

/// Pods tell when they have ended; this is for when that is missed.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// Runs until it is told to stop.
pub(super) async fn run(
    context: Arc<Context>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    standalone::run::<Service>(context, stop).await;
}

impl Standalone for Service {
    const KIND: ParentKind = ParentKind::Service;
    const CONTROLLER: &str = "service";

    /// All on a ProxyGroup are told of each one's changes there, and look at them once.
    const DEBOUNCE: Duration = Duration::from_millis(50);

    fn class(&self, context: &Context) -> Option<String> {
        let options = context.settings.service_options(&context.cluster_domain);
        let asks = annotation::service(self, &options).is_ok_and(|request| request.is_some());
        asks.then(|| annotation::proxy_class(self, context.settings.default_class())).flatten()
    }

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        step(self, context)
    }

    fn touched(context: &Context, store: &Store<Self>, trigger: &Trigger) -> Vec<ObjectRef<Self>> {
        let mut found = ha_service::touched(context, store, trigger);
        found.extend(egress::touched(store, trigger));
        found
    }
}

async fn step(service: &Service, context: &Context) -> Result<Action, Error> {
    // What the operator made for proxies is in the same namespace as what users make there.
    if service.labels().get(label::MANAGED).is_some_and(|managed| managed == "true") {
        return Ok(Action::await_change());
    }
    let parent = parent(service)?;
    let options = context.settings.service_options(&context.cluster_domain);
    let alone = annotation::service(service, &options);
    let shared = annotation::group_service(service, &options);
    let is_ending = service.metadata.deletion_timestamp.is_some();
    let is_egress = !is_ending && annotation::egress_group(service).is_some();
    // A Service leads to one place, and a name is served in one way: the others have ended before.
    let ended = async {
        if !is_egress {
            egress::end(context, &parent).await?;
        }
        if (is_ending || matches!(alone, Ok(None)))
            && end(service, context, &parent, is_egress).await? == Done::NotYet
        {
            return Ok(Done::NotYet);
        }
        if is_egress || is_ending || matches!(shared, Ok(None)) {
            ha_service::end(service, context, &parent).await?;
        }
        Ok(Done::Yes)
    };
    match ended.await {
        Ok(Done::Yes) => {}
        Ok(Done::NotYet) => return Ok(Action::requeue(LOOK_AGAIN)),
        Err(error) => return failed(service, context, error).await,
    }
    if is_ending {
        return Ok(Action::await_change());
    }
    if is_egress {
        return egress::step(service, context, &parent).await;
    }
    let outcome = match (alone, shared) {
        (Ok(Some(request)), _) => provision::provision(service, context, &parent, request).await,
        (Err(violations), _) => Ok(Outcome::Invalid(violations.to_string())),
        (_, Ok(Some(request))) => {
            return ha_service::reconcile(service, context, &parent, Ok(request)).await;
        }
        (_, Err(violations)) => {
            return ha_service::reconcile(service, context, &parent, Err(violations)).await;
        }
        _ => Ok(Outcome::Nothing),
    };
    match outcome {
        Ok(outcome) => status::tell(service, context, &outcome).await?,
        Err(error) => return failed(service, context, error).await,
    }
    Ok(Action::await_change())
}

/// Tells of what failed, if somebody needs to know.
async fn failed(service: &Service, context: &Context, error: Error) -> Result<Action, Error> {
    if !error.is_conflict() {
        status::tell(service, context, &Outcome::Failed(error.to_string())).await?;
    }
    Err(error)
}

/// The end of a proxy of its own, if it has one. What an egress ProxyGroup does for a Service has the same finalizer.
async fn end(
    service: &Service,
    context: &Context,
    parent: &Parent,
    is_egress: bool,
) -> Result<Done, Error> {
    let ours = service.finalizers().iter().any(|own| own == label::FINALIZER);
    let children = Children::find(&context.cache, &context.settings.namespace, parent);
    // On a ProxyGroup the finalizer alone tells of nothing that is left.
    let any = children.any() || (ours && !annotation::on_proxy_group(service));
    if any && clean_up(context, context.tailnets.get(""), parent).await? == Done::NotYet {
        return Ok(Done::NotYet);
    }
    if !is_egress {
        set_finalizer(&api(context, service), service, label::FINALIZER, false).await?;
    }
    Ok(Done::Yes)
}

pub(super) fn api(context: &Context, service: &Service) -> Api<Service> {
    Api::namespaced(context.client.clone(), &service.namespace().unwrap_or_default())
}

fn parent(service: &Service) -> Result<Parent, Error> {
    let uid = service
        .uid()
        .ok_or_else(|| Error::Incomplete(format!("Service {}", service.name_any()), "UID"))?;
    Ok(Parent {
        kind: ParentKind::Service,
        namespace: service.namespace().unwrap_or_default(),
        name: service.name_any(),
        uid,
    })
}
