//! PeerRelays: devices that relay between devices that cannot reach each other.

mod endpoints;
mod provision;
mod status;

use std::{sync::Arc, time::Duration};

use futures::Future;
use kube::{Api, ResourceExt as _, runtime::controller::Action};

use self::status::Outcome;
use super::standalone::{self, Done, Standalone, clean_up, is_abandoned};
use crate::{
    apply::set_finalizer,
    context::{Context, Kind},
    crd::PeerRelay,
    error::Error,
    label::{self, Parent, ParentKind},
};

/// Pods tell when they have ended; this is for when that is missed.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// How soon the name of a load balancer is looked up again: nobody tells us when it leads elsewhere.
const RESOLVE_AGAIN: Duration = Duration::from_mins(5);
/// The same while it leads nowhere.
const RESOLVE_SOON: Duration = Duration::from_secs(30);

/// Runs until it is told to stop.
pub(super) async fn run(
    context: Arc<Context>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    standalone::run::<PeerRelay>(context, stop).await;
}

impl Standalone for PeerRelay {
    const KIND: ParentKind = ParentKind::PeerRelay;
    const CONTROLLER: &str = "peerrelay";

    /// No default applies to PeerRelays.
    fn class(&self, _: &Context) -> Option<String> {
        self.spec.proxy_class.clone().filter(|name| !name.is_empty())
    }

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        step(self, context)
    }
}

async fn step(relay: &PeerRelay, context: &Context) -> Result<Action, Error> {
    let uid = relay.metadata.uid.clone();
    let name = relay.name_any();
    let parent = Parent {
        kind: ParentKind::PeerRelay,
        namespace: String::new(),
        uid: uid.ok_or_else(|| Error::Incomplete(name.clone(), "UID"))?,
        name,
    };
    let outcome = if relay.metadata.deletion_timestamp.is_some() {
        match end(relay, context, &parent).await {
            Ok(action) => return Ok(action),
            Err(error) => Err(error),
        }
    } else {
        provision::provision(relay, context, &parent).await
    };
    match outcome {
        Ok(outcome) => {
            status::tell(relay, context, &outcome).await?;
            Ok(match outcome {
                Outcome::Made { named: true, ready: false, .. } => Action::requeue(RESOLVE_SOON),
                Outcome::Made { named: true, .. } => Action::requeue(RESOLVE_AGAIN),
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
            status::tell(relay, context, &outcome).await?;
            Err(error)
        }
    }
}

async fn end(relay: &PeerRelay, context: &Context, parent: &Parent) -> Result<Action, Error> {
    if !relay.finalizers().iter().any(|own| own == label::FINALIZER) {
        return Ok(Action::await_change());
    }
    let tailnet = context.tailnets.get(tailnet(relay));
    if is_abandoned(context, &tailnet).await? {
        let note = format!(
            "Tailnet `{}` is gone: devices of this PeerRelay stay in that tailnet, delete them there",
            self::tailnet(relay)
        );
        let news = (Kind::Warning, "TailnetUnavailable", note.as_str());
        context.events.tell_news(relay, vec![news]).await;
    }
    if clean_up(context, tailnet, parent).await? == Done::NotYet {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    context.reissues.forget(&parent.name);
    set_finalizer(&api(context), relay, label::FINALIZER, false).await?;
    Ok(Action::await_change())
}

/// The name of its Tailnet, empty for the operator's own.
fn tailnet(relay: &PeerRelay) -> &str {
    relay.spec.tailnet.as_deref().unwrap_or_default()
}

fn api(context: &Context) -> Api<PeerRelay> {
    Api::all(context.client.clone())
}
