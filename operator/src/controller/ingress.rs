//! Ingresses: with a proxy of their own, or on a ProxyGroup.

pub(super) mod backend;
pub(super) mod status;

use std::{sync::Arc, time::Duration};

use futures::Future;
use k8s_openapi::api::networking::v1::Ingress;
use kube::{
    Api, ResourceExt as _,
    runtime::{
        controller::Action,
        reflector::{ObjectRef, Store},
    },
};

use self::status::{Notice, Outcome};
use super::{
    ha_ingress,
    standalone::{
        self, Children, Class, Done, Standalone, class, clean_up, nodes, not_ready, write,
    },
};
use crate::{
    annotation::{self, IngressRequest},
    apply::set_finalizer,
    build::{self, Duty, Proxy},
    context::{Context, Trigger},
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
    standalone::run::<Ingress>(context, stop).await;
}

impl Standalone for Ingress {
    const KIND: ParentKind = ParentKind::Ingress;
    const CONTROLLER: &str = "ingress";

    /// All on a ProxyGroup are told of each one's changes there, and look at them once.
    const DEBOUNCE: Duration = Duration::from_millis(50);

    fn class(&self, context: &Context) -> Option<String> {
        let request = annotation::ingress(self, &context.settings.ingress_class_name);
        let asks = request.is_ok_and(|request| request.is_some());
        asks.then(|| annotation::proxy_class(self, context.settings.default_class())).flatten()
    }

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        step(self, context)
    }

    fn touched(context: &Context, store: &Store<Self>, trigger: &Trigger) -> Vec<ObjectRef<Self>> {
        let mut found = ha_ingress::touched(context, store, trigger);
        if let Trigger::Service { namespace, name } = trigger {
            let leads_there = |ingress: &Ingress| {
                ingress.metadata.namespace.as_ref() == Some(namespace)
                    && backend::names(ingress).any(|backend| backend == name)
            };
            let leading = store.state_filter(leads_there);
            found.extend(leading.iter().map(|ingress| ObjectRef::from(ingress.as_ref())));
        }
        found
    }
}

async fn step(ingress: &Ingress, context: &Context) -> Result<Action, Error> {
    let uid = ingress.uid();
    let parent = Parent {
        kind: ParentKind::Ingress,
        namespace: ingress.namespace().unwrap_or_default(),
        name: ingress.name_any(),
        uid: uid.ok_or_else(|| Error::Incomplete(ingress.name_any(), "UID"))?,
    };
    let class = &context.settings.ingress_class_name;
    let alone = annotation::ingress(ingress, class);
    let shared = annotation::group_ingress(ingress, class);
    let is_ending = ingress.metadata.deletion_timestamp.is_some();
    // A name is served in one way: the other one has ended before.
    if (is_ending || matches!(alone, Ok(None)))
        && end(ingress, context, &parent).await? == Done::NotYet
    {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    if is_ending || matches!(shared, Ok(None)) {
        ha_ingress::end(ingress, context, &parent).await?;
    }
    if is_ending {
        return Ok(Action::await_change());
    }
    let outcome = match (alone, shared) {
        (Ok(None), Ok(None)) => Ok((Outcome::default(), None)),
        (Err(violations), _) | (_, Err(violations)) => {
            Ok((Outcome::refused("InvalidIngressConfiguration", &violations), None))
        }
        (Ok(Some(request)), _) => {
            provision(ingress, context, &parent, request).await.map(|outcome| (outcome, None))
        }
        (_, Ok(Some(request))) => ha_ingress::provision(ingress, context, &parent, &request).await,
    };
    match outcome {
        Ok((outcome, pause)) => {
            status::tell(ingress, context, &outcome).await?;
            Ok(pause.map_or_else(Action::await_change, Action::requeue))
        }
        Err(error) => {
            if !error.is_conflict() {
                let outcome = Outcome::refused("ProxyFailed", &error);
                status::tell(ingress, context, &outcome).await?;
            }
            Err(error)
        }
    }
}

/// The end of a proxy of its own, if it has one.
async fn end(ingress: &Ingress, context: &Context, parent: &Parent) -> Result<Done, Error> {
    let ours = ingress.finalizers().iter().any(|own| own == label::FINALIZER);
    let children = Children::find(&context.cache, &context.settings.namespace, parent);
    if !ours && !children.any() {
        return Ok(Done::Yes);
    }
    if clean_up(context, context.tailnets.get(""), parent).await? == Done::NotYet {
        return Ok(Done::NotYet);
    }
    set_finalizer(&api(context, ingress), ingress, label::FINALIZER, false).await?;
    Ok(Done::Yes)
}

async fn provision(
    ingress: &Ingress,
    context: &Context,
    parent: &Parent,
    request: IngressRequest,
) -> Result<Outcome, Error> {
    let settings = &context.settings;
    let firewall_mode = match settings.firewall_mode() {
        Ok(mode) => mode,
        Err(error) => return Ok(Outcome::refused("INVALIDCONFIG", &error)),
    };
    let named = annotation::proxy_class(ingress, settings.default_class());
    let class = match class(context, named.as_deref())? {
        Class::Pending(name) => return Ok(Outcome::refused("ProxyPending", &not_ready(&name))),
        Class::None => None,
        Class::Ready(spec) => Some(*spec),
    };
    let services = backend::services(ingress, context);
    let backend::Handlers { handlers, mut notices } =
        backend::handlers(ingress, &request, &services);
    if handlers.is_empty() {
        let none = "no rule and no default backend leads to a Service that can be reached: add one";
        notices.push(Notice::warning("NoValidBackends", none));
        return Ok(Outcome { notices, ..Outcome::default() });
    }
    let tailnet = context.tailnets.get("")?;
    set_finalizer(&api(context, ingress), ingress, label::FINALIZER, true).await?;

    let children = Children::find(&context.cache, &settings.namespace, parent);
    let tags = request.tags.as_ref().unwrap_or(&settings.proxy_tags);
    let hostnames = vec![request.hostname.to_string()];
    let proxy = Proxy {
        parent: parent.clone(),
        base: children.base().to_owned(),
        app: children.app().to_owned(),
        namespace: settings.namespace.clone(),
        nodes: nodes(context, &*tailnet, &children, hostnames, tags).await?,
        duty: Duty::Serve {
            config: build::serve_config(&request, &handlers),
            forward_cluster_traffic: request.forward_cluster_traffic,
        },
        login_server: tailnet.login_server().to_owned(),
        class,
        image: settings.proxy_image.clone(),
        firewall_mode,
        priority_class: settings.priority_class(),
    };
    write(context, &*tailnet, &children, &build::objects(&proxy)).await?;
    let secret = children.secret(&build::secret_name(&proxy.base, 0)).map(AsRef::as_ref);
    Ok(status::served(secret, request.redirect, notices))
}

pub(super) fn api(context: &Context, ingress: &Ingress) -> Api<Ingress> {
    Api::namespaced(context.client.clone(), &ingress.namespace().unwrap_or_default())
}
