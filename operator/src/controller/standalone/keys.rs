//! Auth keys: one for each replica that has none and has not logged in.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use secrecy::{ExposeSecret as _, SecretString};

use super::{Children, device::text};
use crate::{
    build::{Node, auth_key, secret_name},
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
    /// A new key. The device with this ID, if any, is of no more use.
    New(Option<DeviceId>),
}

/// The replicas with these names. Makes keys for those that need one.
pub(in crate::controller) async fn nodes(
    context: &Context,
    tailnet: &dyn TailnetApi,
    children: &Children,
    hostnames: Vec<String>,
    tags: &[String],
) -> Result<Vec<Node>, Error> {
    let mut nodes = Vec::with_capacity(hostnames.len());
    for (ordinal, hostname) in hostnames.into_iter().enumerate() {
        let name = secret_name(children.base(), ordinal);
        let mut need = need(children.secret(&name).map(AsRef::as_ref));
        if let Need::New(_) = need {
            // The cache may not know yet of the Secret, or of the key, of the last time.
            let api: Api<Secret> =
                Api::namespaced(context.client.clone(), &context.settings.namespace);
            let what = || format!("read Secret {}/{name}", context.settings.namespace);
            need = self::need(api.get_opt(&name).await.doing(what)?.as_ref());
        }
        let auth_key = match need {
            Need::Nothing => None,
            Need::This(key) => Some(key),
            Need::New(device) => {
                if let Some(device) = device {
                    tailnet.delete_device(&device).await?;
                }
                let key = tailnet.create_key(&KeyRequest::for_proxy(tags)).await?;
                tracing::info!(secret = %name, key = %key.id, ?tags, "made an auth key");
                Some(key.secret)
            }
        };
        nodes.push(Node { hostname, auth_key });
    }
    Ok(nodes)
}

fn need(secret: Option<&Secret>) -> Need {
    let Some(secret) = secret else { return Need::New(None) };
    let files = secret.data.iter().flatten().filter(|(name, _)| name.starts_with("cap-"));
    let key = files.filter_map(|(_, file)| auth_key(&file.0)).next_back();
    let device = text(secret, "device_id").filter(|id| !id.is_empty()).map(DeviceId::new);
    // The key that failed, which may be none; the request is withdrawn once another one is there.
    if let Some(failed) = text(secret, "reissue_authkey") {
        return match key {
            Some(key) if key.expose_secret() != failed => Need::This(key),
            _ => Need::New(device),
        };
    }
    let has_state = secret.data.iter().flatten().any(|(name, _)| name.starts_with("profile-"));
    match key {
        _ if device.is_some() => Need::Nothing,
        Some(key) => Need::This(key),
        None if has_state => Need::Nothing,
        None => Need::New(None),
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
        match need(Some(&secret)) {
            Need::Nothing => "nothing".into(),
            Need::This(key) => key.expose_secret().to_owned(),
            Need::New(device) => {
                format!("new {}", device.map(|id| id.to_string()).unwrap_or_default())
            }
        }
    }

    #[test]
    fn a_key_is_made_once_kept_until_it_was_used_and_made_anew_on_request() {
        assert!(matches!(need(None), Need::New(None)));
        let config = r#"{"Version":"alpha0","AuthKey":"k1"}"#;
        let without = r#"{"Version":"alpha0"}"#;
        assert_eq!(needed(json!({ "cap-107.hujson": config })), "k1");
        assert_eq!(needed(json!({ "cap-107.hujson": config, "device_id": "n1" })), "nothing");
        assert_eq!(needed(json!({ "cap-107.hujson": without, "device_id": "n1" })), "nothing");
        // Logged in, and the proxy has not told who it is yet.
        assert_eq!(needed(json!({ "cap-107.hujson": without, "profile-1": "{}" })), "nothing");
        assert_eq!(needed(json!({ "cap-107.hujson": without })), "new ");
        for failed in ["k1", ""] {
            let data =
                json!({ "cap-107.hujson": without, "device_id": "n1", "reissue_authkey": failed });
            assert_eq!(needed(data), "new n1");
        }
        let same = json!({ "cap-107.hujson": config, "device_id": "n1", "reissue_authkey": "k1" });
        assert_eq!(needed(same), "new n1");
        // Granted, and not taken yet.
        let other = json!({ "cap-107.hujson": config, "device_id": "n1", "reissue_authkey": "k0" });
        assert_eq!(needed(other), "k1");
    }
}
