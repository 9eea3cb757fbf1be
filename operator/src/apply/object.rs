//! Single objects, written only when that changes something.

use std::fmt::Debug;

use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{difference::is_applied, needs_write};
use crate::error::{Error, ResultExt as _};

/// Who we are for the API server when it asks who owns a field.
pub const FIELD_MANAGER: &str = "sluice-operator";

/// Writes objects into one namespace.
#[derive(Clone)]
pub struct Applier {
    client: Client,
    namespace: String,
}

impl Applier {
    /// For the operator's own namespace, where everything is that belongs to proxies.
    pub fn new(client: Client, namespace: impl Into<String>) -> Self {
        Self { client, namespace: namespace.into() }
    }

    /// Makes an object so, unless it is. Fields that others own and that are not wanted otherwise stay. Returns it as the
    /// API server has it.
    pub async fn apply<K>(&self, desired: &K, live: Option<&K>) -> Result<K, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        self.apply_with(&api, desired, live).await
    }

    /// The same for a kind that may be in no namespace.
    pub async fn apply_with<K>(
        &self,
        api: &Api<K>,
        desired: &K,
        live: Option<&K>,
    ) -> Result<K, Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        if let Some(live) = live {
            if Self::is_so(&K::kind(&()), desired, Some(live))? {
                return Ok(live.clone());
            }
            self.take_over(api, desired, live).await?;
        }
        self.patch(api, &K::kind(&()), desired).await
    }

    /// Leaves nothing of the specification that somebody else wrote before us, upstream's operator above all: applying would
    /// leave what is theirs, such as a privileged container. Metadata and data stay: they hold what proxies and others keep.
    async fn take_over<K>(&self, api: &Api<K>, desired: &K, live: &K) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let name = live.name_any();
        let what = || format!("take over {} {}", K::kind(&()), place(live));
        let mut next = serde_json::to_value(live).doing(what)?;
        let wanted = serde_json::to_value(desired).doing(what)?;
        let Some(spec) = wanted.get("spec").filter(|_| !is_applied(&next)) else { return Ok(()) };
        if let Some(fields) = next.as_object_mut() {
            fields.insert("spec".into(), spec.clone());
        }
        let next: K = serde_json::from_value(next).doing(what)?;
        let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
        api.replace(&name, &params, &next).await.doing(what)?;
        tracing::info!(kind = %K::kind(&()), name, "taken over");
        Ok(())
    }

    /// The same for a kind without a type.
    pub async fn apply_dynamic(
        &self,
        api: &Api<DynamicObject>,
        desired: &DynamicObject,
        live: Option<&DynamicObject>,
    ) -> Result<(), Error> {
        let kind = desired.types.as_ref().map_or("", |types| &types.kind);
        if Self::is_so(kind, desired, live)? {
            return Ok(());
        }
        self.patch(api, kind, desired).await.map(drop)
    }

    fn is_so<K>(kind: &str, desired: &K, live: Option<&K>) -> Result<bool, Error>
    where
        K: Resource + Serialize,
    {
        let Some(live) = live else { return Ok(false) };
        let what = || format!("compare {kind} {}", place(desired));
        let wanted = serde_json::to_value(desired).doing(what)?;
        let there = serde_json::to_value(live).doing(what)?;
        Ok(!needs_write(&wanted, &there, FIELD_MANAGER, ""))
    }

    async fn patch<K>(&self, api: &Api<K>, kind: &str, desired: &K) -> Result<K, Error>
    where
        K: Resource + Clone + Debug + Serialize + DeserializeOwned,
    {
        let name = desired.name_any();
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let what = || format!("apply {kind} {}", place(desired));
        let object = api.patch(&name, &params, &Patch::Apply(desired)).await.doing(what)?;
        tracing::info!(kind, name, "applied");
        Ok(object)
    }

    /// Makes the fields of an object's status so that we own, unless they are. `desired` has `status` alone.
    pub async fn apply_status<K>(api: &Api<K>, live: &K, desired: &Value) -> Result<bool, Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let name = live.name_any();
        let what = || format!("write the status of {} {name}", K::kind(&()));
        let there = serde_json::to_value(live).doing(what)?;
        let mut wanted = json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": { "name": name },
        });
        if let (Some(wanted), Some(status)) = (wanted.as_object_mut(), desired.get("status")) {
            wanted.insert("status".into(), status.clone());
        }
        let is_nothing = desired.pointer("/status").is_none_or(|status| *status == json!({}));
        let never_owned = is_nothing && !is_owner(&there);
        if never_owned || !needs_write(&wanted, &there, FIELD_MANAGER, "status") {
            return Ok(false);
        }
        let params = PatchParams::apply(FIELD_MANAGER).force();
        api.patch_status(&name, &params, &Patch::Apply(wanted)).await.doing(what)?;
        Ok(true)
    }
}

/// Where an object is: its name, behind its namespace if it is in one.
fn place<K: Resource>(object: &K) -> String {
    let name = object.name_any();
    object.namespace().map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"))
}

/// Whether we have ever written this status.
fn is_owner(live: &Value) -> bool {
    let entries = live.pointer("/metadata/managedFields").and_then(Value::as_array);
    entries.into_iter().flatten().any(|entry| {
        entry.get("manager").and_then(Value::as_str) == Some(FIELD_MANAGER)
            && entry.get("subresource").and_then(Value::as_str) == Some("status")
    })
}

/// Puts a finalizer on an object, or takes it off; whoever changed the finalizers meanwhile makes this fail as a conflict.
pub async fn set_finalizer<K>(
    api: &Api<K>,
    live: &K,
    finalizer: &str,
    on: bool,
) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    mark_object(api, live, finalizer, on, None).await
}

/// The same, and in the same write an annotation with that value, or without any.
pub async fn mark_object<K>(
    api: &Api<K>,
    live: &K,
    finalizer: &str,
    on: bool,
    annotation: Option<(&str, Option<String>)>,
) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let is_noted = annotation.as_ref().is_none_or(|(key, text)| {
        live.annotations().get(*key).map(String::as_str) == text.as_deref()
    });
    if is_noted && live.finalizers().iter().any(|own| own == finalizer) == on {
        return Ok(());
    }
    let mut finalizers: Vec<_> =
        live.finalizers().iter().filter(|own| *own != finalizer).cloned().collect();
    if on {
        finalizers.push(finalizer.to_owned());
    }
    let name = live.name_any();
    let mut metadata = json!({
        "finalizers": finalizers, "resourceVersion": live.resource_version(), "uid": live.uid(),
    });
    if let (Some((key, text)), Some(metadata)) = (annotation, metadata.as_object_mut()) {
        metadata.insert("annotations".into(), json!({ key: text }));
    }
    let patch = json!({ "metadata": metadata });
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    let what = || format!("change the finalizers of {} {name}", K::kind(&()));
    match api.patch(&name, &params, &Patch::Merge(patch)).await {
        // Gone: nothing keeps it, which is what its finalizers were for.
        Err(kube::Error::Api(status)) if status.code == 404 && !on => Ok(()),
        outcome => outcome.map(drop).doing(what),
    }
}
