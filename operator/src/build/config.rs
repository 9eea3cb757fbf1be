//! The configuration of tailscaled that a proxy logs in with, in upstream's format `alpha0`.
//!
//! A reader refuses fields that it does not know, so there is a file for each version that added some, named after the
//! least capability version that may read it.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::proxy::{Duty, Node, Proxy};

/// Without the app connector.
pub(super) const CAPABILITY_95: &str = "cap-95.hujson";
/// With it.
pub(super) const CAPABILITY_107: &str = "cap-107.hujson";

#[derive(Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "the format has them")]
struct Config<'a> {
    #[serde(rename = "Version")]
    version: &'static str,
    #[serde(rename = "Locked")]
    locked: bool,
    #[serde(rename = "ServerURL", skip_serializing_if = "str::is_empty")]
    server_url: &'a str,
    #[serde(rename = "AuthKey", skip_serializing_if = "Option::is_none")]
    auth_key: Option<&'a str>,
    #[serde(rename = "Hostname")]
    hostname: &'a str,
    #[serde(rename = "acceptDNS")]
    accept_dns: bool,
    #[serde(rename = "acceptRoutes")]
    accept_routes: bool,
    #[serde(rename = "AdvertiseRoutes", skip_serializing_if = "Vec::is_empty")]
    advertise_routes: Vec<String>,
    #[serde(rename = "AppConnector", skip_serializing_if = "Option::is_none")]
    app_connector: Option<AppConnector>,
    #[serde(rename = "NoStatefulFiltering")]
    no_stateful_filtering: bool,
}

#[derive(Clone, Copy, Serialize)]
struct AppConnector {
    #[serde(rename = "Advertise")]
    advertise: bool,
}

/// The files of a replica: name and content.
pub(super) fn files(proxy: &Proxy, node: &Node) -> [(&'static str, String); 2] {
    let routes = match &proxy.duty {
        Duty::Connect(routes) => Some(routes),
        Duty::Carry(_) | Duty::Serve { .. } => None,
    };
    let class = proxy.class.as_ref();
    let accept_routes = class.and_then(|class| class.tailscale.as_ref()?.accept_routes);
    let advertise = routes.is_some_and(|routes| routes.app_connector);
    let config = |app_connector| {
        let config = Config {
            version: "alpha0",
            locked: false,
            server_url: &proxy.login_server,
            auth_key: node.auth_key.as_ref().map(ExposeSecret::expose_secret),
            hostname: &node.hostname,
            accept_dns: false,
            accept_routes: accept_routes.unwrap_or(false),
            advertise_routes: routes
                .map(|routes| routes.advertised.iter().map(ToString::to_string).collect())
                .unwrap_or_default(),
            app_connector,
            no_stateful_filtering: true,
        };
        // Strings, booleans and lists of strings always have a JSON form.
        serde_json::to_string(&config).unwrap_or_default()
    };
    [(CAPABILITY_95, config(None)), (CAPABILITY_107, config(Some(AppConnector { advertise })))]
}

/// The auth key in a file of this kind, upstream's too.
pub fn auth_key(file: &[u8]) -> Option<SecretString> {
    #[derive(Deserialize)]
    struct WithKey {
        #[serde(rename = "AuthKey")]
        auth_key: Option<String>,
    }
    let found = serde_json::from_slice::<WithKey>(file).ok()?.auth_key;
    found.filter(|key| !key.is_empty()).map(SecretString::from)
}
