//! What a ProxyClass is judged by besides itself.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt as _, api::ListParams};

use super::{
    api,
    ports::{PortSpan, Taken, spans},
};
use crate::{
    context::Context,
    crd::ProxyClass,
    error::{Error, ResultExt as _},
    status::{ConditionType, holds},
};

/// The definition of ServiceMonitors.
const SERVICE_MONITORS: &str = "servicemonitors.monitoring.coreos.com";

/// What a ProxyClass is judged by besides itself, as far as it matters for it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Surroundings {
    /// Whether ServiceMonitors can be made, or none is wanted.
    pub(super) service_monitors: bool,
    /// The cluster's range of node ports, if it is known.
    pub(super) node_ports: Option<PortSpan>,
    /// The ports of classes that came first.
    pub(super) taken: Vec<Taken>,
}

/// Asks for what matters for this class, and for nothing else.
pub(super) async fn surroundings(
    class: &ProxyClass,
    context: &Context,
) -> Result<Surroundings, Error> {
    let mut found = Surroundings { service_monitors: true, ..Surroundings::default() };
    let monitor = class.spec.metrics.as_ref().and_then(|metrics| metrics.service_monitor.as_ref());
    if monitor.is_some_and(|monitor| monitor.enable) {
        found.service_monitors = are_defined(context).await;
    }
    if class.spec.static_endpoints.is_some() {
        let range = context.node_ports.range().await;
        found.node_ports = range.map(|range| PortSpan::new(*range.start(), *range.end()));
        found.taken = taken(class, context).await?;
    }
    Ok(found)
}

/// Whether there are ServiceMonitors. Who may not look finds out when one is made.
async fn are_defined(context: &Context) -> bool {
    let api: Api<CustomResourceDefinition> = Api::all(context.client.clone());
    match api.get_metadata_opt(SERVICE_MONITORS).await {
        Ok(found) => found.is_some(),
        Err(error) => {
            tracing::warn!(%error, definition = SERVICE_MONITORS, "not looked for");
            true
        }
    }
}

async fn taken(class: &ProxyClass, context: &Context) -> Result<Vec<Taken>, Error> {
    let is_ready = is_ready(class);
    let others = if is_ready {
        context.cache.classes.state().iter().map(|one| one.as_ref().clone()).collect()
    } else {
        // A cache that does not know yet that another one is ready would let this one be so too.
        let what = || "list ProxyClasses".to_owned();
        api(context).list(&ListParams::default()).await.doing(what)?.items
    };
    let before = others.iter().filter(|other| {
        let is_other = other.name_any() != class.name_any();
        // Of two that are ready, as a change by hand can leave them, the older one stays so.
        is_other && self::is_ready(other) && (!is_ready || age(other) < age(class))
    });
    let taken = before.flat_map(|other| {
        let span = |span| Taken { class: other.name_any(), span };
        spans(other).map(span).collect::<Vec<_>>()
    });
    Ok(taken.collect())
}

fn is_ready(class: &ProxyClass) -> bool {
    let conditions = class.status.as_ref().map_or(&[][..], |status| &status.conditions);
    class.metadata.deletion_timestamp.is_none()
        && holds(conditions, ConditionType::ProxyClassReady, class.metadata.generation)
}

fn age(class: &ProxyClass) -> impl Ord + use<> {
    (class.creation_timestamp(), class.name_any())
}
