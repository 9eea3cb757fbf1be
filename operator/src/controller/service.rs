//! Services with a proxy of their own: from the tailnet to a Service, or from a Service to the tailnet.

mod provision;
mod status;

use std::{sync::Arc, time::Duration};

use futures::{Future, StreamExt as _, stream::BoxStream};
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
    egress,
    standalone::{self, Children, Done, Standalone, clean_up},
};
use crate::{
    annotation,
    apply::set_finalizer,
    context::Context,
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

    /// What a reconciliation writes comes back as a change: it is known by then, and nothing is written twice.
    const DEBOUNCE: Duration = Duration::from_millis(50);

    fn class(&self, context: &Context) -> Option<String> {
        let options = context.settings.service_options(&context.cluster_domain);
        let asks = annotation::service(self, &options).is_ok_and(|request| request.is_some());
        asks.then(|| annotation::proxy_class(self, context.settings.default_class())).flatten()
    }

    fn more(context: &Context, store: Store<Self>) -> BoxStream<'static, ObjectRef<Self>> {
        egress::concerned(context, store).boxed()
    }

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        step(self, context)
    }
}

async fn step(service: &Service, context: &Context) -> Result<Action, Error> {
    // What the operator made for proxies is in the same namespace as what users make there.
    if service.labels().get(label::MANAGED).is_some_and(|managed| managed == "true") {
        return Ok(Action::await_change());
    }
    let parent = parent(service)?;
    let ends = service.metadata.deletion_timestamp.is_some();
    if !ends && annotation::egress_group(service).is_some() {
        // A proxy of its own goes first: the Service leads to one place.
        let children = Children::find(&context.cache, &context.settings.namespace, &parent);
        if children.any()
            && clean_up(context, context.tailnets.get(""), &parent).await? == Done::NotYet
        {
            return Ok(Action::requeue(LOOK_AGAIN));
        }
        return egress::step(service, context, &parent).await;
    }
    let options = context.settings.service_options(&context.cluster_domain);
    let request = annotation::service(service, &options);
    let outcome = match request {
        _ if ends => end(service, context, &parent).await.map(Step::Ended),
        Ok(None) => end(service, context, &parent).await.map(Step::Ended),
        Err(violations) => Ok(Step::Is(Outcome::Invalid(violations.to_string()))),
        Ok(Some(request)) => {
            egress::end(context, &parent).await?;
            provision::provision(service, context, &parent, request).await.map(Step::Is)
        }
    };
    match outcome {
        Ok(Step::Ended(action)) => return Ok(action),
        Ok(Step::Is(outcome)) => status::tell(service, context, &outcome).await?,
        Err(error) => {
            if !error.is_conflict() {
                status::tell(service, context, &Outcome::Failed(error.to_string())).await?;
            }
            return Err(error);
        }
    }
    Ok(Action::await_change())
}

/// What came of a step.
enum Step {
    /// To be told.
    Is(Outcome),
    /// Told, if there was anything to tell.
    Ended(Action),
}

/// What was made is no longer wanted, or nothing was ever.
async fn end(service: &Service, context: &Context, parent: &Parent) -> Result<Action, Error> {
    let ours = service.finalizers().iter().any(|own| own == label::FINALIZER);
    egress::end(context, parent).await?;
    let children = Children::find(&context.cache, &context.settings.namespace, parent);
    // What a ProxyGroup did for it has the same finalizer, and has ended.
    let group = annotation::on_proxy_group(service);
    let any = children.any() || (ours && !group);
    if any && clean_up(context, context.tailnets.get(""), parent).await? == Done::NotYet {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    if service.metadata.deletion_timestamp.is_none() {
        status::tell(service, context, &Outcome::Nothing).await?;
    }
    set_finalizer(&api(context, service), service, label::FINALIZER, false).await?;
    Ok(Action::await_change())
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
