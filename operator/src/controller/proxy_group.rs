//! ProxyGroups: proxies that Services and Ingresses share.

mod endpoints;
mod existing;
mod provision;
mod status;
mod validate;
mod write;

use std::{sync::Arc, time::Duration};

use futures::Future;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, ResourceExt as _,
    runtime::{
        controller::Action,
        reflector::{ObjectRef, Store},
    },
};

pub(super) use self::existing::pods;
use self::status::Outcome;
use super::standalone::{self, Done, Standalone, clean_up, delete_all, is_abandoned};
use crate::{
    apply::set_finalizer,
    context::{Context, Kind, Trigger},
    crd::{ProxyGroup, proxy_group::ProxyGroupType},
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
    standalone::run::<ProxyGroup>(context, stop).await;
}

impl Standalone for ProxyGroup {
    const KIND: ParentKind = ParentKind::ProxyGroup;
    const CONTROLLER: &str = "proxygroup";

    /// A group with hundreds of Services is told of each one's changes and writes them down together.
    const DEBOUNCE: Duration = Duration::from_millis(100);

    fn class(&self, context: &Context) -> Option<String> {
        class_name(self, context.settings.default_class()).map(str::to_owned)
    }

    fn touched(context: &Context, store: &Store<Self>, trigger: &Trigger) -> Vec<ObjectRef<Self>> {
        let those = |concerns: &dyn Fn(&Self) -> bool| {
            let found = store.state_filter(|group| concerns(group));
            found.iter().map(|group| ObjectRef::from(group.as_ref())).collect()
        };
        match trigger {
            Trigger::Pod(name) | Trigger::OnGroup(name) => vec![ObjectRef::new(name)],
            Trigger::Node => those(&|group| {
                let class = class_name(group, context.settings.default_class());
                let class = class.and_then(|name| context.cache.classes.get(&ObjectRef::new(name)));
                class.is_some_and(|class| class.spec.static_endpoints.is_some())
            }),
            Trigger::Accounts => {
                those(&|group| shares_account(group, context.settings.shared_acme_account_key))
            }
            _ => Vec::new(),
        }
    }

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        step(self, context)
    }
}

/// The ProxyClass that it names, or else the operator's default.
fn class_name<'a>(group: &'a ProxyGroup, default: Option<&'a str>) -> Option<&'a str> {
    group.spec.proxy_class.as_deref().filter(|name| !name.is_empty()).or(default)
}

/// Whether an ingress ProxyGroup shares its ACME account; `default` is what the operator's settings say.
fn shares_account(group: &ProxyGroup, default: bool) -> bool {
    let own = group.annotations().get(label::SHARE_ACME_ACCOUNT);
    group.spec.type_ == ProxyGroupType::Ingress && own.map_or(default, |value| value == "true")
}

async fn step(group: &ProxyGroup, context: &Context) -> Result<Action, Error> {
    let uid = group.uid();
    let parent = Parent {
        kind: ParentKind::ProxyGroup,
        namespace: String::new(),
        name: group.name_any(),
        uid: uid.ok_or_else(|| Error::Incomplete(group.name_any(), "UID"))?,
    };
    let outcome = if group.metadata.deletion_timestamp.is_some() {
        match end(group, context, &parent).await {
            Ok(action) => return Ok(action),
            Err(error) => Err(error),
        }
    } else {
        provision::provision(group, context, &parent).await
    };
    match outcome {
        Ok(outcome) => status::tell(group, context, &parent, &outcome).await?,
        // Nobody needs to know: it is read and decided again.
        Err(error) if error.is_conflict() => return Err(error),
        Err(error) => {
            let outcome = match &error {
                Error::Registry(why) => Outcome::TailnetUnavailable(why.to_string()),
                error => Outcome::Failed(error.to_string()),
            };
            status::tell(group, context, &parent, &outcome).await?;
            return Err(error);
        }
    }
    Ok(Action::await_change())
}

async fn end(group: &ProxyGroup, context: &Context, parent: &Parent) -> Result<Action, Error> {
    if !group.finalizers().iter().any(|own| own == label::FINALIZER) {
        return Ok(Action::await_change());
    }
    if group.spec.type_ == ProxyGroupType::Egress {
        // Clients would still be led to the pods' addresses, which others may have by then.
        let of = [(label::SERVICE_TYPE, label::EGRESS), (label::PROXY_GROUP, &parent.name)];
        delete_all::<EndpointSlice>(context, &label::selector(&label::labels(of))).await?;
    }
    let tailnet = context.tailnets.get(tailnet(group));
    if is_abandoned(context, &tailnet).await? {
        let note = format!(
            "Tailnet `{}` is gone: devices of this ProxyGroup stay in that tailnet, delete them there",
            self::tailnet(group)
        );
        let news = (Kind::Warning, "ProxyGroupTailnetUnavailable", note.as_str());
        context.events.tell_news(group, vec![news]).await;
    }
    if clean_up(context, tailnet, parent).await? == Done::NotYet {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    context.reissues.forget(&parent.name);
    set_finalizer(&api(context), group, label::FINALIZER, false).await?;
    Ok(Action::await_change())
}

/// The name of its Tailnet, empty for the operator's own.
fn tailnet(group: &ProxyGroup) -> &str {
    group.spec.tailnet.as_deref().unwrap_or_default()
}

/// How many proxies it has.
pub(super) fn replicas(group: &ProxyGroup) -> usize {
    const DEFAULT: i32 = 2;
    group.spec.replicas.unwrap_or(DEFAULT).try_into().unwrap_or(0)
}

fn api(context: &Context) -> Api<ProxyGroup> {
    Api::all(context.client.clone())
}
