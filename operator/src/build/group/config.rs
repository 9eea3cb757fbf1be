//! The configuration of a replica's tailscaled, in upstream's format `alpha0`, and what is kept of the one before.

use std::net::SocketAddr;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Group, Replica};

/// The key of the configuration: the least capability version that may read it is in its name.
pub const CONFIG: &str = "cap-106.hujson";

#[derive(Serialize)]
struct Config<'a> {
    #[serde(rename = "Version")]
    version: &'static str,
    #[serde(rename = "Locked")]
    locked: bool,
    #[serde(rename = "ServerURL")]
    server_url: &'a str,
    #[serde(rename = "AuthKey", skip_serializing_if = "Option::is_none")]
    auth_key: Option<&'a str>,
    #[serde(rename = "Hostname")]
    hostname: &'a str,
    #[serde(rename = "acceptDNS")]
    accept_dns: bool,
    #[serde(rename = "acceptRoutes")]
    accept_routes: bool,
    #[serde(rename = "AdvertiseServices", skip_serializing_if = "<[_]>::is_empty")]
    advertised: &'a [String],
    #[serde(rename = "StaticEndpoints", skip_serializing_if = "<[_]>::is_empty")]
    endpoints: &'a [SocketAddr],
}

/// The file as it is to be: as it is there, if that says the same.
pub(super) fn file(group: &Group, replica: &Replica) -> ByteString {
    let class = group.class.as_ref().and_then(|class| class.tailscale.as_ref());
    let config = Config {
        version: "alpha0",
        locked: false,
        server_url: &group.login_server,
        auth_key: replica.auth_key.as_ref().map(secrecy::SecretString::expose_secret),
        hostname: &replica.hostname,
        accept_dns: false,
        accept_routes: class.and_then(|class| class.accept_routes).unwrap_or(false),
        advertised: &replica.advertised,
        endpoints: &replica.endpoints,
    };
    // Strings, booleans and lists of strings always have a JSON form.
    let wanted = serde_json::to_value(&config).unwrap_or_default();
    let same = |file: &&ByteString| {
        serde_json::from_slice::<Value>(&file.0).is_ok_and(|there| there == wanted)
    };
    match replica.file.as_ref().filter(same) {
        Some(file) => file.clone(),
        None => ByteString(serde_json::to_vec(&config).unwrap_or_default()),
    }
}

/// What of a configuration is not decided here.
#[derive(Clone, Debug, Default, Eq, PartialEq, Deserialize)]
pub struct Stored {
    /// The Tailscale Services that the replica offers.
    #[serde(rename = "AdvertiseServices", default)]
    pub advertised: Option<Vec<String>>,
    /// Its fixed addresses, in an order that is kept.
    #[serde(rename = "StaticEndpoints", default)]
    pub endpoints: Option<Vec<SocketAddr>>,
}

/// What is there, upstream's too. Of what makes no sense nothing is kept.
pub fn stored(secret: &Secret) -> (Stored, Option<ByteString>) {
    let file = secret.data.as_ref().and_then(|data| data.get(CONFIG)).cloned();
    let stored = file.as_ref().and_then(|file| serde_json::from_slice(&file.0).ok());
    (stored.unwrap_or_default(), file)
}
