//! Applies what makes a ProxyGroup, and deletes what it no longer needs.

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::ResourceExt as _;

use super::existing::Existing;
use crate::{
    build::group::GroupObjects,
    context::{Context, Kind},
    controller::standalone::{delete, device_id, monitor},
    error::Error,
    label,
    tailnet_api::TailnetApi,
};

/// Makes it so.
pub(super) async fn write(
    context: &Context,
    tailnet: &dyn TailnetApi,
    existing: &Existing,
    objects: &GroupObjects,
) -> Result<(), Error> {
    let apply = &context.applier;
    apply.apply(&objects.account, existing.account.as_deref()).await?;
    apply.apply(&objects.role, existing.role.as_deref()).await?;
    apply.apply(&objects.binding, existing.binding.as_deref()).await?;
    config_map(context, existing, &objects.config_map).await?;
    for secret in objects.states.iter().chain(&objects.configs) {
        let live = existing.secrets.get(&secret.name_any());
        apply.apply(secret, live.map(AsRef::as_ref)).await?;
    }
    for service in &objects.node_ports {
        let live = existing.services.get(&service.name_any());
        apply.apply(service, live.map(AsRef::as_ref)).await?;
    }
    if let Some(accounts) = &objects.accounts {
        self::accounts(context, existing.accounts.as_ref(), accounts).await?;
    }
    apply.apply(&objects.stateful_set, existing.stateful_set.as_deref()).await?;
    if let Some(metrics) = &objects.metrics {
        let name = metrics.name_any();
        let live = existing.metrics.iter().find(|live| live.name_any() == name);
        let service = apply.apply(metrics, live.map(AsRef::as_ref)).await?;
        monitor(context, &name, objects.monitor.clone(), &service).await?;
    }
    orphans(context, tailnet, existing, objects).await
}

/// What others keep in it is theirs: one without data of ours is made, and then left to them.
async fn config_map(
    context: &Context,
    existing: &Existing,
    wanted: &ConfigMap,
) -> Result<(), Error> {
    let live = existing.config_map.as_deref();
    let is_ours = live.is_some_and(|live| {
        let owners = wanted.metadata.owner_references.as_deref().unwrap_or_default();
        owners.iter().all(|owner| live.owner_references().contains(owner))
            && label::has(live.metadata.labels.as_ref(), wanted.labels())
    });
    if is_ours && wanted.binary_data.is_none() {
        return Ok(());
    }
    context.applier.apply(wanted, live).await.map(drop)
}

/// Nothing can be put into a Secret that is being deleted, and whoever deletes it should know what for.
async fn accounts(
    context: &Context,
    live: Option<&Arc<Secret>>,
    wanted: &Secret,
) -> Result<(), Error> {
    let Some(ending) = live.filter(|live| live.metadata.deletion_timestamp.is_some()) else {
        return context.applier.apply(wanted, live.map(AsRef::as_ref)).await.map(drop);
    };
    let note = "it is being deleted while ingress ProxyGroups keep their ACME accounts in it: remove its finalizer \
                to have new accounts made";
    let news = (Kind::Warning, "ACMEAccountsPendingDeletion", note);
    context.events.tell_news(ending.as_ref(), vec![news]).await;
    Ok(())
}

/// Replicas that are too many, with their devices; node ports and metrics that nobody wants any more.
async fn orphans(
    context: &Context,
    tailnet: &dyn TailnetApi,
    existing: &Existing,
    objects: &GroupObjects,
) -> Result<(), Error> {
    let wanted = |name: &str| {
        let mut all = objects.states.iter().chain(&objects.configs);
        all.any(|secret| secret.name_any() == *name)
    };
    let namespace = &context.settings.namespace;
    for (name, secret) in existing.secrets.iter().filter(|(name, _)| !wanted(name)) {
        let kind = secret.labels().get(label::SECRET_TYPE).map(String::as_str);
        match kind {
            Some(label::SECRET_STATE) => {}
            // It goes with the state.
            Some(label::SECRET_CONFIG)
                if existing.secrets.contains_key(name.trim_end_matches("-config")) =>
            {
                continue;
            }
            Some(label::SECRET_CONFIG) => {
                delete::<Secret>(context, name).await?;
                continue;
            }
            // Certificates, and whatever else others keep.
            _ => continue,
        }
        // A pod that still runs would log in again with what it has in memory. Its end wakes us.
        let pod = kube::runtime::reflector::ObjectRef::new(name).within(namespace);
        if context.cache.pods.get(&pod).is_some() {
            continue;
        }
        if let Some(device) = device_id(secret) {
            tailnet.delete_device(&device).await?;
            tracing::info!(%device, secret = %name, "deleted a device");
        }
        delete::<Secret>(context, &format!("{name}-config")).await?;
        delete::<Secret>(context, name).await?;
    }
    let is_metrics =
        |name: &str| objects.metrics.as_ref().is_some_and(|one| one.name_any() == *name);
    let is_node_port = |name: &str| objects.node_ports.iter().any(|one| one.name_any() == *name);
    let services = existing.services.values().chain(&existing.metrics).map(|one| one.name_any());
    let orphans = services.filter(|name| !is_metrics(name) && !is_node_port(name));
    stream::iter(orphans)
        .map(Ok)
        .try_for_each(async |name| delete::<Service>(context, &name).await)
        .await
}
