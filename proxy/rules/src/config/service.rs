//! The rule sections: `ingress`, `egress`, `routes`, `deny`.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{Protocol, Side};

/// Addresses that are served, and the backends behind them. Frontends and backends of both address families may be
/// given: each frontend is served by the backends of its own family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields, extend("required" = ["name", "frontends"]))]
pub struct Service {
    /// Unique name, such as `default/web`: letters, digits and `. _ / : -`. Names the counters.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Addresses that are served.
    #[schemars(length(min = 1))]
    pub frontends: Vec<String>,
    /// Ports that are served. Left out in `egress`: every port of every protocol.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortMap>,
    /// Where new connections go. Without any, connections are refused at once rather than left to time out.
    pub backends: Vec<Backend>,
    /// What a client's connections have in common.
    pub affinity: WireAffinity,
    /// What becomes of the source address: `keep`, `masquerade` (the own address of the outgoing device), or an
    /// address. `keep` needs replies to be routed back through this proxy.
    #[schemars(length(min = 1))]
    pub snat: String,
    /// Begin each TCP connection to a backend with a PROXY protocol version 2 header. Only the user-space path can.
    pub proxy_protocol: bool,
    /// Clients that may connect, addresses or prefixes. Left out: any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            name: String::new(),
            frontends: Vec::new(),
            ports: Vec::new(),
            backends: Vec::new(),
            affinity: WireAffinity::Flow,
            snat: MASQUERADE.to_owned(),
            proxy_protocol: false,
            sources: Vec::new(),
        }
    }
}

/// The default of `snat`.
const MASQUERADE: &str = "masquerade";

/// A port that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields, extend("required" = ["protocol"]))]
pub struct PortMap {
    /// `tcp`, `udp` or `icmp` (echo; ICMPv6 on IPv6 frontends).
    pub protocol: Protocol,
    /// Port or range `first-last`. Left out: every port of the protocol. ICMP has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<PortSpec>,
    /// Port of the backends. Left out: the same port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub target_port: Option<u16>,
    /// Count each port of a range by itself (at most 4096 ports).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub count_per_port: bool,
}

impl Default for PortMap {
    fn default() -> Self {
        Self { protocol: Protocol::Tcp, port: None, target_port: None, count_per_port: false }
    }
}

/// Where connections go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields, extend("required" = ["address"]))]
pub struct Backend {
    /// Address.
    #[schemars(length(min = 1))]
    pub address: String,
    /// Share of new connections relative to the other backends.
    #[schemars(range(min = 1, max = 100))]
    pub weight: u16,
    /// Whether it takes new connections.
    pub state: WireState,
}

impl Default for Backend {
    fn default() -> Self {
        Self { address: String::new(), weight: 1, state: WireState::Ready }
    }
}

/// Whether a backend takes new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WireState {
    /// It does.
    #[default]
    Ready,
    /// It keeps those it has.
    Draining,
}

/// What a client's connections have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum WireAffinity {
    /// Nothing: each is placed by its whole tuple.
    #[default]
    Flow,
    /// The backend: placed by the client's address alone.
    ClientIp,
}

/// Forwarding without translation of the destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields, extend("required" = ["name", "from", "destinations"]))]
pub struct Route {
    /// Unique name; names the counters.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The side that connections come from.
    pub from: Side,
    /// Destination prefixes: a subnet, or `0.0.0.0/0` and `::/0` for an exit node.
    #[schemars(length(min = 1))]
    pub destinations: Vec<String>,
    /// The side that connections leave by. Left out: the other one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Side>,
    /// What becomes of the source address: `keep`, `masquerade`, or an address.
    #[schemars(length(min = 1))]
    pub snat: String,
    /// Who may use the route, addresses or prefixes. Left out: anyone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
}

impl Default for Route {
    fn default() -> Self {
        Self {
            name: String::new(),
            from: Side::Tailnet,
            destinations: Vec::new(),
            to: None,
            snat: MASQUERADE.to_owned(),
            sources: Vec::new(),
        }
    }
}

/// What is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields, extend("required" = ["name", "from", "destinations"]))]
pub struct Deny {
    /// Unique name; names the counters.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The side that connections come from.
    pub from: Side,
    /// Destination addresses or prefixes.
    #[schemars(length(min = 1))]
    pub destinations: Vec<String>,
    /// Ports; `targetPort` has no meaning here. Left out: every port of every protocol.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortMap>,
    /// Who is refused, addresses or prefixes. Left out: anyone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// Whether the sender is told.
    pub action: DenyAction,
}

impl Default for Deny {
    fn default() -> Self {
        Self {
            name: String::new(),
            from: Side::Tailnet,
            destinations: Vec::new(),
            ports: Vec::new(),
            sources: Vec::new(),
            action: DenyAction::Reject,
        }
    }
}

/// How something is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DenyAction {
    /// The sender is told: TCP reset, else ICMP port unreachable.
    #[default]
    Reject,
    /// In silence.
    Drop,
}

/// A port, or a range `first-last`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PortSpec {
    /// One port.
    Number(i64),
    /// One port or a range.
    Text(String),
}

// By hand: the derived schema would bound the number by 64 bits only, and could not say what the text looks like.
impl JsonSchema for PortSpec {
    fn schema_name() -> Cow<'static, str> {
        "PortSpec".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "integer", "minimum": 1, "maximum": 65535 },
                { "type": "string", "minLength": 1, "pattern": "^[0-9]{1,5}(-[0-9]{1,5})?$" },
            ]
        })
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.pad(text),
        }
    }
}
