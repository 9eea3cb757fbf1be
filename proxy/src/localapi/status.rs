//! The state of the node and what it knows of its peers: `ipnstate.Status`.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use serde::Deserialize;

use super::{
    node::{CapMap, NodeId},
    notify::State,
    nullable::{entries, items, lists, nullable, text, time},
};

/// The answer to `status`, and the first message of a watch that asks for it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "PascalCase")]
pub struct Status {
    /// tailscaled's version, long form.
    pub version: String,
    /// Whether it uses a TUN device; false with user-space networking.
    #[serde(rename = "TUN")]
    pub tun: bool,
    /// The name of a state, such as `NeedsLogin`; `state` gives it typed.
    pub backend_state: String,
    /// Where a person could log this node in, as long as one has to.
    #[serde(rename = "AuthURL", deserialize_with = "text")]
    pub auth_url: Option<String>,
    /// The node's own addresses.
    #[serde(rename = "TailscaleIPs", deserialize_with = "nullable")]
    pub tailscale_ips: Vec<IpAddr>,
    /// The node itself; before the first log-in it has no addresses.
    #[serde(rename = "Self")]
    pub self_node: Option<PeerStatus>,
    /// Problems in words; empty if all is well.
    #[serde(deserialize_with = "items")]
    pub health: Vec<String>,
    /// The tailnet's DNS suffix without dots around it.
    #[serde(rename = "MagicDNSSuffix")]
    pub magic_dns_suffix: String,
    /// The names that certificates can be had for.
    #[serde(deserialize_with = "items")]
    pub cert_domains: Vec<String>,
    /// Names that the control server adds, those of Tailscale Services among them.
    #[serde(deserialize_with = "items")]
    pub extra_records: Vec<DnsRecord>,
    /// Peers by public node key; empty if asked without them.
    #[serde(rename = "Peer", deserialize_with = "entries")]
    pub peers: BTreeMap<String, PeerStatus>,
}

impl Status {
    /// The state that `backend_state` names, `None` for a name that is not known.
    pub fn state(&self) -> Option<State> {
        State::named(&self.backend_state)
    }
}

/// One node in a status.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "PascalCase")]
#[expect(clippy::struct_excessive_bools, reason = "the wire has them")]
pub struct PeerStatus {
    /// The stable id.
    #[serde(rename = "ID")]
    pub stable_id: String,
    /// The number that changes on the bus are told by; 0 from a tailscaled that does not say.
    #[serde(rename = "NodeID")]
    pub id: NodeId,
    /// The public node key.
    pub public_key: String,
    /// The host name that it reports itself.
    pub host_name: String,
    /// The FQDN with a trailing dot.
    #[serde(rename = "DNSName")]
    pub dns_name: String,
    /// The number of the user that owns it.
    #[serde(rename = "UserID")]
    pub user: i64,
    /// Its own addresses.
    #[serde(rename = "TailscaleIPs", deserialize_with = "nullable")]
    pub tailscale_ips: Vec<IpAddr>,
    /// What is sent to it: its addresses, VIPs of Services that it hosts, routes. Absent means none here, unlike in `Node`:
    /// tailscaled has resolved it.
    #[serde(rename = "AllowedIPs", deserialize_with = "nullable")]
    pub allowed_ips: Vec<IpNet>,
    /// The routes for which it is the one in charge.
    #[serde(deserialize_with = "nullable")]
    pub primary_routes: Vec<IpNet>,
    /// Tags such as `tag:k8s`.
    #[serde(deserialize_with = "nullable")]
    pub tags: Vec<String>,
    /// The address that packets to it are sent to now; empty if relayed or idle.
    pub cur_addr: String,
    /// The DERP region that it is reached through.
    pub relay: String,
    /// Bytes received from it.
    pub rx_bytes: i64,
    /// Bytes sent to it.
    pub tx_bytes: i64,
    /// The last WireGuard handshake with it, RFC 3339.
    #[serde(deserialize_with = "time")]
    pub last_handshake: Option<String>,
    /// When it was last seen while not online, RFC 3339.
    #[serde(deserialize_with = "time")]
    pub last_seen: Option<String>,
    /// Whether it is connected to the control server.
    pub online: bool,
    /// Whether it is the exit node in use.
    pub exit_node: bool,
    /// Whether it may be used as one.
    pub exit_node_option: bool,
    /// Whether its key has expired.
    pub expired: bool,
    /// When its key expires, RFC 3339; `None` if never.
    #[serde(deserialize_with = "time")]
    pub key_expiry: Option<String>,
    /// What it can do or may do.
    #[serde(deserialize_with = "lists")]
    pub cap_map: CapMap,
}

/// A DNS record that the control server adds to MagicDNS.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, rename_all = "PascalCase")]
pub struct DnsRecord {
    /// The FQDN, with or without a trailing dot.
    pub name: String,
    /// The type; empty means A or AAAA, as the value is.
    #[serde(rename = "Type")]
    pub kind: String,
    /// The address as text.
    pub value: String,
}

impl DnsRecord {
    /// The address, of a record that holds one.
    pub fn address(&self) -> Option<IpAddr> {
        matches!(&*self.kind, "" | "A" | "AAAA").then(|| self.value.parse().ok()).flatten()
    }
}

/// What the control server says of DNS: the answer to `dns-config`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "PascalCase")]
pub struct DnsConfig {
    /// Whether MagicDNS is on.
    pub proxied: bool,
    /// Search domains without a trailing dot.
    #[serde(deserialize_with = "items")]
    pub domains: Vec<String>,
    /// The names that certificates can be had for.
    #[serde(deserialize_with = "items")]
    pub cert_domains: Vec<String>,
    /// Names that the control server adds, those of Tailscale Services among them.
    #[serde(deserialize_with = "items")]
    pub extra_records: Vec<DnsRecord>,
}
