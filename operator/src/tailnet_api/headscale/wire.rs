//! The API's JSON: protobuf's, with camel case, numbers of 64 bits as text, and no fields that have their default.

use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::tailnet_api::{
    AuthKey, Device, DeviceId, Failure, KeyInfo, KeyRequest, Policy,
    http::{Answer, parse},
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireKey {
    #[serde(deserialize_with = "number")]
    id: String,
    #[serde(default)]
    key: String,
    #[serde(default)]
    reusable: bool,
    #[serde(default)]
    used: bool,
    created_at: Option<Timestamp>,
    expiration: Option<Timestamp>,
    #[serde(default)]
    acl_tags: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MadeKey {
    pre_auth_key: WireKey,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Keys {
    #[serde(default)]
    pre_auth_keys: Vec<WireKey>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireNode {
    #[serde(deserialize_with = "number")]
    id: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    given_name: String,
    #[serde(default)]
    ip_addresses: Vec<String>,
    /// From 0.28 on.
    #[serde(default)]
    tags: Option<Vec<String>>,
    /// Before: those that an administrator set, and those that the policy lets the node have.
    #[serde(default)]
    forced_tags: Vec<String>,
    #[serde(default)]
    valid_tags: Vec<String>,
    #[serde(default)]
    online: bool,
}

#[derive(Deserialize)]
struct OneNode {
    node: WireNode,
}

#[derive(Deserialize)]
struct Nodes {
    #[serde(default)]
    nodes: Vec<WireNode>,
}

#[derive(Deserialize)]
struct WireUser {
    #[serde(deserialize_with = "number")]
    id: String,
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Users {
    #[serde(default)]
    users: Vec<WireUser>,
}

#[derive(Deserialize)]
struct WirePolicy {
    #[serde(default)]
    policy: String,
}

/// A number as text, or as a number.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Text(String),
        Number(u64),
    }
    Ok(match Number::deserialize(from)? {
        Number::Text(text) => text,
        Number::Number(number) => number.to_string(),
    })
}

impl From<WireNode> for Device {
    fn from(wire: WireNode) -> Self {
        let mut addresses: Vec<IpAddr> =
            wire.ip_addresses.iter().filter_map(|text| text.parse().ok()).collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        let mut tags = wire.tags.unwrap_or_default();
        for tag in wire.forced_tags.into_iter().chain(wire.valid_tags) {
            if !tags.contains(&tag) {
                tags.push(tag);
            }
        }
        let name = if wire.given_name.is_empty() { &wire.name } else { &wire.given_name };
        Self {
            id: DeviceId::new(wire.id),
            name: name.clone(),
            hostname: wire.name,
            addresses,
            tags,
            // Headscale has no device approval.
            authorized: true,
            connected: Some(wire.online),
        }
    }
}

/// What a key is to give. Whether a device must be approved is not asked: there is no approval.
pub(in crate::tailnet_api) fn key_request(
    request: &KeyRequest,
    expiration: &Timestamp,
    user: Option<&str>,
) -> Value {
    let mut body = Map::new();
    body.insert("reusable".to_owned(), request.reusable.into());
    body.insert("ephemeral".to_owned(), request.ephemeral.into());
    body.insert("expiration".to_owned(), expiration.to_string().into());
    body.insert("aclTags".to_owned(), request.tags.clone().into());
    if let Some(user) = user {
        body.insert("user".to_owned(), user.into());
    }
    body.into()
}

pub(in crate::tailnet_api) fn made_key(answer: &Answer) -> Result<AuthKey, Failure> {
    let key = answer.parse::<MadeKey>()?.pre_auth_key;
    if key.key.is_empty() {
        return Err(Failure::Malformed("preAuthKey.key: a new key without its secret".into()));
    }
    Ok(AuthKey { id: key.id, secret: key.key.into(), expires: key.expiration })
}

pub(in crate::tailnet_api) fn keys(text: &[u8]) -> Result<Vec<KeyInfo>, Failure> {
    let now = Timestamp::now();
    let info = |key: WireKey| KeyInfo {
        id: key.id,
        tags: key.acl_tags,
        description: String::new(),
        created: key.created_at,
        expires: key.expiration,
        usable: (key.reusable || !key.used) && key.expiration.is_none_or(|end| end > now),
    };
    Ok(parse::<Keys>(text)?.pre_auth_keys.into_iter().map(info).collect())
}

pub(in crate::tailnet_api) fn node(text: &[u8]) -> Result<Device, Failure> {
    Ok(parse::<OneNode>(text)?.node.into())
}

pub(in crate::tailnet_api) fn nodes(text: &[u8]) -> Result<Vec<Device>, Failure> {
    Ok(parse::<Nodes>(text)?.nodes.into_iter().map(Into::into).collect())
}

/// The number of the user of that name.
pub(in crate::tailnet_api) fn user(text: &[u8], name: &str) -> Result<Option<String>, Failure> {
    let users = parse::<Users>(text)?.users;
    Ok(users.into_iter().find(|user| user.name == name).map(|user| user.id))
}

pub(in crate::tailnet_api) fn policy(text: &[u8]) -> Result<Policy, Failure> {
    Ok(Policy { text: parse::<WirePolicy>(text)?.policy, version: None })
}

#[cfg(test)]
mod tests {
    use super::{keys, node, nodes, user};

    #[test]
    fn tags_of_old_and_new_versions_are_read() {
        let old =
            br#"{"node":{"id":"7","name":"web-0","givenName":"web","ipAddresses":["100.64.0.7"],
            "forcedTags":["tag:k8s"],"validTags":["tag:k8s","tag:web"],"online":true}}"#;
        let device = node(old).unwrap();
        assert_eq!((device.id.as_str(), device.name.as_str()), ("7", "web"));
        assert_eq!(device.hostname, "web-0");
        assert_eq!(device.tags, ["tag:k8s", "tag:web"]);
        let new = br#"{"nodes":[{"id":8,"name":"web","tags":["tag:k8s"]}]}"#;
        assert_eq!(nodes(new).unwrap()[0].tags, ["tag:k8s"]);
        assert!(nodes(b"{}").unwrap().is_empty());
    }

    #[test]
    fn a_key_that_was_used_or_has_expired_is_not_usable() {
        let text =
            br#"{"preAuthKeys":[{"id":"1","used":true},{"id":"2","used":true,"reusable":true},
            {"id":"3","expiration":"2001-01-01T00:00:00Z"}]}"#;
        let usable: Vec<_> = keys(text).unwrap().iter().map(|key| key.usable).collect();
        assert_eq!(usable, [false, true, false]);
    }

    #[test]
    fn a_user_is_found_by_the_whole_name() {
        let text = br#"{"users":[{"id":"1","name":"ops-old"},{"id":"2","name":"ops"}]}"#;
        assert_eq!(user(text, "ops").unwrap().as_deref(), Some("2"));
        assert_eq!(user(text, "op").unwrap(), None);
    }
}
