//! RuleTable -> map contents, pure. The steps of a lookup are those of `proxy_ebpf_common::RuleEntry`'s module.
//!
//! The kernel never searches back, so the compiler does: every class, port and source group holds the final answer, less
//! specific rules copied into more specific places. For one destination prefix the rules that can match are its own
//! and those of the prefixes around it (its *levels*); the first of them in the table's order that matches is the answer.

use std::{collections::BTreeMap, net::Ipv4Addr};

use foldhash::{HashMap, HashMapExt as _};
use proxy_ebpf_common::{
    AddressKey, AddressPrefix, Globals, PortKey, PortPrefix, RuleEntry, SourcePrefix, Target,
    protocol, stance,
};
use proxy_rules::{Fragments, Rule, RuleTable, Series, Settings, Side, Unmatched};

mod blocks;
mod counters;
mod level;
mod slots;

pub use slots::Slots;

use level::{Level, Levels, Port};

/// A longest-prefix key: length in bits, data.
pub type Prefixed<K> = (u32, K);

/// The contents of every map that the rule table decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapImage {
    /// Exact destination -> class.
    pub addresses: BTreeMap<AddressKey, u32>,
    /// Destination prefix -> class.
    pub routes: BTreeMap<Prefixed<AddressPrefix>, u32>,
    /// Class and port -> entry.
    pub ports: BTreeMap<PortKey, RuleEntry>,
    /// Class and port block -> entry.
    pub ranges: BTreeMap<Prefixed<PortPrefix>, RuleEntry>,
    /// Group and source prefix -> entry.
    pub sources: BTreeMap<Prefixed<SourcePrefix>, RuleEntry>,
    /// Slot -> target.
    pub lookup: BTreeMap<u32, u32>,
    /// Target index -> target; the hop is not part of the image.
    pub targets: BTreeMap<u32, Target>,
    /// Protected sources.
    pub protected: BTreeMap<Prefixed<AddressPrefix>, u32>,
    /// Bitmap of reserved ports, by word.
    pub reserved: BTreeMap<u32, u64>,
    /// Counter index -> series, those of rules that are gone included: flows may still count there.
    pub counters: BTreeMap<u32, Series>,
    /// Series hash -> counter index, as read back from pinned maps.
    pub hashes: BTreeMap<u64, u32>,
    /// Ports, fragments, unmatched packets; devices are filled in later.
    pub globals: Globals,
}

/// The name of a series that outlives the process.
pub fn series_hash(series: &Series) -> u64 {
    hash(&format!("{series:?}"))
}

fn hash(text: &str) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(text.as_bytes()).as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// An address as the maps hold it.
pub fn address(address: std::net::IpAddr) -> [u8; 16] {
    match address {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(v6) => v6.octets(),
    }
}

/// A side as the maps hold it.
pub const fn side(side: Side) -> u8 {
    match side {
        Side::Tailnet => proxy_ebpf_common::side::TAILNET,
        Side::Cluster => proxy_ebpf_common::side::CLUSTER,
    }
}

/// The length of a prefix with IPv4 as `::ffff:a.b.c.d`.
fn mapped_len(prefix: &ipnet::IpNet) -> u32 {
    u32::from(prefix.prefix_len()) + if prefix.addr().is_ipv4() { 96 } else { 0 }
}

fn address_prefix(prefix: &ipnet::IpNet, side: u8) -> Prefixed<AddressPrefix> {
    let data = AddressPrefix { side: [0, 0, 0, side], address: address(prefix.network()) };
    (proxy_ebpf_common::ADDRESS_BITS + mapped_len(prefix), data)
}

/// IPv4 as it lies in the IPv6 space of the maps: short IPv6 prefixes must not reach into it.
fn shield(prefix: &ipnet::IpNet, side: u8) -> Option<Prefixed<AddressPrefix>> {
    let mapped = Ipv4Addr::UNSPECIFIED.to_ipv6_mapped();
    let covers = prefix.addr().is_ipv6() && prefix.contains(&std::net::IpAddr::V6(mapped));
    let data = AddressPrefix { side: [0, 0, 0, side], address: mapped.octets() };
    covers.then_some((proxy_ebpf_common::ADDRESS_BITS + 96, data))
}

/// Compiles a table. Indices of what survives from the table before stay (`slots`), so flows and counters do too.
pub fn compile(table: &RuleTable, slots: &mut Slots) -> MapImage {
    let mut image = MapImage { globals: globals(table.settings()), ..MapImage::default() };
    for protected in &table.settings().protected {
        image.protected.insert(address_prefix(protected, 0), 1);
        if let Some(shield) = shield(protected, 0) {
            image.protected.entry(shield).or_insert(0);
        }
    }
    for port in &table.settings().snat_ports.reserved {
        *image.reserved.entry(u32::from(*port >> 6)).or_default() |= 1 << (port & 63);
    }
    slots.begin();
    let rules: Vec<(&Rule, RuleEntry)> =
        table.rules().iter().map(|rule| (rule, slots.entry(rule, &mut image))).collect();
    let levels = Levels::new(&rules);
    let mut groups = Groups { rules: &rules, ids: HashMap::new() };
    for (from, prefix) in levels.prefixes() {
        let around = levels.around(from, &prefix);
        let ranged = around.iter().any(|level| !level.ranges.is_empty());
        let class = slots.class(from, prefix, ranged);
        if prefix.prefix_len() == prefix.max_prefix_len() {
            let key = AddressKey {
                address: address(prefix.network()),
                side: side(from),
                reserved: [0; 3],
            };
            image.addresses.insert(key, class);
        } else {
            image.routes.insert(address_prefix(&prefix, side(from)), class);
            if let Some(shield) = shield(&prefix, side(from)) {
                image.routes.entry(shield).or_insert(0);
            }
        }
        ports(class, &around, &mut groups, slots, &mut image);
    }
    slots.end(&mut image);
    image
}

fn globals(settings: &Settings) -> Globals {
    let mut flags = 0;
    if settings.unmatched == Unmatched::Drop {
        flags |= stance::flags::DROP_UNMATCHED;
    }
    if settings.fragments == Fragments::Drop {
        flags |= stance::flags::DROP_FRAGMENTS;
    }
    Globals {
        ifindex: [0; 2],
        snat_first: settings.snat_ports.first,
        snat_last: settings.snat_ports.last,
        snat_tries: settings.snat_ports.tries,
        stance: stance::ALL,
        flags,
    }
}

/// The ports of one class.
fn ports(
    class: u32,
    around: &[&Level],
    groups: &mut Groups<'_>,
    slots: &mut Slots,
    image: &mut MapImage,
) {
    for number in [protocol::TCP, protocol::UDP] {
        for port in level::singles(around, number) {
            let chain = level::chain(around, number, Port::Single(port));
            let entry = groups.entry(&chain, slots, image);
            let key = PortKey { class, port: port.to_be_bytes(), protocol: number, reserved: 0 };
            image.ports.insert(key, entry);
        }
        for (first, last) in blocks::intervals(&level::ranges(around, number)) {
            let chain = level::chain(around, number, Port::Ranged(first));
            let entry = groups.entry(&chain, slots, image);
            for (start, bits) in blocks::aligned(first, last) {
                let data = PortPrefix {
                    class: class.to_be_bytes(),
                    protocol: number,
                    port: start.to_be_bytes(),
                    reserved: 0,
                };
                image.ranges.insert((proxy_ebpf_common::prefix::PORT + bits, data), entry);
            }
        }
    }
    for number in [protocol::TCP, protocol::UDP, protocol::ICMP, protocol::ANY] {
        let chain = level::chain(around, number, Port::Other);
        if chain.is_empty() {
            continue;
        }
        let entry = groups.entry(&chain, slots, image);
        image.ports.insert(PortKey { class, port: [0; 2], protocol: number, reserved: 0 }, entry);
    }
}

/// Source groups, shared by all places with the same chain of rules.
struct Groups<'a> {
    rules: &'a [(&'a Rule, RuleEntry)],
    ids: HashMap<Vec<usize>, u32>,
}

impl Groups<'_> {
    /// The entry for rules in order of precedence; only the last may be open to every source.
    fn entry(&mut self, chain: &[usize], slots: &mut Slots, image: &mut MapImage) -> RuleEntry {
        let open = |index: &usize| {
            self.rules.get(*index).is_some_and(|(rule, _)| rule.matches.src.is_empty())
        };
        let entry = |index: &usize| self.rules.get(*index).map(|(_, entry)| *entry);
        let base = chain.last().filter(|last| open(last)).and_then(entry).unwrap_or_default();
        let limited: Vec<usize> = chain.iter().copied().filter(|index| !open(index)).collect();
        if limited.is_empty() {
            return base;
        }
        let mut whole = limited.clone();
        whole.extend(chain.last().filter(|last| open(last)));
        let group = if let Some(group) = self.ids.get(&whole) {
            *group
        } else {
            let group = slots.group();
            self.fill(group, &limited, image);
            self.ids.insert(whole, group);
            group
        };
        RuleEntry { source_group: group, ..base }
    }

    /// For each prefix of any of the rules, the first rule with a prefix around it.
    fn fill(&self, group: u32, limited: &[usize], image: &mut MapImage) {
        let members: Vec<&(&Rule, RuleEntry)> =
            limited.iter().filter_map(|index| self.rules.get(*index)).collect();
        for (rule, _) in &members {
            let family = |prefix: &&ipnet::IpNet| {
                prefix.addr().is_ipv4() == rule.matches.dst.addr().is_ipv4()
            };
            for prefix in rule.matches.src.iter().filter(family) {
                let winner = members
                    .iter()
                    .find(|(rule, _)| rule.matches.src.iter().any(|other| other.contains(prefix)));
                if let Some((_, entry)) = winner {
                    let data = SourcePrefix {
                        group: group.to_be_bytes(),
                        address: address(prefix.network()),
                    };
                    let len = proxy_ebpf_common::ADDRESS_BITS + mapped_len(prefix);
                    image.sources.insert((len, data), *entry);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
