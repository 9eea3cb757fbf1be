//! ProxyClasses: whether they can be used. Whoever names one waits for that.

mod fetch;
mod image;
pub(super) mod metadata;
mod ports;
mod status;
mod validate;

use std::{sync::Arc, time::Duration};

use futures::{Future, Stream, StreamExt as _, stream};
use kube::{
    Api, ResourceExt as _,
    runtime::{
        controller::Action,
        reflector::{ObjectRef, Store},
    },
};

use super::reconcile::{Reconciled, drive};
use crate::{
    apply::set_finalizer,
    context::{Context, Trigger},
    crd::ProxyClass,
    error::Error,
    label,
};

/// How soon it is looked again for a definition that is not there: nobody tells us when it is.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// Runs until it is told to stop.
pub(super) async fn run(
    context: Arc<Context>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let changes = context.cache.changes();
    drive::<ProxyClass, _>(context, stop, |store| rivals(changes, store)).await;
}

/// Classes that a change of another class concerns: it may have taken their ports, or left them.
fn rivals(
    changes: impl Stream<Item = Trigger> + Send + 'static,
    store: Store<ProxyClass>,
) -> impl Stream<Item = ObjectRef<ProxyClass>> + Send + 'static {
    changes.flat_map(move |trigger| {
        let found: Vec<_> = match trigger {
            Trigger::Class(changed) => store
                .state_filter(|class| {
                    class.spec.static_endpoints.is_some() && class.name_any() != changed
                })
                .iter()
                .map(|class| ObjectRef::from(class.as_ref()))
                .collect(),
            _ => Vec::new(),
        };
        stream::iter(found)
    })
}

impl Reconciled for ProxyClass {
    const CONTROLLER: &str = "proxyclass";

    /// One after the other, so that no two classes are found ready with the same ports.
    const CONCURRENCY: u16 = 1;

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        step(self, context)
    }
}

async fn step(class: &ProxyClass, context: &Context) -> Result<Action, Error> {
    let api = api(context);
    // The finalizer is upstream's and keeps nothing: users of a class that is gone are told so.
    if class.metadata.deletion_timestamp.is_some() {
        set_finalizer(&api, class, label::FINALIZER, false).await?;
        return Ok(Action::await_change());
    }
    set_finalizer(&api, class, label::FINALIZER, true).await?;
    let surroundings = fetch::surroundings(class, context).await?;
    let wrong = validate::violations(class, &surroundings);
    status::tell(class, context, &wrong).await?;
    Ok(if surroundings.service_monitors {
        Action::await_change()
    } else {
        Action::requeue(LOOK_AGAIN)
    })
}

fn api(context: &Context) -> Api<ProxyClass> {
    Api::all(context.client.clone())
}
