//! Ingresses with a proxy of their own.

mod backend;
mod status;

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
use super::standalone::{
    self, Children, Class, Done, Standalone, class, clean_up, nodes, not_ready, write,
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

    fn class(&self, context: &Context) -> Option<String> {
        let request = annotation::ingress(self, &context.settings.ingress_class_name);
        let asks = request.is_ok_and(|request| request.is_some());
        asks.then(|| annotation::proxy_class(self, context.settings.default_class())).flatten()
    }

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        step(self, context)
    }

    fn touched(_: &Context, store: &Store<Self>, trigger: &Trigger) -> Vec<ObjectRef<Self>> {
        let Trigger::Service { namespace, name } = trigger else { return Vec::new() };
        let leads_there = |ingress: &Ingress| {
            ingress.metadata.namespace.as_ref() == Some(namespace)
                && backend::names(ingress).any(|backend| backend == name)
        };
        let found = store.state_filter(leads_there);
        found.iter().map(|ingress| ObjectRef::from(ingress.as_ref())).collect()
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
    let request = annotation::ingress(ingress, &context.settings.ingress_class_name);
    if ingress.metadata.deletion_timestamp.is_some() || matches!(request, Ok(None)) {
        return end(ingress, context, &parent).await;
    }
    let outcome = match request {
        Ok(None) => return Ok(Action::await_change()),
        Err(violations) => Ok(Outcome::refused("InvalidIngressConfiguration", &violations)),
        Ok(Some(request)) => provision(ingress, context, &parent, request).await,
    };
    match outcome {
        Ok(outcome) => status::tell(ingress, context, &outcome).await?,
        Err(error) => {
            if !error.is_conflict() {
                let outcome = Outcome::refused("ProxyFailed", &error);
                status::tell(ingress, context, &outcome).await?;
            }
            return Err(error);
        }
    }
    Ok(Action::await_change())
}

async fn end(ingress: &Ingress, context: &Context, parent: &Parent) -> Result<Action, Error> {
    let ours = ingress.finalizers().iter().any(|own| own == label::FINALIZER);
    let children = Children::find(&context.cache, &context.settings.namespace, parent);
    if !ours && !children.any() {
        return Ok(Action::await_change());
    }
    if clean_up(context, context.tailnets.get(""), parent).await? == Done::NotYet {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    if ingress.metadata.deletion_timestamp.is_none() {
        status::tell(ingress, context, &Outcome::default()).await?;
    }
    set_finalizer(&api(context, ingress), ingress, label::FINALIZER, false).await?;
    Ok(Action::await_change())
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

fn api(context: &Context, ingress: &Ingress) -> Api<Ingress> {
    Api::namespaced(context.client.clone(), &ingress.namespace().unwrap_or_default())
}
