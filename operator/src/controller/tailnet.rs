//! Tailnets: whether their credentials are good. Whoever names one is served by the client that is entered here.

use std::{sync::Arc, time::Duration};

use futures::{Future, Stream, StreamExt as _, stream};
use k8s_openapi::{api::core::v1::Secret, jiff::Timestamp};
use kube::{
    Api, ResourceExt as _,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt as _,
        controller::Action,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use serde_json::json;

use super::reconcile::{Reconciled, drive};
use crate::{
    apply::{Applier, set_finalizer},
    context::Context,
    crd::Tailnet,
    error::{Error, ResultExt as _},
    label,
    status::{ConditionType, Finding, Holds, set_condition},
    tailnet_api::{
        Patience, RegistryError, Settings,
        resource::{self, Identity},
    },
};

const READY: ConditionType = ConditionType::TailnetReady;

/// How soon refused credentials are tried again: what was wrong is put right where nobody tells us.
const TRY_AGAIN: Duration = Duration::from_secs(30);
/// How soon good credentials are tried again: they may have been revoked.
const STILL_GOOD: Duration = Duration::from_hours(1);

/// Runs until it is told to stop.
pub(super) async fn run(
    context: Arc<Context>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let own = Arc::clone(&context);
    drive::<Tailnet, _>(context, stop, |store| rotated(&own, store)).await;
}

/// Tailnets whose Secret has changed.
fn rotated(
    context: &Context,
    store: Store<Tailnet>,
) -> impl Stream<Item = ObjectRef<Tailnet>> + Send + 'static {
    let api: Api<PartialObjectMeta<Secret>> =
        Api::namespaced(context.client.clone(), &context.settings.namespace);
    // Those of proxies are many, and change often.
    let config = watcher::Config::default().labels(&format!("{}!=true", label::MANAGED));
    let changes = watcher(api, config).default_backoff().touched_objects();
    changes.flat_map(move |changed| {
        let found: Vec<_> = match changed {
            Ok(secret) => store
                .state_filter(|tailnet| tailnet.spec.credentials.secret_name == secret.name_any())
                .iter()
                .map(|tailnet| ObjectRef::from(tailnet.as_ref()))
                .collect(),
            Err(error) => {
                tracing::warn!(kind = "Secret", %error, "watching goes on later");
                Vec::new()
            }
        };
        stream::iter(found)
    })
}

impl Reconciled for Tailnet {
    const CONTROLLER: &str = "tailnet";

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        step(self, context)
    }
}

/// How it is with a Tailnet.
enum Outcome {
    /// The Secret gives no credentials: why, and what to do.
    InvalidSecret(String),
    /// The credentials are not accepted: why, and what to do.
    Refused(String),
    /// It can be used.
    Valid,
}

async fn step(tailnet: &Tailnet, context: &Context) -> Result<Action, Error> {
    let name = tailnet.name_any();
    let api: Api<Tailnet> = Api::all(context.client.clone());
    if tailnet.metadata.deletion_timestamp.is_some() {
        context.tailnets.remove(&name);
        set_finalizer(&api, tailnet, label::FINALIZER, false).await?;
        return Ok(Action::await_change());
    }
    let outcome = enter(tailnet, context, &name).await?;
    if matches!(outcome, Outcome::Valid) {
        set_finalizer(&api, tailnet, label::FINALIZER, true).await?;
    }
    tell(tailnet, &api, &outcome).await?;
    Ok(match outcome {
        // Secrets are watched.
        Outcome::InvalidSecret(_) => Action::await_change(),
        Outcome::Refused(_) => Action::requeue(TRY_AGAIN),
        Outcome::Valid => Action::requeue(STILL_GOOD),
    })
}

/// Tries the credentials, and enters what came of it.
async fn enter(tailnet: &Tailnet, context: &Context, name: &str) -> Result<Outcome, Error> {
    let namespace = &context.settings.namespace;
    let secret_name = &tailnet.spec.credentials.secret_name;
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let what = || format!("read Secret {namespace}/{secret_name}");
    let secret = secrets.get_opt(secret_name).await.doing(what)?;
    let identity = Identity {
        client: context.client.clone(),
        namespace: namespace.clone(),
        account: context.settings.service_account.clone(),
    };
    let credentials = match &secret {
        Some(secret) => resource::credentials(secret, &identity).map_err(|error| error.to_string()),
        None => Err(format!("Secret {namespace}/{secret_name} does not exist: create it")),
    };
    let credentials = match credentials {
        Ok(credentials) => credentials,
        Err(why) => {
            // A client that was good may still be.
            if let Err(RegistryError::Unknown(_)) = context.tailnets.get(name) {
                context.tailnets.not_ready(name);
            }
            return Ok(Outcome::InvalidSecret(why));
        }
    };
    let login_server = match tailnet.spec.login_url.as_ref().filter(|url| !url.is_empty()) {
        Some(url) => url.clone(),
        None => context.tailnets.get("")?.login_server().to_owned(),
    };
    let settings =
        Settings { login_server, credentials, authorities: None, patience: Patience::default() };
    let refused = match settings.connect() {
        Ok(api) => match resource::probe(&*api).await {
            Ok(()) => {
                context.tailnets.ready(name, api);
                return Ok(Outcome::Valid);
            }
            Err(error) => error.to_string(),
        },
        Err(error) => format!("spec.loginUrl: {error}"),
    };
    context.tailnets.not_ready(name);
    Ok(Outcome::Refused(refused))
}

/// Tells it, if that is news.
async fn tell(tailnet: &Tailnet, api: &Api<Tailnet>, outcome: &Outcome) -> Result<(), Error> {
    let (holds, reason, message) = match outcome {
        Outcome::InvalidSecret(why) => (false, "InvalidSecret", why.as_str()),
        Outcome::Refused(why) => (false, "InvalidOAuth", why.as_str()),
        Outcome::Valid => (true, "TailnetValid", "TailnetValid"),
    };
    let before = tailnet.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let mut conditions = before.to_vec();
    let finding = Finding {
        condition: READY,
        holds: Holds::from(holds),
        reason,
        message: message.to_owned(),
        generation: tailnet.metadata.generation,
    };
    set_condition(&mut conditions, finding, Timestamp::now());
    conditions.retain(|condition| condition.type_ == READY.label());
    let desired = json!({ "status": { "conditions": conditions } });
    Applier::apply_status(api, tailnet, &desired).await.map(drop)
}
