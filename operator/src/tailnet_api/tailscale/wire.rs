//! The API's JSON. What we do not use is not read; lists may be absent or `null`, as Go writes empty ones.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::tailnet_api::{
    AuthKey, Device, DeviceId, Failure, KeyInfo, KeyRequest, VipService,
    http::{Answer, parse},
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireKey {
    id: String,
    #[serde(default)]
    key: String,
    #[serde(default)]
    key_type: String,
    #[serde(default, deserialize_with = "nullable")]
    description: String,
    #[serde(default, deserialize_with = "time")]
    created: Option<Timestamp>,
    #[serde(default, deserialize_with = "time")]
    expires: Option<Timestamp>,
    #[serde(default, deserialize_with = "time")]
    revoked: Option<Timestamp>,
    #[serde(default)]
    invalid: bool,
    #[serde(default)]
    capabilities: Capabilities,
}

#[derive(Default, Deserialize)]
struct Capabilities {
    #[serde(default)]
    devices: DeviceCapabilities,
}

#[derive(Default, Deserialize)]
struct DeviceCapabilities {
    #[serde(default)]
    create: Create,
}

#[derive(Default, Deserialize)]
struct Create {
    #[serde(default, deserialize_with = "nullable")]
    tags: Vec<String>,
}

#[derive(Deserialize)]
struct WireKeys {
    #[serde(default, deserialize_with = "nullable")]
    keys: Vec<WireKey>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireDevice {
    /// The stable one; `id` is another number for the same device.
    node_id: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    hostname: String,
    #[serde(default, deserialize_with = "nullable")]
    addresses: Vec<String>,
    #[serde(default, deserialize_with = "nullable")]
    tags: Vec<String>,
    #[serde(default)]
    authorized: bool,
    connected_to_control: Option<bool>,
}

#[derive(Deserialize)]
struct WireDevices {
    #[serde(default, deserialize_with = "nullable")]
    devices: Vec<WireDevice>,
}

#[derive(Deserialize)]
struct WireService {
    name: String,
    #[serde(default, deserialize_with = "nullable")]
    addrs: Vec<IpAddr>,
    #[serde(default, deserialize_with = "nullable")]
    comment: String,
    #[serde(default, deserialize_with = "nullable")]
    annotations: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "nullable")]
    ports: Vec<String>,
    #[serde(default, deserialize_with = "nullable")]
    tags: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireServices {
    #[serde(default, deserialize_with = "nullable")]
    vip_services: Vec<WireService>,
}

/// `null` is the default.
fn nullable<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// A time; `null`, an empty text and Go's zero time are none. So is what is no time: nothing is decided by it.
fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<String>::deserialize(from)?.unwrap_or_default();
    Ok(text.parse().ok().filter(|time: &Timestamp| time.as_second() > 0))
}

impl From<WireDevice> for Device {
    fn from(wire: WireDevice) -> Self {
        let mut addresses: Vec<IpAddr> =
            wire.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        Self {
            id: DeviceId::new(wire.node_id),
            name: wire.name.trim_end_matches('.').to_owned(),
            hostname: wire.hostname,
            addresses,
            tags: wire.tags,
            authorized: wire.authorized,
            connected: wire.connected_to_control,
        }
    }
}

/// `None` if its name is none that we could ask for.
fn known(wire: WireService, version: Option<String>) -> Option<VipService> {
    Some(VipService {
        name: wire.name.parse().ok()?,
        addresses: wire.addrs,
        comment: wire.comment,
        annotations: wire.annotations,
        ports: wire.ports,
        tags: wire.tags,
        version,
    })
}

pub(in crate::tailnet_api) fn made_key(answer: &Answer) -> Result<AuthKey, Failure> {
    let wire: WireKey = answer.parse()?;
    if wire.key.is_empty() {
        return Err(Failure::Malformed("key: a new auth key without its secret".into()));
    }
    Ok(AuthKey { id: wire.id, secret: wire.key.into(), expires: wire.expires })
}

/// The auth keys of a list, which also names OAuth clients and API tokens.
pub(in crate::tailnet_api) fn keys(text: &[u8]) -> Result<Vec<KeyInfo>, Failure> {
    let wire: WireKeys = parse(text)?;
    let auth = wire.keys.into_iter().filter(|key| matches!(key.key_type.as_str(), "" | "auth"));
    Ok(auth
        .map(|key| KeyInfo {
            id: key.id,
            tags: key.capabilities.devices.create.tags,
            description: key.description,
            created: key.created,
            expires: key.expires,
            usable: !key.invalid && key.revoked.is_none(),
        })
        .collect())
}

pub(in crate::tailnet_api) fn device(text: &[u8]) -> Result<Device, Failure> {
    parse::<WireDevice>(text).map(Into::into)
}

pub(in crate::tailnet_api) fn devices(text: &[u8]) -> Result<Vec<Device>, Failure> {
    Ok(parse::<WireDevices>(text)?.devices.into_iter().map(Into::into).collect())
}

pub(in crate::tailnet_api) fn service(answer: &Answer) -> Result<VipService, Failure> {
    let wire: WireService = answer.parse()?;
    let name = wire.name.clone();
    known(wire, answer.etag.clone())
        .ok_or_else(|| Failure::Malformed(format!("name: {name:?} is no Service").into()))
}

/// Those of a list that we could ask for; names that are none of ours are not our concern.
pub(in crate::tailnet_api) fn services(text: &[u8]) -> Result<Vec<VipService>, Failure> {
    let wire: WireServices = parse(text)?;
    Ok(wire.vip_services.into_iter().filter_map(|service| known(service, None)).collect())
}

/// What a key is to give, as the API takes it. What is left to the server is not said.
pub(in crate::tailnet_api) fn key_request(request: &KeyRequest) -> Value {
    let mut body = Map::new();
    let create = json!({
        "reusable": request.reusable,
        "ephemeral": request.ephemeral,
        "preauthorized": request.preauthorized,
        "tags": request.tags,
    });
    body.insert("capabilities".to_owned(), json!({ "devices": { "create": create } }));
    if let Some(expiry) = request.expiry {
        body.insert("expirySeconds".to_owned(), expiry.as_secs().into());
    }
    if !request.description.is_empty() {
        body.insert("description".to_owned(), request.description.as_str().into());
    }
    body.into()
}

/// A Service as the API takes it.
pub(in crate::tailnet_api) fn service_request(service: &VipService) -> Value {
    json!({
        "name": service.name.as_str(),
        "addrs": service.addresses,
        "comment": service.comment,
        "annotations": service.annotations,
        "ports": service.ports,
        "tags": service.tags,
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::{device, devices, keys, services};

    #[test]
    fn a_device_is_read_as_the_api_writes_it() {
        let text = br#"{"addresses":["fd7a:115c:a1e0::1","100.64.0.1","?"],"id":"92960230385",
            "nodeId":"n292kg92CNTRL","name":"pangolin.tail1234.ts.net","hostname":"pangolin","tags":null,
            "authorized":true,"connectedToControl":false,"lastSeen":"2022-04-15T13:25:21Z"}"#;
        let device = device(text).unwrap();
        assert_eq!(device.id.as_str(), "n292kg92CNTRL");
        assert_eq!(
            device.addresses,
            ["100.64.0.1", "fd7a:115c:a1e0::1"].map(|a| a.parse::<IpAddr>().unwrap())
        );
        assert_eq!(device.connected, Some(false));
        assert!(device.tags.is_empty());
    }

    #[test]
    fn what_is_missing_is_named_by_its_place() {
        let failure = devices(br#"{"devices":[{"nodeId":"a"},{"id":"1"}]}"#).unwrap_err();
        assert!(failure.to_string().contains("devices[1]"), "{failure}");
        assert!(devices(br#"{"devices":null}"#).unwrap().is_empty());
        assert!(devices(b"<html>").is_err());
    }

    #[test]
    fn keys_of_other_kinds_are_not_auth_keys() {
        let text = br#"{"keys":[{"id":"kAuth","keyType":"auth","expires":"2030-01-01T00:00:00Z",
            "revoked":"0001-01-01T00:00:00Z","capabilities":{"devices":{"create":{"tags":["tag:k8s"]}}}},
            {"id":"kClient","keyType":"client"},{"id":"kOld","invalid":true,"expires":""}]}"#;
        let keys = keys(text).unwrap();
        let ids: Vec<_> = keys.iter().map(|key| (key.id.as_str(), key.usable)).collect();
        assert_eq!(ids, [("kAuth", true), ("kOld", false)]);
        assert_eq!(keys[0].tags, ["tag:k8s"]);
        assert_eq!(keys[0].expires.unwrap().to_string(), "2030-01-01T00:00:00Z");
        assert_eq!(keys[1].expires, None);
    }

    #[test]
    fn a_list_of_services_leaves_out_names_that_nobody_could_ask_for() {
        let text =
            br#"{"vipServices":[{"name":"svc:web","addrs":["100.100.0.1"]},{"name":"odd"}]}"#;
        let services = services(text).unwrap();
        assert_eq!(services.len(), 1);
        assert_eq!(services[0].name.label(), "web");
    }
}
