//! What tailscaled was told to be and do: `ipn.Prefs`, and changes of it.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::nullable::{nullable, text};

/// The preferences in force. The node's keys, which tailscaled keeps beside them, are not read.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "PascalCase")]
#[expect(clippy::struct_excessive_bools, reason = "the wire has them")]
pub struct Prefs {
    /// The control server; empty before the first start.
    #[serde(rename = "ControlURL")]
    pub control_url: String,
    /// Whether to be connected.
    pub want_running: bool,
    /// Whether somebody logged it out.
    pub logged_out: bool,
    /// The host name asked for; empty for the machine's.
    pub hostname: String,
    /// Whether to accept routes of other nodes.
    pub route_all: bool,
    /// Whether to use the tailnet's DNS (`--accept-dns`).
    #[serde(rename = "CorpDNS")]
    pub corp_dns: bool,
    /// The exit node to use, by stable id; empty for none.
    #[serde(rename = "ExitNodeID")]
    pub exit_node_id: String,
    /// The exit node to use, as long as it is known by its address only.
    #[serde(rename = "ExitNodeIP", deserialize_with = "text")]
    pub exit_node_ip: Option<String>,
    /// Whether local networks stay reachable beside an exit node.
    #[serde(rename = "ExitNodeAllowLANAccess")]
    pub exit_node_allow_lan_access: bool,
    /// Routes offered to the tailnet; both default routes offer an exit node.
    #[serde(deserialize_with = "nullable")]
    pub advertise_routes: Vec<IpNet>,
    /// Tailscale Services that this node offers to host, `svc:` and a DNS label.
    #[serde(deserialize_with = "nullable")]
    pub advertise_services: Vec<String>,
    /// Tags asked for.
    #[serde(deserialize_with = "nullable")]
    pub advertise_tags: Vec<String>,
    /// Whether the node offers to be an app connector.
    #[serde(deserialize_with = "nullable")]
    pub app_connector: AppConnector,
    /// Whether to refuse connections from the tailnet.
    pub shields_up: bool,
    /// Whether traffic to advertised routes keeps its source address.
    #[serde(rename = "NoSNAT")]
    pub no_snat: bool,
    /// Whether forwarding is stateless; `None` for tailscaled's default.
    pub no_stateful_filtering: Option<bool>,
    /// What tailscaled does with netfilter.
    pub netfilter_mode: NetfilterMode,
    /// Which netfilter it uses, `iptables` or `nftables`; empty for its choice.
    pub netfilter_kind: String,
    /// Whether it serves SSH.
    #[serde(rename = "RunSSH")]
    pub run_ssh: bool,
}

impl Prefs {
    /// The exit node's address, as long as no id is known.
    pub fn exit_node_address(&self) -> Option<IpAddr> {
        self.exit_node_ip.as_ref().and_then(|address| address.parse().ok())
    }
}

/// The part of the preferences about app connectors.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AppConnector {
    /// Whether the node offers to be one.
    pub advertise: bool,
}

/// What tailscaled does with netfilter.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(from = "i64", into = "i64")]
pub enum NetfilterMode {
    /// Nothing.
    #[default]
    Off,
    /// Keeps its chains, without jumps into them.
    NoDivert,
    /// Keeps its chains and sends all traffic through them.
    On,
    /// One that this version does not know.
    Unknown(i64),
}

impl From<i64> for NetfilterMode {
    fn from(number: i64) -> Self {
        match number {
            0 => Self::Off,
            1 => Self::NoDivert,
            2 => Self::On,
            other => Self::Unknown(other),
        }
    }
}

impl From<NetfilterMode> for i64 {
    fn from(mode: NetfilterMode) -> Self {
        match mode {
            NetfilterMode::Off => 0,
            NetfilterMode::NoDivert => 1,
            NetfilterMode::On => 2,
            NetfilterMode::Unknown(number) => number,
        }
    }
}

/// A change of the preferences: what is `Some` is set, the rest stays. The fields mean what they do in [`Prefs`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PrefsChange {
    #[serde(rename = "ControlURL", skip_serializing_if = "Option::is_none")]
    pub control_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub want_running: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logged_out: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route_all: Option<bool>,
    #[serde(rename = "CorpDNS", skip_serializing_if = "Option::is_none")]
    pub corp_dns: Option<bool>,
    #[serde(rename = "ExitNodeID", skip_serializing_if = "Option::is_none")]
    pub exit_node_id: Option<String>,
    #[serde(rename = "ExitNodeIP", skip_serializing_if = "Option::is_none")]
    pub exit_node_ip: Option<String>,
    #[serde(rename = "ExitNodeAllowLANAccess", skip_serializing_if = "Option::is_none")]
    pub exit_node_allow_lan_access: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise_routes: Option<Vec<IpNet>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise_services: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise_tags: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_connector: Option<AppConnector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shields_up: Option<bool>,
    #[serde(rename = "NoSNAT", skip_serializing_if = "Option::is_none")]
    pub no_snat: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_stateful_filtering: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netfilter_mode: Option<NetfilterMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netfilter_kind: Option<String>,
    #[serde(rename = "RunSSH", skip_serializing_if = "Option::is_none")]
    pub run_ssh: Option<bool>,
}

impl PrefsChange {
    /// As `ipn.MaskedPrefs`: each value, and beside it that it is to be set.
    pub fn masked(&self) -> Map<String, Value> {
        // Lists, texts and flags under fixed names: there is nothing that serde could refuse.
        let Ok(Value::Object(values)) = serde_json::to_value(self) else { return Map::new() };
        let set: Vec<_> =
            values.keys().map(|name| (format!("{name}Set"), Value::Bool(true))).collect();
        values.into_iter().chain(set).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_given_is_set() {
        let change = PrefsChange {
            hostname: Some("pod-0".to_owned()),
            want_running: Some(false),
            advertise_routes: Some(Vec::new()),
            app_connector: Some(AppConnector { advertise: true }),
            netfilter_mode: Some(NetfilterMode::Off),
            ..PrefsChange::default()
        };
        let expected = json!({
            "Hostname": "pod-0", "HostnameSet": true,
            "WantRunning": false, "WantRunningSet": true,
            "AdvertiseRoutes": [], "AdvertiseRoutesSet": true,
            "AppConnector": {"Advertise": true}, "AppConnectorSet": true,
            "NetfilterMode": 0, "NetfilterModeSet": true,
        });
        assert_eq!(Value::Object(change.masked()), expected);
        assert!(PrefsChange::default().masked().is_empty());
    }
}
