//! Auth keys: one for each replica that has none and has not logged in.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use secrecy::{ExposeSecret as _, SecretString};

use super::{Children, device::text};
use crate::{
    build::{Node, auth_key, recorder::AUTH_KEY, secret_name},
    context::Context,
    error::{Error, ResultExt as _},
    tailnet_api::{DeviceId, KeyRequest, TailnetApi},
};

/// What a replica needs to log in.
enum Need {
    /// Nothing: it has.
    Nothing,
    /// What it was given; it has not logged in yet.
    This(SecretString),
    /// A key.
    New,
    /// Another key than the one that failed. The device with this ID, if any, is of no more use.
    Another(Option<DeviceId>),
}

/// The replicas with these names. Makes keys for those that need one.
pub(in crate::controller) async fn nodes(
    context: &Context,
    tailnet: &dyn TailnetApi,
    children: &Children,
    hostnames: Vec<String>,
    tags: &[String],
) -> Result<Vec<Node>, Error> {
    let replicas = hostnames.len();
    let keys = Keys { context, tailnet, secrets: &children.secrets, replicas, tags };
    let mut nodes = Vec::with_capacity(replicas);
    for (ordinal, hostname) in hostnames.into_iter().enumerate() {
        let name = secret_name(children.base(), ordinal);
        let auth_key = keys.of(children.base(), &name, &name).await?;
        nodes.push(Node { hostname, auth_key });
    }
    Ok(nodes)
}

/// The keys of a parent's replicas.
pub(in crate::controller) struct Keys<'a> {
    pub(in crate::controller) context: &'a Context,
    pub(in crate::controller) tailnet: &'a dyn TailnetApi,
    /// What is known of the Secrets.
    pub(in crate::controller) secrets: &'a BTreeMap<String, Arc<Secret>>,
    /// How many replicas there are.
    pub(in crate::controller) replicas: usize,
    /// The tags of their devices.
    pub(in crate::controller) tags: &'a [String],
}

impl Keys<'_> {
    /// What a replica logs in with, if it has not. `config` and `state` are its Secrets, or twice the same.
    pub(in crate::controller) async fn of(
        &self,
        parent: &str,
        config: &str,
        state: &str,
    ) -> Result<Option<SecretString>, Error> {
        let known = |name: &str| self.secrets.get(name).map(AsRef::as_ref);
        let mut need = need(known(config), known(state));
        if let Need::New | Need::Another(_) = need {
            // The cache may not know yet of the Secret, or of the key, of the last time.
            let there = self.read(state).await?;
            need = if config == state {
                self::need(there.as_ref(), there.as_ref())
            } else {
                self::need(self.read(config).await?.as_ref(), there.as_ref())
            };
        }
        match need {
            Need::Nothing => return Ok(None),
            Need::This(key) => return Ok(Some(key)),
            Need::New => {}
            Need::Another(device) => {
                let reissues = &self.context.reissues;
                let too_many = |wait| Error::TooManyKeys { parent: parent.to_owned(), wait };
                reissues.take(parent, self.replicas, Instant::now()).map_err(too_many)?;
                if let Some(device) = device {
                    self.tailnet.delete_device(&device).await?;
                }
            }
        }
        let key = self.tailnet.create_key(&KeyRequest::for_proxy(self.tags)).await?;
        tracing::info!(secret = %config, key = %key.id, tags = ?self.tags, "made an auth key");
        Ok(Some(key.secret))
    }

    async fn read(&self, name: &str) -> Result<Option<Secret>, Error> {
        let namespace = &self.context.settings.namespace;
        let api: Api<Secret> = Api::namespaced(self.context.client.clone(), namespace);
        api.get_opt(name).await.doing(|| format!("read Secret {namespace}/{name}"))
    }
}

fn need(config: Option<&Secret>, state: Option<&Secret>) -> Need {
    let files = config.and_then(|config| config.data.as_ref()).into_iter().flatten();
    let files = files.filter(|(name, _)| name.starts_with("cap-"));
    let key = files.filter_map(|(_, file)| auth_key(&file.0)).next_back();
    // A recorder has no configuration.
    let bare = || text(config?, AUTH_KEY).filter(|key| !key.is_empty()).map(SecretString::from);
    let key = key.or_else(bare);
    let Some(state) = state else { return key.map_or(Need::New, Need::This) };
    let device = text(state, "device_id").filter(|id| !id.is_empty()).map(DeviceId::new);
    // The key that failed, which may be none; the request is withdrawn once another one is there.
    if let Some(failed) = text(state, "reissue_authkey") {
        return match key {
            Some(key) if key.expose_secret() != failed => Need::This(key),
            _ => Need::Another(device),
        };
    }
    let has_state = state.data.iter().flatten().any(|(name, _)| name.starts_with("profile-"));
    match key {
        _ if device.is_some() => Need::Nothing,
        Some(key) => Need::This(key),
        None if has_state => Need::Nothing,
        None => Need::New,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

    use serde_json::json;

    use super::*;

    fn needed(data: serde_json::Value) -> String {
        let secret: Secret =
            serde_json::from_value(json!({ "metadata": {}, "stringData": data })).unwrap();
        let data = secret.string_data.clone().unwrap_or_default().into_iter();
        let data = data.map(|(key, value)| (key, k8s_openapi::ByteString(value.into_bytes())));
        let secret = Secret { data: Some(data.collect()), string_data: None, ..secret };
        match need(Some(&secret), Some(&secret)) {
            Need::Nothing => "nothing".into(),
            Need::This(key) => key.expose_secret().to_owned(),
            Need::New => "new".into(),
            Need::Another(device) => {
                format!("another {}", device.map(|id| id.to_string()).unwrap_or_default())
            }
        }
    }

    #[test]
    fn a_key_is_made_once_kept_until_it_was_used_and_made_anew_on_request() {
        assert!(matches!(need(None, None), Need::New));
        let config = r#"{"Version":"alpha0","AuthKey":"k1"}"#;
        let without = r#"{"Version":"alpha0"}"#;
        assert_eq!(needed(json!({ "cap-107.hujson": config })), "k1");
        assert_eq!(needed(json!({ "cap-107.hujson": config, "device_id": "n1" })), "nothing");
        assert_eq!(needed(json!({ "cap-107.hujson": without, "device_id": "n1" })), "nothing");
        // Logged in, and the proxy has not told who it is yet.
        assert_eq!(needed(json!({ "cap-107.hujson": without, "profile-1": "{}" })), "nothing");
        assert_eq!(needed(json!({ "cap-107.hujson": without })), "new");
        for failed in ["k1", ""] {
            let data =
                json!({ "cap-107.hujson": without, "device_id": "n1", "reissue_authkey": failed });
            assert_eq!(needed(data), "another n1");
        }
        let same = json!({ "cap-107.hujson": config, "device_id": "n1", "reissue_authkey": "k1" });
        assert_eq!(needed(same), "another n1");
        // Granted, and not taken yet.
        let other = json!({ "cap-107.hujson": config, "device_id": "n1", "reissue_authkey": "k0" });
        assert_eq!(needed(other), "k1");
    }
}
