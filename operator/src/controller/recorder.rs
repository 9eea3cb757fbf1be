//! Recorders: devices that keep recordings of sessions.

mod provision;
mod status;
mod validate;

use std::{sync::Arc, time::Duration};

use futures::Future;
use kube::{Api, ResourceExt as _, runtime::controller::Action};

use self::status::Outcome;
use super::standalone::{self, Done, Standalone, clean_up, is_abandoned};
use crate::{
    apply::set_finalizer,
    context::{Context, Kind},
    crd::Recorder,
    error::Error,
    label::{self, Parent, ParentKind},
};

/// Pods tell when they have ended; this is for when that is missed.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// How soon it is looked again for a ServiceAccount that is somebody else's: nobody tells us when it is gone.
const LOOK_FOR_ACCOUNT: Duration = Duration::from_mins(1);

/// Runs until it is told to stop.
pub(super) async fn run(
    context: Arc<Context>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    standalone::run::<Recorder>(context, stop).await;
}

impl Standalone for Recorder {
    const KIND: ParentKind = ParentKind::Recorder;
    const CONTROLLER: &str = "recorder";

    /// No ProxyClass concerns Recorders.
    fn class(&self, _: &Context) -> Option<String> {
        None
    }

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        step(self, context)
    }
}

async fn step(recorder: &Recorder, context: &Context) -> Result<Action, Error> {
    let uid = recorder.metadata.uid.clone();
    let name = recorder.name_any();
    let parent = Parent {
        kind: ParentKind::Recorder,
        namespace: String::new(),
        uid: uid.ok_or_else(|| Error::Incomplete(name.clone(), "UID"))?,
        name,
    };
    let outcome = if recorder.metadata.deletion_timestamp.is_some() {
        match end(recorder, context, &parent).await {
            Ok(action) => return Ok(action),
            Err(error) => Err(error),
        }
    } else {
        provision::provision(recorder, context, &parent).await
    };
    match outcome {
        Ok(outcome) => {
            status::tell(recorder, context, &outcome).await?;
            Ok(match outcome {
                Outcome::AccountTaken(_) => Action::requeue(LOOK_FOR_ACCOUNT),
                _ => Action::await_change(),
            })
        }
        // Nobody needs to know: it is read and decided again.
        Err(error) if error.is_conflict() => Err(error),
        Err(error) => {
            let outcome = match &error {
                Error::Registry(why) => Outcome::TailnetUnavailable(why.to_string()),
                error => Outcome::Failed(error.to_string()),
            };
            status::tell(recorder, context, &outcome).await?;
            Err(error)
        }
    }
}

async fn end(recorder: &Recorder, context: &Context, parent: &Parent) -> Result<Action, Error> {
    if !recorder.finalizers().iter().any(|own| own == label::FINALIZER) {
        return Ok(Action::await_change());
    }
    let tailnet = context.tailnets.get(tailnet(recorder));
    if is_abandoned(context, &tailnet).await? {
        let note = format!(
            "Tailnet `{}` is gone: devices of this Recorder stay in that tailnet, delete them there",
            self::tailnet(recorder)
        );
        let news = (Kind::Warning, "RecorderTailnetUnavailable", note.as_str());
        context.events.tell_news(recorder, vec![news]).await;
    }
    if clean_up(context, tailnet, parent).await? == Done::NotYet {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    context.reissues.forget(&parent.name);
    set_finalizer(&api(context), recorder, label::FINALIZER, false).await?;
    Ok(Action::await_change())
}

/// The name of its Tailnet, empty for the operator's own.
fn tailnet(recorder: &Recorder) -> &str {
    recorder.spec.tailnet.as_deref().unwrap_or_default()
}

fn api(context: &Context) -> Api<Recorder> {
    Api::all(context.client.clone())
}
