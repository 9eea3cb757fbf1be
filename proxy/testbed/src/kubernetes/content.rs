//! Objects as a person or an operator would see and change them, Secrets above all.

use std::{collections::BTreeMap, fmt, time::Duration};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, TypeMeta,
        WatchEvent, WatchParams,
    },
    core::GroupVersionKind,
};
use serde_json::{Value, json};

use super::ApiServer;

/// What a Secret holds. Values are not in the `Debug` output.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// Key and value; bytes that are no text are replaced.
    pub data: BTreeMap<String, String>,
    /// Moves with every change.
    pub version: String,
}

impl Content {
    /// The value of a key; empty if it is not there.
    pub fn text(&self, key: &str) -> &str {
        self.data.get(key).map_or("", String::as_str)
    }

    fn of(secret: Secret) -> Self {
        let text = |(key, value): (String, k8s_openapi::ByteString)| {
            (key, String::from_utf8_lossy(&value.0).into_owned())
        };
        Self {
            data: secret.data.unwrap_or_default().into_iter().map(text).collect(),
            version: secret.metadata.resource_version.unwrap_or_default(),
        }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.data.keys().collect();
        f.debug_struct("Content").field("version", &self.version).field("keys", &keys).finish()
    }
}

impl ApiServer {
    /// Makes or changes an object, given as a manifest with `apiVersion`, `kind` and `metadata` (`name`, and `namespace` if
    /// it has one).
    pub fn apply(&self, manifest: &Value) -> Result<DynamicObject> {
        let types: TypeMeta =
            serde_json::from_value(manifest.clone()).context("a manifest without its kind")?;
        let metadata = |field: &str| manifest.pointer(&format!("/metadata/{field}"))?.as_str();
        let name = metadata("name").context("a manifest without a name")?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
        self.admin(async |client| {
            let api: Api<DynamicObject> = match metadata("namespace") {
                Some(namespace) => Api::namespaced_with(client, namespace, &resource),
                None => Api::all_with(client, &resource),
            };
            let params = PatchParams::apply("testbed").force();
            Ok(api.patch(name, &params, &Patch::Apply(manifest)).await?)
        })
        .with_context(|| format!("apply {} {name}", types.kind))
    }

    /// Makes a Secret with this content, or gives it this content.
    pub fn make_secret(&self, namespace: &str, name: &str, data: &[(&str, &str)]) -> Result<()> {
        let data: BTreeMap<_, _> = data.iter().copied().collect();
        self.apply(&json!({
            "apiVersion": "v1", "kind": "Secret", "stringData": data,
            "metadata": { "name": name, "namespace": namespace },
        }))
        .map(drop)
    }

    /// What a Secret holds, if it is there.
    pub fn secret(&self, namespace: &str, name: &str) -> Result<Option<Content>> {
        self.admin(async |client| {
            let api: Api<Secret> = Api::namespaced(client, namespace);
            Ok(api.get_opt(name).await?.map(Content::of))
        })
    }

    /// Sets keys of a Secret as somebody else would, one request for all; `None` removes.
    pub fn change_secret(
        &self,
        namespace: &str,
        name: &str,
        changes: &[(&str, Option<&str>)],
    ) -> Result<Content> {
        let bytes = |value: &str| k8s_openapi::ByteString(value.as_bytes().to_vec());
        let changes: BTreeMap<_, _> =
            changes.iter().map(|(key, value)| (*key, value.map(bytes))).collect();
        self.admin(async |client| {
            let api: Api<Secret> = Api::namespaced(client, namespace);
            let patch = Patch::Merge(json!({ "data": changes }));
            Ok(Content::of(api.patch(name, &PatchParams::default(), &patch).await?))
        })
    }

    /// Deletes a Secret.
    pub fn delete_secret(&self, namespace: &str, name: &str) -> Result<()> {
        self.admin(async |client| {
            let api: Api<Secret> = Api::namespaced(client, namespace);
            Ok(api.delete(name, &DeleteParams::default()).await.map(drop)?)
        })
    }

    /// Deletes a ConfigMap.
    pub fn delete_config_map(&self, namespace: &str, name: &str) -> Result<()> {
        self.admin(async |client| {
            let api: Api<ConfigMap> = Api::namespaced(client, namespace);
            Ok(api.delete(name, &DeleteParams::default()).await.map(drop)?)
        })
    }

    /// Watches a Secret until what it holds is so, as it may be already; returns that.
    pub fn wait_secret(
        &self,
        (namespace, name): (&str, &str),
        within: Duration,
        what: &str,
        mut is_so: impl FnMut(&Content) -> bool + Send,
    ) -> Result<Content> {
        let mut last = Content::default();
        let found = self.admin(async |client| {
            let api: Api<Secret> = Api::namespaced(client, namespace);
            let one = format!("metadata.name={name}");
            let wait = async {
                let found = api.list(&ListParams::default().fields(&one)).await?;
                let version = found.metadata.resource_version.unwrap_or_default();
                if let Some(secret) = found.items.into_iter().next() {
                    last = Content::of(secret);
                    if is_so(&last) {
                        return Ok(true);
                    }
                }
                let events = api.watch(&WatchParams::default().fields(&one), &version).await?;
                pin_mut!(events);
                while let Some(event) = events.next().await {
                    if let WatchEvent::Added(secret) | WatchEvent::Modified(secret) = event? {
                        last = Content::of(secret);
                        if is_so(&last) {
                            return Ok(true);
                        }
                    }
                }
                Ok(false)
            };
            tokio::time::timeout(within, wait).await.unwrap_or(Ok(false))
        })?;
        if !found {
            bail!("{what}: not seen within {within:?} in Secret {namespace}/{name}: {last:?}");
        }
        Ok(last)
    }
}
