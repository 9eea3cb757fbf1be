//! What a kind of object with a proxy of its own has to tell the controller.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::{
    Future, StreamExt as _,
    stream::{self, BoxStream},
};
use kube::{
    Resource,
    runtime::{
        controller::Action,
        reflector::{Lookup, ObjectRef, Store},
    },
};
use serde::de::DeserializeOwned;

use crate::{
    context::Context,
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
    let own = Arc::clone(&context);
    drive::<K, _>(context, stop, |store| {
        let more = K::more(&own, store.clone());
        stream::select(trigger::parents::<K>(&own, store), more)
    })
    .await;
}
