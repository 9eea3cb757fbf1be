//! Services with a proxy of their own: from the tailnet to a Service, or from a Service to the tailnet.

mod provision;
mod status;

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{Future, StreamExt as _};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, ResourceExt as _,
    runtime::{
        Controller,
        controller::{self, Action},
        reflector::ObjectRef,
        watcher,
    },
};

use self::status::Outcome;
use super::{
    standalone::{Children, Done, clean_up},
    trigger,
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
/// Reconciliations at once.
const CONCURRENCY: u16 = 8;

/// Runs until it is told to stop.
pub async fn run(context: Arc<Context>, stop: impl Future<Output = ()> + Send + Sync + 'static) {
    context.cache.wait_until_ready().await;
    let controller = Controller::new(Api::all(context.client.clone()), watcher::Config::default());
    let options = context.settings.service_options(&context.cluster_domain);
    let default = context.settings.default_class().map(str::to_owned);
    let class = move |service: &Service| {
        let asks = annotation::service(service, &options).is_ok_and(|request| request.is_some());
        asks.then(|| annotation::proxy_class(service, default.as_deref())).flatten()
    };
    let changes = trigger::parents(&context, controller.store(), ParentKind::Service, class);
    let outcomes = controller
        .with_config(controller::Config::default().concurrency(CONCURRENCY))
        .reconcile_on(changes)
        .graceful_shutdown_on(stop)
        .run(reconcile, retry, context);
    let mut outcomes = pin!(outcomes);
    while let Some(outcome) = outcomes.next().await {
        if let Err(controller::Error::QueueError(error)) = outcome {
            tracing::warn!(%error, "watching Services goes on later");
        }
    }
}

fn key(service: &Service) -> String {
    ObjectRef::from(service).to_string()
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that kube wants")]
fn retry(service: Arc<Service>, error: &Error, context: Arc<Context>) -> Action {
    let pause = context.backoffs.after(&key(&service), error.retry());
    let object = key(&service);
    if error.is_conflict() {
        tracing::debug!(object, %error, "somebody changed it meanwhile");
    } else {
        tracing::warn!(object, reason = error.reason(), %error, ?pause, "not reconciled");
    }
    pause.map_or_else(Action::await_change, Action::requeue)
}

async fn reconcile(service: Arc<Service>, context: Arc<Context>) -> Result<Action, Error> {
    let outcome = Box::pin(step(&service, &context)).await;
    context.counts.count("service", outcome.as_ref().map_or_else(Error::reason, |_| "Success"));
    if outcome.is_ok() {
        context.backoffs.forget(&key(&service));
    }
    outcome
}

async fn step(service: &Service, context: &Context) -> Result<Action, Error> {
    // What the operator made for proxies is in the same namespace as what users make there.
    if service.labels().get(label::MANAGED).is_some_and(|managed| managed == "true") {
        return Ok(Action::await_change());
    }
    let parent = parent(service)?;
    let options = context.settings.service_options(&context.cluster_domain);
    let request = annotation::service(service, &options);
    if service.metadata.deletion_timestamp.is_some() || matches!(request, Ok(None)) {
        return end(service, context, &parent).await;
    }
    let outcome = match request {
        Ok(None) => Ok(Outcome::Nothing),
        Err(violations) => Ok(Outcome::Invalid(violations.to_string())),
        Ok(Some(request)) => provision::provision(service, context, &parent, request).await,
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

/// What was made is no longer wanted, or nothing was ever.
async fn end(service: &Service, context: &Context, parent: &Parent) -> Result<Action, Error> {
    let ours = service.finalizers().iter().any(|own| own == label::FINALIZER);
    let children = Children::find(&context.cache, &context.settings.namespace, parent);
    // The finalizer of a Service on a ProxyGroup is the same one, and kept by whoever serves that.
    let group = annotation::on_proxy_group(service);
    if children.any() || (ours && !group) {
        let tailnet = context.tailnets.get("")?;
        if clean_up(context, &*tailnet, parent).await? == Done::NotYet {
            return Ok(Action::requeue(LOOK_AGAIN));
        }
    }
    if service.metadata.deletion_timestamp.is_none() {
        status::tell(service, context, &Outcome::Nothing).await?;
    }
    if !group {
        let api = api(context, service);
        set_finalizer(&api, service, label::FINALIZER, false).await?;
    }
    Ok(Action::await_change())
}

fn api(context: &Context, service: &Service) -> Api<Service> {
    Api::namespaced(context.client.clone(), &service.namespace().unwrap_or_default())
}

fn parent(service: &Service) -> Result<Parent, Error> {
    let uid = service.uid().ok_or_else(|| Error::Incomplete(key(service), "UID"))?;
    Ok(Parent {
        kind: ParentKind::Service,
        namespace: service.namespace().unwrap_or_default(),
        name: service.name_any(),
        uid,
    })
}
