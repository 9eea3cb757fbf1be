//! Connectors: subnet routers, exit nodes, app connectors.

mod status;
mod validate;

use std::{sync::Arc, time::Duration};

use futures::Future;
use kube::{Api, ResourceExt as _, runtime::controller::Action};

use self::{status::Outcome, validate::Request};
use super::standalone::{
    self, Children, Class, Done, Standalone, class, clean_up, device_info, nodes, not_ready, write,
};
use crate::{
    apply::set_finalizer,
    build::{self, Duty, Proxy},
    context::Context,
    crd::Connector,
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
    standalone::run::<Connector>(context, stop).await;
}

impl Standalone for Connector {
    const KIND: ParentKind = ParentKind::Connector;
    const CONTROLLER: &str = "connector";

    /// No default applies to Connectors.
    fn class(&self, _: &Context) -> Option<String> {
        self.spec.proxy_class.clone().filter(|name| !name.is_empty())
    }

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        step(self, context)
    }
}

async fn step(connector: &Connector, context: &Context) -> Result<Action, Error> {
    let uid = connector.uid();
    let parent = Parent {
        kind: ParentKind::Connector,
        namespace: String::new(),
        name: connector.name_any(),
        uid: uid.ok_or_else(|| Error::Incomplete(connector.name_any(), "UID"))?,
    };
    let outcome = if connector.metadata.deletion_timestamp.is_some() {
        match end(connector, context, &parent).await {
            Ok(action) => return Ok(action),
            Err(error) => Err(error),
        }
    } else {
        match validate::request(connector) {
            Ok(request) => provision(connector, context, &parent, request).await,
            Err(violations) => Ok(Outcome::Invalid(violations.to_string())),
        }
    };
    match outcome {
        Ok(outcome) => status::tell(connector, context, &outcome).await?,
        Err(error) => {
            if !error.is_conflict() {
                status::tell(connector, context, &Outcome::Failed(error.to_string())).await?;
            }
            return Err(error);
        }
    }
    Ok(Action::await_change())
}

async fn end(connector: &Connector, context: &Context, parent: &Parent) -> Result<Action, Error> {
    if !connector.finalizers().iter().any(|own| own == label::FINALIZER) {
        return Ok(Action::await_change());
    }
    let tailnet = context.tailnets.get(connector.spec.tailnet.as_deref().unwrap_or_default());
    if clean_up(context, tailnet, parent).await? == Done::NotYet {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    set_finalizer(&api(context), connector, label::FINALIZER, false).await?;
    Ok(Action::await_change())
}

async fn provision(
    connector: &Connector,
    context: &Context,
    parent: &Parent,
    request: Request,
) -> Result<Outcome, Error> {
    let settings = &context.settings;
    let firewall_mode = match settings.firewall_mode() {
        Ok(mode) => mode,
        Err(error) => return Ok(Outcome::Invalid(error.to_string())),
    };
    let class = match class(context, connector.class(context).as_deref())? {
        Class::Pending(name) => return Ok(Outcome::Pending(not_ready(&name))),
        Class::None => None,
        Class::Ready(spec) => Some(*spec),
    };
    let tailnet = context.tailnets.get(connector.spec.tailnet.as_deref().unwrap_or_default())?;
    set_finalizer(&api(context), connector, label::FINALIZER, true).await?;

    let children = Children::find(&context.cache, &settings.namespace, parent);
    let spec = &connector.spec;
    let tags = if spec.tags.is_empty() { &settings.proxy_tags } else { &spec.tags };
    let proxy = Proxy {
        parent: parent.clone(),
        base: children.base().to_owned(),
        app: children.app().to_owned(),
        namespace: settings.namespace.clone(),
        nodes: nodes(context, &*tailnet, &children, request.hostnames, tags).await?,
        duty: Duty::Connect(request.routes),
        login_server: tailnet.login_server().to_owned(),
        class,
        image: settings.proxy_image.clone(),
        firewall_mode,
        priority_class: settings.priority_class(),
    };
    write(context, &*tailnet, &children, &build::objects(&proxy)).await?;
    let replicas = 0..proxy.nodes.len();
    let secrets = replicas.filter_map(|ordinal| {
        children.secret(&build::secret_name(&proxy.base, ordinal)).map(AsRef::as_ref)
    });
    Ok(Outcome::Created(secrets.filter_map(device_info).collect()))
}

fn api(context: &Context) -> Api<Connector> {
    Api::all(context.client.clone())
}
