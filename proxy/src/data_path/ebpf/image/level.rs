//! The rules of one destination prefix, and of the prefixes around it.

use std::collections::BTreeSet;

use foldhash::{HashMap, HashMapExt as _};
use ipnet::IpNet;
use proxy_ebpf_common::{RuleEntry, protocol};
use proxy_rules::{Protocol, Rule, Side};

/// A rule, by index into the table, and whether it is open to every source.
type Member = (usize, bool);

/// The rules of one side and destination prefix, each list in the table's order.
#[derive(Default)]
pub(super) struct Level {
    singles: HashMap<(u8, u16), Vec<Member>>,
    /// Protocol number, first port, last port, rule.
    pub(super) ranges: Vec<(u8, u16, u16, Member)>,
    /// Protocol number (`ANY` for rules on every protocol), rule.
    any: Vec<(u8, Member)>,
}

/// Every level, by side and prefix.
pub(super) struct Levels {
    by_prefix: HashMap<(Side, IpNet), Level>,
    lengths: HashMap<Side, BTreeSet<u8>>,
    order: Vec<(Side, IpNet)>,
}

impl Levels {
    pub(super) fn new(rules: &[(&Rule, RuleEntry)]) -> Self {
        let mut levels =
            Self { by_prefix: HashMap::new(), lengths: HashMap::new(), order: Vec::new() };
        for (index, (rule, _)) in rules.iter().enumerate() {
            let prefix = rule.matches.dst.trunc();
            let key = (rule.from, prefix);
            levels.lengths.entry(rule.from).or_default().insert(prefix.prefix_len());
            let level = levels.by_prefix.entry(key).or_insert_with(|| {
                levels.order.push(key);
                Level::default()
            });
            let member = (index, rule.matches.src.is_empty());
            let number = rule.matches.protocol.map_or(protocol::ANY, Protocol::number);
            let ports = rule.matches.ports;
            if ports.is_any() {
                level.any.push((number, member));
            } else if ports.is_single() {
                level.singles.entry((number, ports.first())).or_default().push(member);
            } else {
                level.ranges.push((number, ports.first(), ports.last(), member));
            }
        }
        levels
    }

    /// Every side and prefix, in the table's order.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = (Side, IpNet)> + '_ {
        self.order.iter().copied()
    }

    /// The level of a prefix and those around it, longest first.
    pub(super) fn around(&self, from: Side, prefix: &IpNet) -> Vec<&Level> {
        let lengths = self.lengths.get(&from);
        lengths
            .into_iter()
            .flat_map(|lengths| lengths.range(..=prefix.prefix_len()).rev())
            .filter_map(|len| IpNet::new(prefix.network(), *len).ok())
            .filter_map(|around| self.by_prefix.get(&(from, around.trunc())))
            .collect()
    }
}

/// The ports that any rule of the levels names alone.
pub(super) fn singles(levels: &[&Level], number: u8) -> BTreeSet<u16> {
    levels
        .iter()
        .flat_map(|level| level.singles.keys())
        .filter(|(protocol, _)| *protocol == number)
        .map(|(_, port)| *port)
        .collect()
}

/// The ranges of the levels.
pub(super) fn ranges(levels: &[&Level], number: u8) -> Vec<(u16, u16)> {
    levels
        .iter()
        .flat_map(|level| &level.ranges)
        .filter(|(protocol, ..)| *protocol == number)
        .map(|(_, first, last, _)| (*first, *last))
        .collect()
}

/// What a chain is for.
#[derive(Clone, Copy)]
pub(super) enum Port {
    /// One port that a rule names alone.
    Single(u16),
    /// Ports within the same ranges as this one, none named alone.
    Ranged(u16),
    /// Ports that no rule names.
    Other,
}

/// The rules that match a protocol and port, in order of precedence, up to the first that is open to every source.
pub(super) fn chain(levels: &[&Level], number: u8, place: Port) -> Vec<usize> {
    let (single, port) = match place {
        Port::Single(port) => (Some(port), Some(port)),
        Port::Ranged(port) => (None, Some(port)),
        Port::Other => (None, None),
    };
    let mut chain = Vec::new();
    for level in levels {
        let named = single.and_then(|port| level.singles.get(&(number, port)));
        let singles = named.into_iter().flatten().copied();
        let mut ranges: Vec<_> = level
            .ranges
            .iter()
            .filter(|(protocol, first, last, _)| {
                *protocol == number && port.is_some_and(|port| *first <= port && port <= *last)
            })
            .map(|(.., member)| *member)
            .collect();
        ranges.sort_unstable();
        let any = level
            .any
            .iter()
            .filter(|(protocol, _)| *protocol == number || *protocol == protocol::ANY)
            .map(|(_, member)| *member);
        for (index, is_open) in singles.chain(ranges).chain(any) {
            chain.push(index);
            if is_open {
                return chain;
            }
        }
    }
    chain
}
