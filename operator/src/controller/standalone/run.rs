//! Reconciles all objects of a kind, as often as they or what was made for them change.

use std::{fmt::Debug, pin::pin, sync::Arc};

use futures::{
    Future, StreamExt as _,
    stream::{self, BoxStream},
};
use kube::{
    Api, Resource,
    runtime::{
        Controller,
        controller::{self, Action},
        reflector::{Lookup, ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;

use crate::{context::Context, controller::trigger, error::Error, label::ParentKind};

/// Reconciliations of a kind at once.
const CONCURRENCY: u16 = 8;

/// A kind of object that may have a proxy of its own.
pub(in crate::controller) trait Standalone:
    Resource<DynamicType = ()>
    + Lookup<DynamicType = ()>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// The kind.
    const KIND: ParentKind;

    /// What counts, metrics and logs call the controller.
    const CONTROLLER: &str;

    /// The ProxyClass that an object's proxy has, if it asks for one.
    fn class(&self, context: &Context) -> Option<String>;

    /// What else may change what an object's proxy does.
    fn more(_: &Context, _: Store<Self>) -> BoxStream<'static, ObjectRef<Self>> {
        stream::pending().boxed()
    }

    /// One reconciliation, from what is asked for to what is told.
    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send;
}

/// Runs until it is told to stop, and what is being reconciled then is done.
pub(in crate::controller) async fn run<K: Standalone>(
    context: Arc<Context>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let controller =
        Controller::<K>::new(Api::all(context.client.clone()), watcher::Config::default());
    let store = controller.store();
    let changes = trigger::parents::<K>(&context, store.clone());
    let changes = stream::select(changes, K::more(&context, store.clone()));
    // A controller that is told to stop before it knows its objects waits for them for ever.
    let stop = async move {
        stop.await;
        let _ = store.wait_until_ready().await;
    };
    let outcomes = controller
        .with_config(controller::Config::default().concurrency(CONCURRENCY))
        .reconcile_on(changes)
        .graceful_shutdown_on(stop)
        .run(reconcile::<K>, retry::<K>, context);
    let mut outcomes = pin!(outcomes);
    while let Some(outcome) = outcomes.next().await {
        if let Err(controller::Error::QueueError(error)) = outcome {
            tracing::warn!(controller = K::CONTROLLER, %error, "watching goes on later");
        }
    }
}

fn key<K: Standalone>(object: &K) -> String {
    ObjectRef::from(object).to_string()
}

async fn reconcile<K: Standalone>(object: Arc<K>, context: Arc<Context>) -> Result<Action, Error> {
    let outcome = Box::pin(object.step(&context)).await;
    let result = outcome.as_ref().map_or_else(Error::reason, |_| "Success");
    context.counts.count(K::CONTROLLER, result);
    if outcome.is_ok() {
        context.backoffs.forget(&key(&*object));
    }
    outcome
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that kube wants")]
fn retry<K: Standalone>(object: Arc<K>, error: &Error, context: Arc<Context>) -> Action {
    let key = key(&*object);
    let pause = context.backoffs.after(&key, error.retry());
    if error.is_conflict() {
        tracing::debug!(object = key, %error, "somebody changed it meanwhile");
    } else {
        tracing::warn!(object = key, reason = error.reason(), %error, ?pause, "not reconciled");
    }
    pause.map_or_else(Action::await_change, Action::requeue)
}
