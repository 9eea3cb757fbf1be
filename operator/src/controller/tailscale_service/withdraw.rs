//! Undoes what was made for an object on an ingress ProxyGroup, from the record of it.

use std::collections::BTreeSet;

use kube::{Resource, ResourceExt as _};

use super::{
    Owned, Record, certificate,
    claim::{all, heir},
    offer::{config_map, content, offer, set_entry},
    record,
};
use crate::{
    build::ingress_config::File,
    context::{Context, Kind},
    controller::standalone::{Standalone, is_abandoned},
    error::Error,
    label::Parent,
    tailnet_api::ServiceName,
};

/// A kind of object that ingress ProxyGroups serve.
pub(in crate::controller) trait OnGroup: Standalone {
    /// Keeps an object until what was made for it is undone.
    const FINALIZER: &str;
    /// Where its entry is.
    const FILE: File;
}

/// Undoes all of it, but for what another object is to have, or this one next.
pub(in crate::controller) async fn withdraw<K: OnGroup>(
    context: &Context,
    object: &K,
    parent: &Parent,
    record: &Record,
    next: Option<&Record>,
) -> Result<(), Error> {
    let Record { group, tailnet, service } = record;
    let stays = next.is_some_and(|next| next.tailnet == *tailnet && next.service == *service);
    let own = (parent.kind, parent.namespace.as_str(), parent.name.as_str());
    let heir = heir(context, own, tailnet, service);
    let entry_is_needed =
        heir.as_ref().is_some_and(|heir| heir.kind == K::KIND && heir.group == *group);
    let nobody = BTreeSet::new();
    if !entry_is_needed {
        // What is served over HTTP is seen to be gone at once; packets are led on as long as some come.
        if K::FILE == File::Serve {
            set_entry(context, group, K::FILE, service, None).await?;
        }
        offer(context, group, service, &nobody).await?;
    }
    if heir.is_none() && !stays {
        leave(context, object, tailnet, service).await?;
    }
    if !entry_is_needed && K::FILE == File::Ingress {
        set_entry(context, group, K::FILE, service, None).await?;
    }
    if !entry_is_needed && !stays {
        certificate::delete_others(context, parent, None).await?;
    }
    Ok(())
}

async fn leave<K: OnGroup>(
    context: &Context,
    object: &K,
    tailnet: &str,
    service: &ServiceName,
) -> Result<(), Error> {
    if is_abandoned(context, &context.tailnets.get(tailnet)).await? {
        let note = format!(
            "Tailnet `{tailnet}` is gone: the Tailscale Service {service} stays in that tailnet, delete it there"
        );
        let news = (Kind::Warning, "TailnetUnavailable", note.as_str());
        context.events.tell_news(object, vec![news]).await;
        return Ok(());
    }
    Owned::shared(context, tailnet).await?.leave(service).await
}

/// Undoes what nobody wants any more of the entries in a ProxyGroup's file: it was made for objects that went while no
/// operator ran, or that upstream's operator has forgotten.
pub(in crate::controller) async fn sweep<K: OnGroup>(
    context: &Context,
    group: &str,
    tailnet: &str,
) -> Result<(), Error> {
    let Some(map) = config_map(context, group) else { return Ok(()) };
    let file = format!("{group}/{}", K::FILE.key());
    let version = map.resource_version().unwrap_or_default();
    if !context.swept.is_news(&file, &version) {
        return Ok(());
    }
    let entries = content(&map, K::FILE).map(|text| K::FILE.entries(text)).unwrap_or_default();
    let claimants = all(context);
    let recorded: Vec<_> = recorded(context);
    for name in entries.keys() {
        let Ok(service) = name.parse::<ServiceName>() else { continue };
        let is = |record: &Record| record.group == group && record.service == service;
        let claimed = |kind: Option<_>| {
            claimants.iter().any(|one| {
                one.service == service
                    && one.tailnet == tailnet
                    && kind.is_none_or(|kind| one.kind == kind && one.group == group)
            })
        };
        if recorded.iter().any(is) || claimed(Some(K::KIND)) {
            continue;
        }
        tracing::info!(group, %service, "nobody wants what a ProxyGroup serves");
        offer(context, group, &service, &BTreeSet::new()).await?;
        if !claimed(None) {
            Owned::shared(context, tailnet).await?.leave(&service).await?;
        }
        set_entry(context, group, K::FILE, &service, None).await?;
    }
    context.swept.done(&file, &version);
    Ok(())
}

/// What was made for all objects, those too that are being deleted.
fn recorded(context: &Context) -> Vec<Record> {
    fn of<K: Resource>(objects: &[std::sync::Arc<K>]) -> impl Iterator<Item = Record> {
        objects.iter().filter_map(|object| record(object.as_ref()))
    }
    let ingresses = context.cache.ingresses.state();
    let services = context
        .cache
        .backends
        .state_filter(|service| service.annotations().contains_key(crate::label::PROVISIONED));
    of(&ingresses).chain(of(&services)).collect()
}
