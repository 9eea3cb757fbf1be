//! The tailnet as this node sees it: folded from the notices of tailscaled's bus, indexed so that a name is resolved without
//! looking at every peer.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr},
};

use ipnet::IpNet;

use crate::localapi::{
    CapMap, DnsConfig, Node, NodeId, Notify, PeerStatus, State, Status, parse::services,
};

#[cfg(test)]
mod tests;

/// Where the synthesised addresses of 4via6 lie: `fd7a:115c:a1e0:b1a:0:<site>:<IPv4>`.
const VIA_PREFIX: u128 = 0xfd7a_115c_a1e0_0b1a << 64;

/// What is known of the tailnet. Kept while tailscaled is away: what it said last is the best guess.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The state of tailscaled.
    pub state: Option<State>,
    /// This node, once control has told.
    pub own: Option<Own>,
    /// Routes that tailscaled advertises, the exit routes included; those found by an app connector come and go.
    pub advertised: BTreeSet<IpNet>,
    /// Services that this node says it serves.
    pub services: BTreeSet<String>,
    /// Whether forwarded packets keep their source (`--snat-subnet-routes=false`).
    pub keep_source: bool,
    /// The name that this node asks for; empty before tailscaled has told.
    pub hostname: String,
    /// Whether the subnets behind peers are reached through them (`--accept-routes`).
    pub accept_routes: bool,
    /// Names that certificates can be had for.
    pub cert_domains: Vec<String>,
    /// Whether the name service's configuration is known, and with it what certificates there are.
    pub has_dns: bool,
    /// Warnings of tailscaled by code.
    pub warnings: BTreeMap<String, String>,
    peers: HashMap<NodeId, Peer>,
    by_name: HashMap<String, BTreeSet<NodeId>>,
    /// How many peers take packets for a prefix.
    allowed: HashMap<IpNet, usize>,
    records: BTreeMap<String, Vec<IpAddr>>,
}

/// This node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Stable identifier.
    pub id: String,
    /// Fully qualified name, with the final dot.
    pub name: String,
    /// Tailnet addresses.
    pub addresses: Vec<IpAddr>,
    /// Addresses of the services that control has assigned to this host.
    pub hosted: BTreeMap<String, Vec<IpAddr>>,
    /// Its key has expired.
    pub expired: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Peer {
    name: String,
    addresses: Vec<IpAddr>,
    allowed: Vec<IpNet>,
}

/// What a notice has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Something that rules may depend on.
    pub rules: bool,
    /// The name service's configuration is to be fetched again.
    pub dns: bool,
}

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// Nobody has it.
    #[error(
        "no device, service or DNS record of the tailnet that this node may reach is called {0}"
    )]
    NoSuchName(String),
    /// It is a service that nobody serves at present.
    #[error("{0} is a service that no device reachable from here serves at present")]
    NotServed(String),
    /// It is a 4via6 name, and no peer routes its site.
    #[error(
        "no device routes {1}, the address that {0} stands for: is the subnet router's route approved?"
    )]
    NoRouter(String, Ipv6Addr),
}

impl View {
    /// Takes a notice in.
    pub fn apply(&mut self, notify: &Notify) -> Changed {
        let mut changed = Changed::default();
        if let Some(state) = notify.state {
            changed.rules |= self.state.replace(state) != Some(state);
        }
        if let Some(prefs) = &notify.prefs {
            let advertised: BTreeSet<_> = prefs.advertise_routes.iter().map(IpNet::trunc).collect();
            let services: BTreeSet<_> = prefs.advertise_services.iter().cloned().collect();
            changed.rules |= self.advertised != advertised
                || self.keep_source != prefs.no_snat
                || self.accept_routes != prefs.route_all
                || self.services != services;
            (self.advertised, self.services) = (advertised, services);
            self.hostname.clone_from(&prefs.hostname);
            (self.keep_source, self.accept_routes) = (prefs.no_snat, prefs.route_all);
        }
        if let Some(health) = &notify.health {
            let text = |(code, warning): (&String, &crate::localapi::Warning)| {
                (code.clone(), warning.text.clone())
            };
            self.warnings = health.warnings.iter().map(text).collect();
        }
        if let Some(status) = &notify.initial_status {
            self.restart(status);
            changed = Changed { rules: true, dns: true };
        }
        if let Some(node) = &notify.self_change {
            // Sent with a whole map of the network: peers that are not in it are gone, though nobody says so.
            let own = Own::of_node(node);
            changed.rules |= self.own.as_ref() != Some(&own);
            changed.dns = true;
            self.own = Some(own);
            let named: BTreeSet<_> = notify.peers_changed.iter().map(|node| node.id).collect();
            let gone: Vec<_> =
                self.peers.keys().filter(|id| !named.contains(id)).copied().collect();
            for id in gone {
                changed.rules |= self.remove(id);
            }
        }
        for node in &notify.peers_changed {
            changed.rules |= self.upsert(node.id, Peer::of_node(node));
        }
        for id in &notify.peers_removed {
            changed.rules |= self.remove(*id);
        }
        changed
    }

    /// Takes the name service's configuration in; whether that changed anything.
    pub fn set_dns(&mut self, dns: &DnsConfig) -> bool {
        let mut records = BTreeMap::<String, Vec<IpAddr>>::new();
        for record in &dns.extra_records {
            if let Some(address) = record.address() {
                records.entry(canonical(&record.name)).or_default().push(address);
            }
        }
        for addresses in records.values_mut() {
            addresses.sort_unstable();
            addresses.dedup();
        }
        let changed =
            !self.has_dns || self.records != records || self.cert_domains != dns.cert_domains;
        self.has_dns = true;
        self.records = records;
        self.cert_domains.clone_from(&dns.cert_domains);
        changed
    }

    /// Everything that a status has; what it does not name is gone.
    fn restart(&mut self, status: &Status) {
        self.state = status.state();
        if let Some(own) = &status.self_node {
            let own = Own::of_status(own);
            // Not logged in (yet): what was true before stays the best guess.
            if !own.addresses.is_empty() {
                self.own = Some(own);
            }
        }
        if status.peers.is_empty() && self.state != Some(State::Running) {
            return;
        }
        let mut named = BTreeSet::new();
        for peer in status.peers.values() {
            named.insert(peer.id);
            self.upsert(peer.id, Peer::of_status(peer));
        }
        let gone: Vec<_> = self.peers.keys().filter(|id| !named.contains(id)).copied().collect();
        for id in gone {
            self.remove(id);
        }
    }

    fn upsert(&mut self, id: NodeId, peer: Peer) -> bool {
        if self.peers.get(&id) == Some(&peer) {
            return false;
        }
        self.remove(id);
        self.by_name.entry(peer.name.clone()).or_default().insert(id);
        for net in &peer.allowed {
            *self.allowed.entry(*net).or_default() += 1;
        }
        self.peers.insert(id, peer);
        true
    }

    fn remove(&mut self, id: NodeId) -> bool {
        let Some(peer) = self.peers.remove(&id) else { return false };
        if let Some(ids) = self.by_name.get_mut(&peer.name) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_name.remove(&peer.name);
            }
        }
        for net in peer.allowed {
            if let Some(count) = self.allowed.get_mut(&net) {
                *count -= 1;
                if *count == 0 {
                    self.allowed.remove(&net);
                }
            }
        }
        true
    }

    /// This node's addresses; none before control has told.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.own.as_ref().map(|own| own.addresses.clone()).unwrap_or_default()
    }

    /// What this node is called instead of the name that it asks for: another device has that.
    pub fn other_name(&self) -> Option<&str> {
        let name = self.own.as_ref()?.name.split('.').next()?;
        let wanted = self.hostname.to_ascii_lowercase();
        // Control makes a number of a name that is taken; anything else is its own idea of a good name.
        let number = name.strip_prefix(wanted.as_str())?.strip_prefix('-')?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        (!wanted.is_empty() && is_number).then_some(name)
    }

    /// How many peers there are.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// The addresses that the tailnet really assigns: this node's, its peers', the services'. Subnets behind peers are not
    /// among them: they may be the cluster's own.
    pub fn assigned(&self) -> impl Iterator<Item = IpAddr> {
        let own = self.own.iter().flat_map(|own| &own.addresses);
        let hosted = self.own.iter().flat_map(|own| own.hosted.values().flatten());
        own.chain(hosted).chain(self.peers.values().flat_map(|peer| &peer.addresses)).copied()
    }

    /// What packets can be sent to through peers: their own addresses and, if routes are accepted, the subnets and services
    /// behind them. Not what an exit node takes.
    pub fn reachable(&self) -> BTreeSet<IpNet> {
        let own = self.peers.values().flat_map(|peer| &peer.addresses);
        let mut reachable: BTreeSet<_> = own.map(|address| IpNet::from(*address)).collect();
        if self.accept_routes {
            reachable.extend(self.allowed.keys().filter(|net| net.prefix_len() > 0));
        }
        reachable
    }

    /// The addresses of a name: of a device, of a service or another DNS record that a peer serves, or of 4via6. A name
    /// without the tailnet's domain is not completed.
    pub fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Unresolved> {
        let key = canonical(name);
        let mut addresses: Vec<IpAddr> = Vec::new();
        if let Some(ids) = self.by_name.get(&key) {
            let peers = ids.iter().filter_map(|id| self.peers.get(id));
            addresses.extend(peers.flat_map(|peer| &peer.addresses));
        } else if let Some(record) = self.records.get(&key) {
            addresses.extend(record.iter().filter(|address| self.is_routed(**address)));
            if addresses.is_empty() {
                return Err(Unresolved::NotServed(name.to_owned()));
            }
        } else if let Some(via) = via(&key) {
            if !self.is_routed(via.into()) {
                return Err(Unresolved::NoRouter(name.to_owned(), via));
            }
            addresses.push(via.into());
        }
        // Several peers serve one service: its address is one all the same.
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.is_empty() {
            return Err(Unresolved::NoSuchName(name.to_owned()));
        }
        Ok(addresses)
    }

    /// Whether peers take packets for all addresses of these Services, which control has assigned to this node.
    pub fn is_hosted_elsewhere(&self, services: &[String]) -> bool {
        let hosted = self.own.iter().flat_map(|own| &own.hosted);
        let mut these = hosted.filter(|(name, _)| services.contains(name));
        these.all(|(_, ips)| ips.iter().all(|address| self.is_assigned_to_peer(*address)))
    }

    /// Whether a peer is the host of just this address, by itself or for a Service.
    fn is_assigned_to_peer(&self, address: IpAddr) -> bool {
        self.allowed.contains_key(&IpNet::from(address))
    }

    /// Whether some peer takes packets for the address: the prefixes that hold it are looked up, not searched.
    fn is_routed(&self, address: IpAddr) -> bool {
        let whole = IpNet::from(address).prefix_len();
        (0..=whole).rev().any(|length| {
            IpNet::new(address, length).is_ok_and(|net| self.allowed.contains_key(&net.trunc()))
        })
    }
}

impl Own {
    fn of_node(node: &Node) -> Self {
        Self {
            id: node.stable_id.clone(),
            name: node.name.clone(),
            addresses: node.addresses.iter().map(IpNet::addr).collect(),
            hosted: hosted(&node.cap_map),
            expired: node.expired,
        }
    }

    fn of_status(status: &PeerStatus) -> Self {
        Self {
            id: status.stable_id.clone(),
            name: status.dns_name.clone(),
            addresses: status.tailscale_ips.clone(),
            hosted: hosted(&status.cap_map),
            expired: status.expired,
        }
    }
}

impl Peer {
    fn of_node(node: &Node) -> Self {
        Self {
            name: canonical(&node.name),
            addresses: node.addresses.iter().map(IpNet::addr).collect(),
            allowed: node.allowed_ips.iter().map(IpNet::trunc).collect(),
        }
    }

    fn of_status(status: &PeerStatus) -> Self {
        Self {
            name: canonical(&status.dns_name),
            addresses: status.tailscale_ips.clone(),
            allowed: status.allowed_ips.iter().map(IpNet::trunc).collect(),
        }
    }
}

/// The services that control has assigned to a host. What cannot be read is told, and holds nothing else up.
fn hosted(capabilities: &CapMap) -> BTreeMap<String, Vec<IpAddr>> {
    let mut hosted = services(capabilities).unwrap_or_else(|error| {
        tracing::warn!(%error, "this node's Tailscale Services");
        BTreeMap::new()
    });
    for addresses in hosted.values_mut() {
        addresses.sort_unstable();
    }
    hosted
}

/// Lower case, without the final dot.
fn canonical(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// The address that a 4via6 name stands for: `<a-b-c-d>-via-<site>`, optionally with a domain. The site is decimal, or
/// hexadecimal with `0x`.
fn via(name: &str) -> Option<Ipv6Addr> {
    let label = name.split('.').next()?;
    let (address, site) = label.split_once("-via-")?;
    let site = match site.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => site.parse().ok()?,
    };
    let address: std::net::Ipv4Addr = address.replace('-', ".").parse().ok()?;
    let bits = VIA_PREFIX | u128::from(site) << 32 | u128::from(address.to_bits());
    Some(Ipv6Addr::from_bits(bits))
}
