//! A node of the tailnet as the control server describes it: `tailcfg.Node`.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::nullable::{items, lists, nullable, text, time};

/// Capabilities of a node, or granted to one: a name, and what the control server says along with it.
pub type CapMap = BTreeMap<String, Vec<Value>>;

/// A node's number within its control server.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct NodeId(pub i64);

impl fmt::Display for NodeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A node, itself or a peer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(from = "Wire")]
#[expect(clippy::struct_excessive_bools, reason = "the wire has them")]
pub struct Node {
    /// Its number; peers that are gone are told by it.
    pub id: NodeId,
    /// The id that the API and policies use; survives a new key.
    pub stable_id: String,
    /// The FQDN with a trailing dot, such as `host.tailnet.ts.net.`; empty without MagicDNS.
    pub name: String,
    /// The public node key, `nodekey:` and 64 hexadecimal digits: what `Status::peers` is keyed by.
    pub key: String,
    /// The number of the user that owns it.
    pub user: i64,
    /// Its own addresses, each with a full-length prefix.
    pub addresses: Vec<IpNet>,
    /// What may come from it and is sent to it: its addresses, the VIPs of Services that it hosts, routes. Newer servers
    /// leave it out where it equals `addresses`; that is resolved here.
    pub allowed_ips: Vec<IpNet>,
    /// The routes for which it is the one in charge.
    pub primary_routes: Vec<IpNet>,
    /// Tags such as `tag:k8s`.
    pub tags: Vec<String>,
    /// Whether it is connected to the control server; `None` if that is not known.
    pub online: Option<bool>,
    /// When it was last seen while not online, RFC 3339.
    pub last_seen: Option<String>,
    /// Whether its key has expired.
    pub expired: bool,
    /// When its key expires, RFC 3339; `None` if never.
    pub key_expiry: Option<String>,
    /// Whether an administrator has admitted it.
    pub machine_authorized: bool,
    /// A peer that speaks WireGuard only, such as a commercial exit node.
    pub wireguard_only: bool,
    /// A peer that must not open connections to us.
    pub jailed: bool,
    /// Our own IPv4 address as this peer knows it, if another than ours.
    pub masquerade4: Option<IpAddr>,
    /// Our own IPv6 address as this peer knows it, if another than ours.
    pub masquerade6: Option<IpAddr>,
    /// The host name that it reports itself: neither unique nor a DNS name.
    pub host_name: String,
    /// What it can do or may do; the names of older servers' `Capabilities` are in it, without values. `parse::services` reads
    /// the addresses of Services that it may host.
    pub cap_map: CapMap,
}

impl Node {
    /// Whether it has a capability, whatever goes with it.
    pub fn has_capability(&self, name: &str) -> bool {
        self.cap_map.contains_key(name)
    }

    /// Its own addresses without their prefix lengths.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().map(IpNet::addr)
    }
}

/// The node as it is written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(clippy::struct_excessive_bools, reason = "the wire has them")]
struct Wire {
    #[serde(rename = "ID")]
    id: NodeId,
    #[serde(rename = "StableID")]
    stable_id: String,
    name: String,
    key: String,
    user: i64,
    #[serde(deserialize_with = "nullable")]
    addresses: Vec<IpNet>,
    #[serde(rename = "AllowedIPs")]
    allowed_ips: Option<Vec<IpNet>>,
    #[serde(deserialize_with = "nullable")]
    primary_routes: Vec<IpNet>,
    #[serde(deserialize_with = "nullable")]
    tags: Vec<String>,
    online: Option<bool>,
    #[serde(deserialize_with = "time")]
    last_seen: Option<String>,
    expired: bool,
    #[serde(deserialize_with = "time")]
    key_expiry: Option<String>,
    machine_authorized: bool,
    #[serde(rename = "IsWireGuardOnly")]
    wireguard_only: bool,
    #[serde(rename = "IsJailed")]
    jailed: bool,
    #[serde(rename = "SelfNodeV4MasqAddrForThisPeer", deserialize_with = "text")]
    masquerade4: Option<String>,
    #[serde(rename = "SelfNodeV6MasqAddrForThisPeer", deserialize_with = "text")]
    masquerade6: Option<String>,
    #[serde(deserialize_with = "nullable")]
    hostinfo: Hostinfo,
    #[serde(deserialize_with = "items")]
    capabilities: Vec<String>,
    #[serde(deserialize_with = "lists")]
    cap_map: CapMap,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Hostinfo {
    hostname: String,
}

impl From<Wire> for Node {
    fn from(wire: Wire) -> Self {
        let mut cap_map = wire.cap_map;
        for name in wire.capabilities {
            cap_map.entry(name).or_default();
        }
        let address = |text: Option<String>| text.and_then(|text| text.parse().ok());
        Self {
            id: wire.id,
            stable_id: wire.stable_id,
            name: wire.name,
            key: wire.key,
            user: wire.user,
            allowed_ips: wire.allowed_ips.unwrap_or_else(|| wire.addresses.clone()),
            addresses: wire.addresses,
            primary_routes: wire.primary_routes,
            tags: wire.tags,
            online: wire.online,
            last_seen: wire.last_seen,
            expired: wire.expired,
            key_expiry: wire.key_expiry,
            machine_authorized: wire.machine_authorized,
            wireguard_only: wire.wireguard_only,
            jailed: wire.jailed,
            masquerade4: address(wire.masquerade4),
            masquerade6: address(wire.masquerade6),
            host_name: wire.hostinfo.hostname,
            cap_map,
        }
    }
}
