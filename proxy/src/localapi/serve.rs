//! What tailscaled serves itself: `ipn.ServeConfig`, read and written. What this version does not know is kept in `rest`, so
//! that writing back what was read loses nothing; numbers that are no integers of 64 bits are kept nearly.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::nullable::{entries, items, nullable};

/// Which serve configuration was read: opaque.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ETag(pub String);

/// The serve configuration of a node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServeConfig {
    /// What happens on a TCP port of the node's own addresses.
    #[serde(
        rename = "TCP",
        deserialize_with = "entries",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub tcp: BTreeMap<u16, TcpPortHandler>,
    /// Handlers by `name:port`.
    #[serde(deserialize_with = "entries", skip_serializing_if = "BTreeMap::is_empty")]
    pub web: BTreeMap<String, WebServerConfig>,
    /// Tailscale Services by name, `svc:` and a DNS label.
    #[serde(deserialize_with = "entries", skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, ServiceConfig>,
    /// The `name:port`s that traffic from the internet may reach.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub allow_funnel: BTreeMap<String, bool>,
    /// Configurations that last as long as a watch of the bus, by its session id.
    #[serde(deserialize_with = "entries", skip_serializing_if = "BTreeMap::is_empty")]
    pub foreground: BTreeMap<String, ServeConfig>,
    /// What newer versions added.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// The serve configuration of a Tailscale Service.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServiceConfig {
    /// What happens on a TCP port of the Service's addresses.
    #[serde(
        rename = "TCP",
        deserialize_with = "entries",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub tcp: BTreeMap<u16, TcpPortHandler>,
    /// Handlers by `name:port`.
    #[serde(deserialize_with = "entries", skip_serializing_if = "BTreeMap::is_empty")]
    pub web: BTreeMap<String, WebServerConfig>,
    /// Whether packets to the Service go to the TUN device instead.
    #[serde(skip_serializing_if = "is_false")]
    pub tun: bool,
    /// What newer versions added.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What is done with connections to a port: exactly one of HTTPS, HTTP and forwarding.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct TcpPortHandler {
    /// Served over TLS as `web` says.
    #[serde(rename = "HTTPS", skip_serializing_if = "is_false")]
    pub https: bool,
    /// Served in the clear as `web` says.
    #[serde(rename = "HTTP", skip_serializing_if = "is_false")]
    pub http: bool,
    /// Forwarded to this `host:port`.
    #[serde(rename = "TCPForward", skip_serializing_if = "String::is_empty")]
    pub tcp_forward: String,
    /// With forwarding: TLS for this name ends here.
    #[serde(rename = "TerminateTLS", skip_serializing_if = "String::is_empty")]
    pub terminate_tls: String,
    /// With forwarding: the version of the PROXY protocol that tells the client's address; 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub proxy_protocol: i64,
    /// What newer versions added.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// The handlers of one `name:port`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct WebServerConfig {
    /// Handlers by the path that they are mounted at.
    #[serde(deserialize_with = "entries")]
    pub handlers: BTreeMap<String, HttpHandler>,
    /// What newer versions added.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What a path is answered with: exactly one of a path, a proxied address, a text and a redirection.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HttpHandler {
    /// A file or directory.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// A backend, such as `http://192.0.2.1:8080/`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub proxy: String,
    /// The text itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The capabilities that the backend is told of.
    #[serde(deserialize_with = "items", skip_serializing_if = "Vec::is_empty")]
    pub accept_app_caps: Vec<String>,
    /// Where to go instead; a code and a colon may precede.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub redirect: String,
    /// What newer versions added.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &i64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_read_is_written_back_whole() {
        let wire = json!({
            "TCP": {"443": {"HTTPS": true}, "5432": {"TCPForward": "192.0.2.1:5432", "ProxyProtocol": 2, "New": [1]}},
            "Web": {"a.tailnet.ts.net:443": {"Handlers": {"/": {"Proxy": "http://192.0.2.1:80", "Newer": null}}, "More": 1}},
            "Services": {"svc:a": {"TCP": {"80": {"HTTP": true}}, "Tun": true, "Extra": "x"}},
            "AllowFunnel": {"a.tailnet.ts.net:443": true, "b.tailnet.ts.net:443": false},
            "Foreground": {"abc": {"TCP": {"80": {"HTTP": true}}, "Newest": {"a": 1.5}}},
            "Future": {"deep": [1, {"x": null}]},
        });
        let config: ServeConfig = serde_json::from_value(wire.clone()).unwrap();
        assert_eq!(config.tcp[&5432].proxy_protocol, 2);
        assert_eq!(config.rest["Future"]["deep"][0], 1);
        assert_eq!(serde_json::to_value(&config).unwrap(), wire);
        // The same from text, where keys of maps are text until they are read.
        let again: ServeConfig = serde_json::from_str(&wire.to_string()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn an_entry_that_is_null_serves_nothing() {
        let config: ServeConfig = serde_json::from_str(
            r#"{"TCP":{"80":null},"Services":{"svc:a":null},"Web":{"a:80":{"Handlers":{"/":null}}}}"#,
        )
        .unwrap();
        assert!(config.tcp.is_empty() && config.services.is_empty());
        assert!(config.web["a:80"].handlers.is_empty());
    }
}
