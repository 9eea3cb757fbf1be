//! What a kind of object with a proxy of its own has to tell the controller.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::Future;
use kube::{
    Resource,
    runtime::{
        controller::Action,
        reflector::{Lookup, ObjectRef, Store},
    },
};
use serde::de::DeserializeOwned;

use crate::{
    context::{Context, Trigger},
    controller::{reconcile::drive, trigger},
    error::Error,
    label::ParentKind,
};

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

    /// How long to wait for further changes, so that they are answered at once.
    const DEBOUNCE: Duration = Duration::ZERO;

    /// The ProxyClass that an object's proxy has, if it asks for one.
    fn class(&self, context: &Context) -> Option<String>;

    /// The objects that something else concerns than their children and their ProxyClass.
    fn touched(_: &Context, _: &Store<Self>, _: &Trigger) -> Vec<ObjectRef<Self>> {
        Vec::new()
    }

    /// One reconciliation, from what is asked for to what is told.
    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send;
}

/// Runs until it is told to stop, and what is being reconciled then is done.
pub(in crate::controller) async fn run<K: Standalone>(
    context: Arc<Context>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let own = Arc::clone(&context);
    drive::<K, _>(context, stop, |store| trigger::parents::<K>(&own, store)).await;
}
