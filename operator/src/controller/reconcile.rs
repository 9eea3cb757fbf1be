//! Reconciles all objects of a kind, as often as they change or something else that concerns them does.

use std::{fmt::Debug, pin::pin, sync::Arc, time::Duration};

use futures::{Future, Stream, StreamExt as _};
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

use super::standalone::Standalone;
use crate::{context::Context, error::Error};

/// A kind of object that is reconciled.
pub(super) trait Reconciled:
    Resource<DynamicType = ()>
    + Lookup<DynamicType = ()>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// What counts, metrics and logs call the controller.
    const CONTROLLER: &str;

    /// Reconciliations of the kind at once.
    const CONCURRENCY: u16 = 8;

    /// How long to wait for further changes of an object or of what concerns it, so that they are answered at once.
    const DEBOUNCE: Duration = Duration::ZERO;

    /// One reconciliation, from what is asked for to what is told.
    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send;
}

impl<K: Standalone> Reconciled for K {
    const CONTROLLER: &str = <K as Standalone>::CONTROLLER;
    const DEBOUNCE: Duration = <K as Standalone>::DEBOUNCE;

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        Standalone::step(self, context)
    }
}

/// Runs until it is told to stop, and what is being reconciled then is done. `changes` makes of the store of all objects
/// a stream of those that something else concerns.
pub(super) async fn drive<K, S>(
    context: Arc<Context>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
    changes: impl FnOnce(Store<K>) -> S,
) where
    K: Reconciled,
    S: Stream<Item = ObjectRef<K>> + Send + 'static,
{
    let controller =
        Controller::<K>::new(Api::all(context.client.clone()), watcher::Config::default());
    let store = controller.store();
    let changes = changes(store.clone());
    // A controller that is told to stop before it knows its objects waits for them for ever.
    let stop = async move {
        stop.await;
        let _ = store.wait_until_ready().await;
    };
    let outcomes = controller
        .with_config(
            controller::Config::default().concurrency(K::CONCURRENCY).debounce(K::DEBOUNCE),
        )
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

fn key<K: Reconciled>(object: &K) -> String {
    ObjectRef::from(object).to_string()
}

async fn reconcile<K: Reconciled>(object: Arc<K>, context: Arc<Context>) -> Result<Action, Error> {
    let outcome = Box::pin(object.step(&context)).await;
    let result = outcome.as_ref().map_or_else(Error::reason, |_| "Success");
    context.counts.count(K::CONTROLLER, result);
    if outcome.is_ok() {
        context.backoffs.forget(&key(&*object));
    }
    outcome
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that kube wants")]
fn retry<K: Reconciled>(object: Arc<K>, error: &Error, context: Arc<Context>) -> Action {
    let key = key(&*object);
    let pause = context.backoffs.after(&key, error.retry());
    if error.is_conflict() {
        tracing::debug!(object = key, %error, "somebody changed it meanwhile");
    } else {
        tracing::warn!(object = key, reason = error.reason(), %error, ?pause, "not reconciled");
    }
    pause.map_or_else(Action::await_change, Action::requeue)
}
