//! Entries in an ingress ProxyGroup's ConfigMap, and what its replicas offer. Many change the same objects: what is asked for
//! at the same time is written at once.

use std::{collections::BTreeSet, fmt::Debug};

use k8s_openapi::{
    ByteString, NamespaceResourceScope,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::group::secrets;
use crate::{
    apply::FIELD_MANAGER,
    build::{
        group::{CONFIG, GroupDuty, config_map_name},
        ingress_config::{self, API_SERVER_CONFIG, File},
    },
    context::{Context, Entry, Offer},
    error::{Error, ResultExt as _},
    label,
    tailnet_api::ServiceName,
};

/// How often it is read and decided again when others write at the same time.
const ATTEMPTS: usize = 3;

/// Keys of configurations: of tailscaled's, and of API server proxies'.
const CONFIGS: [&str; 2] = [CONFIG, API_SERVER_CONFIG];

/// The entry of a Tailscale Service in a file of a ProxyGroup, or that it has none.
pub(in crate::controller) async fn set_entry(
    context: &Context,
    group: &str,
    file: File,
    service: &ServiceName,
    entry: Option<&Value>,
) -> Result<(), Error> {
    let live = config_map(context, group);
    let there = live.as_ref().and_then(|map| content(map, file)).map(|text| file.entries(text));
    if there.as_ref().and_then(|all| all.get(service.as_str())) == entry {
        return Ok(());
    }
    let change = (file, service.clone(), entry.cloned());
    let write = |changes| write_entries(context, group, changes);
    context.entries.change(group, change, write).await
}

/// Has those replicas offer a Tailscale Service whose configurations are in these Secrets, and the others not.
pub(in crate::controller) async fn offer(
    context: &Context,
    group: &str,
    service: &ServiceName,
    on: &BTreeSet<String>,
) -> Result<(), Error> {
    let is_so = secrets(context, group, label::SECRET_CONFIG).iter().all(|secret| {
        let offered = config(secret).map(|(_, text)| ingress_config::offered(text));
        let offers = offered.is_some_and(|all| all.iter().any(|one| one == service.as_str()));
        offers == on.contains(&secret.name_any())
    });
    if is_so {
        return Ok(());
    }
    let write = |changes| write_offers(context, group, changes);
    context.offers.change(group, (service.clone(), on.clone()), write).await
}

/// The name of an ingress ProxyGroup's ConfigMap.
fn map_name(group: &str) -> String {
    config_map_name(group, &GroupDuty::Ingress { account: None })
}

/// The ConfigMap, as the cache knows it.
pub(super) fn config_map(context: &Context, group: &str) -> Option<ConfigMap> {
    let name = ObjectRef::new(&map_name(group)).within(&context.settings.namespace);
    context.cache.config_maps.get(&name).map(|map| (*map).clone())
}

/// A file of it.
pub(super) fn content(map: &ConfigMap, file: File) -> Option<&[u8]> {
    Some(&map.binary_data.as_ref()?.get(file.key())?.0)
}

/// The configuration in a Secret, and its key.
fn config(secret: &Secret) -> Option<(&'static str, &[u8])> {
    let data = secret.data.as_ref()?;
    CONFIGS.into_iter().find_map(|key| Some((key, data.get(key)?.0.as_slice())))
}

async fn write_entries(context: &Context, group: &str, changes: Vec<Entry>) -> Result<(), Error> {
    let name = map_name(group);
    let adds = changes.iter().any(|(.., entry)| entry.is_some());
    let change = |map: &ConfigMap| {
        let mut data = serde_json::Map::new();
        for file in [File::Serve, File::Ingress] {
            let before = content(map, file);
            let there = file.entries(before.unwrap_or_default());
            let mut all = there.clone();
            for (_, service, entry) in changes.iter().filter(|(of, ..)| *of == file) {
                match entry {
                    Some(entry) => drop(all.insert(service.to_string(), entry.clone())),
                    None => drop(all.remove(service.as_str())),
                }
            }
            if all != there {
                data.insert(file.key().to_owned(), json!(ByteString(file.content(&all).into())));
            }
        }
        (!data.is_empty()).then(|| json!({ "binaryData": data }))
    };
    update(context, &name, config_map(context, group), adds, change).await
}

async fn write_offers(context: &Context, group: &str, changes: Vec<Offer>) -> Result<(), Error> {
    for secret in secrets(context, group, label::SECRET_CONFIG) {
        let name = secret.name_any();
        let change = |secret: &Secret| {
            let (key, text) = config(secret)?;
            let offered = ingress_config::offered(text).into_iter();
            let mut all: BTreeSet<ServiceName> =
                offered.filter_map(|name| name.parse().ok()).collect();
            for (service, on) in &changes {
                if on.contains(&name) {
                    all.insert(service.clone());
                } else {
                    all.remove(service);
                }
            }
            let all: Vec<_> = all.into_iter().collect();
            let text = ingress_config::offering(text, &all)?;
            Some(json!({ "data": { key: ByteString(text) } }))
        };
        // A replica that is gone offers nothing.
        update(context, &name, Some((*secret).clone()), false, change).await?;
    }
    Ok(())
}

/// Changes an object of the operator's namespace, of which others write other parts: as it is when nobody else writes.
async fn update<K>(
    context: &Context,
    name: &str,
    cached: Option<K>,
    needed: bool,
    change: impl Fn(&K) -> Option<Value>,
) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let namespace = &context.settings.namespace;
    let api: Api<K> = Api::namespaced(context.client.clone(), namespace);
    let what = || format!("change {} {namespace}/{name}", K::kind(&()));
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    let mut cached = cached;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let live = match cached.take() {
            Some(live) => live,
            None => match api.get_opt(name).await.doing(what)? {
                Some(live) => live,
                None if needed => api.get(name).await.doing(what)?,
                None => return Ok(()),
            },
        };
        let Some(mut patch) = change(&live) else { return Ok(()) };
        if let Some(patch) = patch.as_object_mut() {
            let metadata = json!({ "resourceVersion": live.resource_version() });
            patch.insert("metadata".into(), metadata);
        }
        match api.patch(name, &params, &Patch::Merge(patch)).await {
            Ok(_) => {
                tracing::info!(kind = %K::kind(&()), name, "changed");
                return Ok(());
            }
            // What was cached is old, or it is gone.
            Err(kube::Error::Api(status))
                if matches!(status.code, 404 | 409) && attempt < ATTEMPTS => {}
            Err(error) => return Err(error).doing(what),
        }
    }
}
