//! From a Recorder to pods that record.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Secret, ServiceAccount},
};
use kube::{
    Api, Resource as _, ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use secrecy::SecretString;

use super::{api, status::Outcome, tailnet, validate::violations};
use crate::{
    apply::set_finalizer,
    build::{
        recorder::{
            AUTH_KEY, Recording, RecordingObjects, account_name, key_name, recording_objects,
        },
        secret_name,
    },
    context::{Context, labelled},
    controller::standalone::{Keys, delete, device_id, text},
    crd::{Recorder, recorder::RecorderDevice},
    error::{Error, ResultExt as _},
    label::{self, Labels, Parent},
    tailnet_api::{KeyRequest, TailnetApi},
};

/// Tags of recorders that name none: upstream's, whatever proxies have.
const TAG: &str = "tag:k8s";

/// Makes the recorders. What cannot be done now is an outcome, what failed is an error.
pub(super) async fn provision(
    recorder: &Recorder,
    context: &Context,
    parent: &Parent,
) -> Result<Outcome, Error> {
    if let Some(wrong) = violations(recorder) {
        return Ok(Outcome::Invalid(wrong));
    }
    let tailnet = context.tailnets.get(tailnet(recorder))?;
    if let Some(taken) = foreign_account(recorder, context, parent).await? {
        return Ok(Outcome::AccountTaken(taken));
    }
    set_finalizer(&api(context), recorder, label::FINALIZER, true).await?;
    let secrets = labelled(&context.cache.secrets, &parent.child_labels());
    let secrets = secrets.into_iter().map(|secret| (secret.name_any(), secret)).collect();
    let set = stateful_set(context, &parent.name).await?;
    let what = || Error::Incomplete(format!("Recorder {}", parent.name), "UID");
    let recording = Recording {
        parent: parent.clone(),
        owner: recorder.controller_owner_ref(&()).ok_or_else(what)?,
        namespace: context.settings.namespace.clone(),
        keys: keys(recorder, context, &*tailnet, &secrets).await?,
        spec: recorder.spec.clone(),
        login_server: tailnet.login_server().to_owned(),
        selector: set.as_ref().and_then(|set| selector(set)),
    };
    let objects = recording_objects(&recording);
    write(context, parent, &secrets, set.as_deref(), &objects).await?;
    orphans(context, &*tailnet, parent, &secrets, &objects).await?;
    let mut devices: Vec<RecorderDevice> = Vec::new();
    for state in objects.states.iter().filter_map(|state| secrets.get(&state.name_any())) {
        if let Some(device) = device(&*tailnet, state).await?
            && devices.iter().all(|other| other.hostname != device.hostname)
        {
            devices.push(device);
        }
    }
    Ok(Outcome::Created(devices))
}

/// The name of a ServiceAccount that was asked for and is somebody else's.
async fn foreign_account(
    recorder: &Recorder,
    context: &Context,
    parent: &Parent,
) -> Result<Option<String>, Error> {
    let name = account_name(&parent.name, &recorder.spec);
    if name == parent.name {
        return Ok(None);
    }
    let namespace = &context.settings.namespace;
    let known = context.cache.accounts.get(&ObjectRef::new(name).within(namespace));
    let found = if known.is_some() {
        known
    } else {
        let accounts: Api<ServiceAccount> = Api::namespaced(context.client.clone(), namespace);
        let what = || format!("read ServiceAccount {namespace}/{name}");
        accounts.get_opt(name).await.doing(what)?.map(Arc::new)
    };
    let is_foreign = found.is_some_and(|found| {
        let owners = found.owner_references();
        owners.len() != 1 || owners.iter().any(|owner| owner.uid != parent.uid)
    });
    Ok(is_foreign.then(|| format!("{namespace}/{name}")))
}

/// The StatefulSet. One of upstream's is not in the cache.
async fn stateful_set(context: &Context, name: &str) -> Result<Option<Arc<StatefulSet>>, Error> {
    let namespace = &context.settings.namespace;
    let known = context.cache.stateful_sets.get(&ObjectRef::new(name).within(namespace));
    if known.is_some() {
        return Ok(known);
    }
    let sets: Api<StatefulSet> = Api::namespaced(context.client.clone(), namespace);
    let what = || format!("read StatefulSet {namespace}/{name}");
    Ok(sets.get_opt(name).await.doing(what)?.map(Arc::new))
}

fn selector(set: &StatefulSet) -> Option<Labels> {
    set.spec.as_ref()?.selector.match_labels.clone()
}

/// A key for each replica: the one that it has, or else a new one. Pods mount it as long as they are there.
async fn keys(
    recorder: &Recorder,
    context: &Context,
    tailnet: &dyn TailnetApi,
    secrets: &BTreeMap<String, Arc<Secret>>,
) -> Result<Vec<SecretString>, Error> {
    let name = recorder.name_any();
    let own = [TAG.to_owned()];
    let tags = if recorder.spec.tags.is_empty() { &own[..] } else { &recorder.spec.tags };
    let replicas = usize::try_from(recorder.spec.replicas).unwrap_or(0);
    let keys = Keys { context, tailnet, secrets, replicas, tags };
    let mut all = Vec::with_capacity(replicas);
    for ordinal in 0..replicas {
        let of_key = key_name(&name, ordinal);
        let needed = keys.of(&name, &of_key, &secret_name(&name, ordinal)).await?;
        let key = match needed {
            Some(key) => key,
            // It has logged in. Without its Secret its pod could not start again.
            None => match stored(context, secrets, &of_key).await? {
                Some(key) => key,
                None => tailnet.create_key(&KeyRequest::for_proxy(tags)).await?.secret,
            },
        };
        all.push(key);
    }
    Ok(all)
}

async fn stored(
    context: &Context,
    secrets: &BTreeMap<String, Arc<Secret>>,
    name: &str,
) -> Result<Option<SecretString>, Error> {
    let key = |secret: &Secret| {
        text(secret, AUTH_KEY).filter(|key| !key.is_empty()).map(SecretString::from)
    };
    if let Some(key) = secrets.get(name).and_then(|secret| key(secret)) {
        return Ok(Some(key));
    }
    let namespace = &context.settings.namespace;
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let there = api.get_opt(name).await.doing(|| format!("read Secret {namespace}/{name}"))?;
    Ok(there.as_ref().and_then(key))
}

async fn write(
    context: &Context,
    parent: &Parent,
    secrets: &BTreeMap<String, Arc<Secret>>,
    set: Option<&StatefulSet>,
    objects: &RecordingObjects,
) -> Result<(), Error> {
    fn live<K: kube::runtime::reflector::Lookup<DynamicType = ()> + Clone + 'static>(
        store: &Store<K>,
        name: &str,
        namespace: &str,
    ) -> Option<Arc<K>> {
        store.get(&ObjectRef::new(name).within(namespace))
    }
    let (apply, cache) = (&context.applier, &context.cache);
    let (name, namespace) = (parent.name.as_str(), context.settings.namespace.as_str());
    let account = live(&cache.accounts, &objects.account.name_any(), namespace);
    apply.apply(&objects.account, account.as_deref()).await?;
    apply.apply(&objects.role, live(&cache.roles, name, namespace).as_deref()).await?;
    apply.apply(&objects.binding, live(&cache.bindings, name, namespace).as_deref()).await?;
    for secret in objects.states.iter().chain(&objects.keys) {
        apply.apply(secret, secrets.get(&secret.name_any()).map(AsRef::as_ref)).await?;
    }
    apply.apply(&objects.stateful_set, set).await.map(drop)
}

/// Replicas that are too many, with their devices; ServiceAccounts of earlier names.
async fn orphans(
    context: &Context,
    tailnet: &dyn TailnetApi,
    parent: &Parent,
    secrets: &BTreeMap<String, Arc<Secret>>,
    objects: &RecordingObjects,
) -> Result<(), Error> {
    let wanted: Vec<_> =
        objects.states.iter().chain(&objects.keys).map(ResourceExt::name_any).collect();
    for (name, secret) in secrets.iter().filter(|(name, _)| !wanted.contains(name)) {
        if let Some(device) = device_id(secret) {
            tailnet.delete_device(&device).await?;
        }
        delete::<Secret>(context, name).await?;
    }
    for account in labelled(&context.cache.accounts, &parent.child_labels()) {
        let name = account.name_any();
        if name != objects.account.name_any() {
            delete::<ServiceAccount>(context, &name).await?;
        }
    }
    Ok(())
}

/// What users are told of a replica's device, once it has logged in.
async fn device(tailnet: &dyn TailnetApi, state: &Secret) -> Result<Option<RecorderDevice>, Error> {
    let Some(id) = device_id(state) else { return Ok(None) };
    let device = match tailnet.device(&id).await {
        Ok(device) => device,
        // Somebody deleted it, and the recorder will find out.
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let login = text(state, "_current-profile").and_then(|current| text(state, &current));
    let login = login.and_then(|profile| {
        let profile: serde_json::Value = serde_json::from_str(&profile).ok()?;
        profile.pointer("/Config/UserProfile/LoginName")?.as_str().map(str::to_owned)
    });
    Ok(Some(RecorderDevice {
        hostname: device.hostname,
        tailnet_ips: device.addresses.iter().map(ToString::to_string).collect(),
        url: login
            .map(|login| login.trim_end_matches('.').to_owned())
            .filter(|login| !login.is_empty())
            .map(|login| format!("https://{login}")),
    }))
}
