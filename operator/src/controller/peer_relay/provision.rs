//! From a PeerRelay to relays.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::{Secret, Service};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde_json::{Map, Value, json};

use super::{api, endpoints::reached, status::Outcome, tailnet};
use crate::{
    apply::{FIELD_MANAGER, set_finalizer},
    build::{
        group::config_name,
        peer_relay::{CONFIG, PORT, Relay, RelayObjects, Relays, base, relay_objects, service},
        secret_name,
    },
    context::{Context, labelled},
    controller::standalone::{Class, Keys, Standalone as _, class, delete, device_id, not_ready},
    crd::{PeerRelay, peer_relay::RelayEndpoint},
    error::{Error, ResultExt as _},
    label::{self, Parent},
    tailnet_api::TailnetApi,
};

/// Room in 63 characters for `peerrelay-`, and for the hash that Kubernetes labels pods with.
const NAME_LIMIT: usize = 42;

/// Makes the relays. What cannot be done now is an outcome, what failed is an error.
pub(super) async fn provision(
    relay: &PeerRelay,
    context: &Context,
    parent: &Parent,
) -> Result<Outcome, Error> {
    let spec = &relay.spec;
    let replicas = usize::try_from(spec.replicas).unwrap_or(0);
    if parent.name.len() > NAME_LIMIT {
        return Ok(Outcome::Failed(format!(
            "metadata.name: has {} characters, make a PeerRelay with a name of {NAME_LIMIT} at most",
            parent.name.len()
        )));
    }
    let fixed = spec.aws.as_ref().map(|aws| aws.elastic_ips.as_slice());
    if let Some(fixed) = fixed.filter(|fixed| fixed.len() < replicas) {
        return Ok(Outcome::BadAddresses(format!(
            "spec.aws.elasticIPs: has {} addresses for {replicas} replicas, add one for each",
            fixed.len()
        )));
    }
    let tailnet = context.tailnets.get(tailnet(relay))?;
    set_finalizer(&api(context), relay, label::FINALIZER, true).await?;
    let class = match class(context, relay.class(context).as_deref())? {
        Class::Pending(name) => return Ok(Outcome::Failed(not_ready(&name))),
        Class::None => None,
        Class::Ready(spec) => Some(*spec),
    };
    let namespace = &context.settings.namespace;
    let base = base(&parent.name);
    let labels = parent.child_labels();
    let services: BTreeMap<_, _> = by_name(labelled(&context.cache.services, &labels));
    let secrets: BTreeMap<_, _> = by_name(labelled(&context.cache.secrets, &labels));
    let none = BTreeMap::new();
    let annotations = spec.service.as_ref().map_or(&none, |service| &service.annotations);
    let tags = if spec.tags.is_empty() { &context.settings.proxy_tags } else { &spec.tags };
    let keys = Keys { context, tailnet: &*tailnet, secrets: &secrets, replicas, tags };
    let prefix = spec.hostname_prefix.as_deref().unwrap_or(&parent.name);
    let mut relays = Vec::with_capacity(replicas);
    let mut named = false;
    for ordinal in 0..replicas {
        let address = fixed.and_then(|fixed| fixed.get(ordinal));
        let wanted = service(parent, namespace, ordinal, annotations, address);
        let name = wanted.name_any();
        let live = services.get(&name);
        let there = context.applier.apply(&wanted, live.map(AsRef::as_ref)).await?;
        let reached = reached(Some(&there), &before(relay, ordinal)).await;
        named |= reached.named;
        let config = config_name(&base, ordinal);
        relays.push(Relay {
            hostname: format!("{prefix}-{ordinal}"),
            auth_key: keys.of(&parent.name, &config, &name).await?,
            addresses: reached.addresses,
        });
    }
    let relays = Relays {
        parent: parent.clone(),
        namespace: namespace.clone(),
        relays,
        login_server: tailnet.login_server().to_owned(),
        class,
        image: context.settings.proxy_image.clone(),
    };
    write(context, &base, &secrets, &relay_objects(&relays)).await?;
    orphans(context, &*tailnet, &base, replicas, &services, &secrets).await?;
    let reachable = relays.relays.iter().filter(|relay| !relay.addresses.is_empty()).count();
    let set = context.cache.stateful_sets.get(&ObjectRef::new(&base).within(namespace));
    let running = set.and_then(|set| set.status.as_ref()?.ready_replicas).unwrap_or(0);
    Ok(Outcome::Made {
        endpoints: endpoints(&relays.relays),
        reachable,
        running: usize::try_from(running).unwrap_or(0),
        replicas,
        ready: reachable == replicas,
        named,
    })
}

fn by_name<K: ResourceExt>(all: Vec<Arc<K>>) -> BTreeMap<String, Arc<K>> {
    all.into_iter().map(|one| (one.name_any(), one)).collect()
}

/// Where a replica was reached, as its status tells.
fn before(relay: &PeerRelay, ordinal: usize) -> Vec<IpAddr> {
    let all = relay.status.iter().flat_map(|status| &status.endpoints);
    let own = all.filter(|one| usize::try_from(one.replica) == Ok(ordinal));
    own.filter_map(|one| one.address.parse().ok()).collect()
}

fn endpoints(relays: &[Relay]) -> Vec<RelayEndpoint> {
    let of = |(ordinal, relay): (usize, &Relay)| {
        let replica = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let one = move |address: &IpAddr| RelayEndpoint {
            replica,
            address: address.to_string(),
            port: PORT.into(),
        };
        relay.addresses.iter().map(one).collect::<Vec<_>>()
    };
    relays.iter().enumerate().flat_map(of).collect()
}

async fn write(
    context: &Context,
    base: &str,
    secrets: &BTreeMap<String, Arc<Secret>>,
    objects: &RelayObjects,
) -> Result<(), Error> {
    let (apply, cache) = (&context.applier, &context.cache);
    let namespace = context.settings.namespace.as_str();
    let account = cache.accounts.get(&ObjectRef::new(base).within(namespace));
    apply.apply(&objects.account, account.as_deref()).await?;
    let role = cache.roles.get(&ObjectRef::new(base).within(namespace));
    apply.apply(&objects.role, role.as_deref()).await?;
    let binding = cache.bindings.get(&ObjectRef::new(base).within(namespace));
    apply.apply(&objects.binding, binding.as_deref()).await?;
    for secret in objects.states.iter().chain(&objects.configs) {
        let live = secrets.get(&secret.name_any()).map(AsRef::as_ref);
        apply.apply(secret, live).await?;
        if let Some(live) = live.filter(|_| secret.data.is_some()) {
            remove_old(context, live).await?;
        }
    }
    let set = cache.stateful_sets.get(&ObjectRef::new(base).within(namespace));
    apply.apply(&objects.stateful_set, set.as_deref()).await.map(drop)
}

/// Takes configurations away that upstream's operator wrote: a tailscaled would take the newest one that it knows.
async fn remove_old(context: &Context, live: &Secret) -> Result<(), Error> {
    let is_old = |key: &&String| key.starts_with("cap-") && *key != CONFIG;
    let old = live.data.iter().flatten().map(|(key, _)| key).filter(is_old);
    let old: Map<String, Value> = old.map(|key| (key.clone(), Value::Null)).collect();
    if old.is_empty() {
        return Ok(());
    }
    let namespace = &context.settings.namespace;
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    let name = live.name_any();
    let what = || format!("remove old configurations from Secret {namespace}/{name}");
    let patch = Patch::Merge(json!({ "data": old }));
    api.patch(&name, &params, &patch).await.map(drop).doing(what)
}

/// Replicas that are too many, with their devices.
async fn orphans(
    context: &Context,
    tailnet: &dyn TailnetApi,
    base: &str,
    replicas: usize,
    services: &BTreeMap<String, Arc<Service>>,
    secrets: &BTreeMap<String, Arc<Secret>>,
) -> Result<(), Error> {
    let own = |ordinal| [secret_name(base, ordinal), config_name(base, ordinal)];
    let wanted: Vec<_> = (0..replicas).flat_map(own).collect();
    for (name, secret) in secrets.iter().filter(|(name, _)| !wanted.contains(name)) {
        if let Some(device) = device_id(secret) {
            tailnet.delete_device(&device).await?;
        }
        delete::<Secret>(context, name).await?;
    }
    for name in services.keys().filter(|name| !wanted.contains(name)) {
        delete::<Service>(context, name).await?;
    }
    Ok(())
}
