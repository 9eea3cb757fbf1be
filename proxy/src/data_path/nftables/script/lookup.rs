//! Rules -> what the kernel looks up: exact keys, and boxes that do not overlap.
//!
//! The kernel's interval sets refuse overlapping elements, and "the most specific rule wins" is overlap by
//! definition. So the overlap is resolved here: every destination, protocol and port belongs to exactly one key, and
//! each key knows its rules in order (more than one only while those before it are limited to sources).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use proxy_rules::{Protocol, Rule, Side};

/// A rule that may decide, and the port where each port is counted by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Candidate {
    pub(super) rule: usize,
    pub(super) port: Option<u16>,
}

/// In order of precedence; all but the last are limited to sources.
pub(super) type Candidates = Vec<Candidate>;

/// An address, protocol and port range that no other box shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) first: IpAddr,
    pub(super) last: IpAddr,
    pub(super) protocol: Protocol,
    pub(super) ports: (u16, u16),
    pub(super) candidates: Candidates,
}

/// The lookups of one side and one address family.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    /// One address, one port.
    pub(super) exact: BTreeMap<(IpAddr, Protocol, u16), Candidates>,
    /// Everything else.
    pub(super) boxes: Vec<Cell>,
    /// Destinations with a rule on every protocol.
    pub(super) any_protocol: Vec<IpNet>,
    /// Destinations with any rule.
    pub(super) destinations: Vec<IpNet>,
}

/// The rules of one destination prefix, in canonical order.
#[derive(Default)]
struct Group {
    singles: HashMap<(Protocol, u16), Vec<usize>>,
    others: Vec<usize>,
}

struct Groups<'a> {
    rules: &'a [Rule],
    by_prefix: BTreeMap<IpNet, Group>,
    /// Prefix lengths that occur, longest first.
    lengths: Vec<u8>,
}

impl Lookup {
    /// The lookups for flows from one side.
    pub(super) fn new(rules: &[Rule], from: Side, ipv6: bool) -> Self {
        let groups = Groups::new(rules, from, ipv6);
        let dsts = |keep: &dyn Fn(&Rule) -> bool| {
            let nets: Vec<_> = groups
                .members()
                .filter_map(|i| rules.get(i))
                .filter(|rule| keep(rule))
                .map(|rule| rule.matches.dst)
                .collect();
            IpNet::aggregate(&nets)
        };
        Self {
            exact: groups.exact(),
            boxes: groups.boxes(),
            any_protocol: dsts(&|rule| rule.matches.protocol.is_none()),
            destinations: dsts(&|_| true),
        }
    }
}

impl<'a> Groups<'a> {
    fn new(rules: &'a [Rule], from: Side, ipv6: bool) -> Self {
        let mut by_prefix: BTreeMap<IpNet, Group> = BTreeMap::new();
        for (index, rule) in rules.iter().enumerate() {
            let m = &rule.matches;
            if rule.from != from || matches!(m.dst, IpNet::V6(_)) != ipv6 {
                continue;
            }
            let group = by_prefix.entry(m.dst.trunc()).or_default();
            match m.protocol {
                Some(protocol) if m.ports.is_single() => {
                    group.singles.entry((protocol, m.ports.first())).or_default().push(index);
                }
                _ => group.others.push(index),
            }
        }
        let lengths: BTreeSet<u8> = by_prefix.keys().map(IpNet::prefix_len).collect();
        Self { rules, by_prefix, lengths: lengths.into_iter().rev().collect() }
    }

    fn members(&self) -> impl Iterator<Item = usize> {
        self.by_prefix.values().flat_map(|g| g.singles.values().flatten().chain(&g.others)).copied()
    }

    /// The groups whose prefix covers `net`, longest first.
    fn covering(&self, net: IpNet) -> impl Iterator<Item = (&IpNet, &Group)> {
        self.lengths.iter().filter(move |len| **len <= net.prefix_len()).filter_map(move |len| {
            let prefix = IpNet::new(net.addr(), *len).ok()?.trunc();
            self.by_prefix.get_key_value(&prefix)
        })
    }

    /// The rules for a destination, protocol and port, up to the first that is not limited to sources. With
    /// `in_boxes`, what the exact keys hold is left out.
    fn candidates(&self, net: IpNet, protocol: Protocol, port: u16, in_boxes: bool) -> Candidates {
        let mut found = Vec::new();
        for (prefix, group) in self.covering(net) {
            let exact = in_boxes && is_host(prefix);
            let singles = if exact { None } else { group.singles.get(&(protocol, port)) };
            let singles = singles.into_iter().flatten();
            for &index in singles.chain(&group.others) {
                let Some(rule) = self.rules.get(index) else { continue };
                let m = &rule.matches;
                if exact && rule.counts_each_port()
                    || m.protocol.is_some_and(|p| p != protocol)
                    || !m.ports.contains(port)
                {
                    continue;
                }
                found
                    .push(Candidate { rule: index, port: rule.counts_each_port().then_some(port) });
                if m.src.is_empty() {
                    return found;
                }
            }
        }
        found
    }

    fn exact(&self) -> BTreeMap<(IpAddr, Protocol, u16), Candidates> {
        let mut keys = BTreeSet::new();
        for (prefix, group) in self.by_prefix.iter().filter(|(prefix, _)| is_host(prefix)) {
            keys.extend(group.singles.keys().map(|(protocol, port)| (*prefix, *protocol, *port)));
            for rule in group.others.iter().filter_map(|i| self.rules.get(*i)) {
                if let (true, Some(protocol)) = (rule.counts_each_port(), rule.matches.protocol) {
                    let ports = rule.matches.ports;
                    keys.extend((ports.first()..=ports.last()).map(|p| (*prefix, protocol, p)));
                }
            }
        }
        keys.into_iter()
            .map(|(net, protocol, port)| {
                ((net.addr(), protocol, port), self.candidates(net, protocol, port, false))
            })
            .collect()
    }

    fn boxes(&self) -> Vec<Cell> {
        let prefixes: Vec<IpNet> = self
            .by_prefix
            .iter()
            .filter(|(prefix, group)| {
                let in_boxes = |i: &usize| {
                    self.rules.get(*i).is_some_and(|r| !(is_host(prefix) && r.counts_each_port()))
                };
                group.others.iter().any(in_boxes) || (!is_host(prefix) && !group.singles.is_empty())
            })
            .map(|(prefix, _)| *prefix)
            .collect();
        let mut boxes = Vec::new();
        for (prefix, spans) in disjoint(prefixes) {
            for protocol in Protocol::ALL {
                for (ports, candidates) in self.port_intervals(prefix, protocol) {
                    boxes.extend(spans.iter().map(|(first, last)| Cell {
                        first: address(*first, &prefix),
                        last: address(*last, &prefix),
                        protocol,
                        ports,
                        candidates: candidates.clone(),
                    }));
                }
            }
        }
        boxes
    }

    /// The ports of a destination, cut wherever the answer changes.
    fn port_intervals(&self, net: IpNet, protocol: Protocol) -> Vec<((u16, u16), Candidates)> {
        let mut cuts = BTreeSet::from([0_u32]);
        for (prefix, group) in self.covering(net) {
            let singles = group.singles.values().flatten().filter(|_| !is_host(prefix));
            for rule in singles.chain(&group.others).filter_map(|i| self.rules.get(*i)) {
                let ports = rule.matches.ports;
                let (first, end) = (u32::from(ports.first()), u32::from(ports.last()) + 1);
                cuts.extend([first, end]);
                if rule.counts_each_port() && !is_host(prefix) {
                    cuts.extend(first..end);
                }
            }
        }
        if protocol == Protocol::Icmp {
            // No ports: the answer is that of any port, and the box must hold whatever the kernel reads there.
            cuts = BTreeSet::from([0]);
        }
        let mut intervals: Vec<((u16, u16), Candidates)> = Vec::new();
        let mut ends = cuts.iter().skip(1).copied().chain([0x1_0000]);
        for first in cuts.iter().copied().filter(|cut| *cut <= 0xffff) {
            let last = (ends.next().unwrap_or(0x1_0000) - 1) as u16;
            let candidates = self.candidates(net, protocol, first as u16, true);
            match intervals.last_mut() {
                _ if candidates.is_empty() => {}
                Some(((_, end), same)) if u32::from(*end) + 1 == first && *same == candidates => {
                    *end = last;
                }
                _ => intervals.push(((first as u16, last), candidates)),
            }
        }
        intervals
    }
}

fn is_host(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

fn bounds(net: &IpNet) -> (u128, u128) {
    let number = |address| match address {
        IpAddr::V4(a) => u128::from(u32::from(a)),
        IpAddr::V6(a) => u128::from(a),
    };
    (number(net.network()), number(net.broadcast()))
}

fn address(number: u128, family: &IpNet) -> IpAddr {
    match family {
        IpNet::V4(_) => Ipv4Addr::from(number as u32).into(),
        IpNet::V6(_) => Ipv6Addr::from(number).into(),
    }
}

type Spans = Vec<(u128, u128)>;

/// Each prefix without the longer ones inside it. Prefixes are nested or apart, never half over each other.
fn disjoint(mut prefixes: Vec<IpNet>) -> Vec<(IpNet, Spans)> {
    prefixes.sort_by_key(|net| (bounds(net).0, net.prefix_len()));
    let mut done = Vec::new();
    // The open prefixes, outermost first, each with the first address that is not dealt with yet.
    let mut open: Vec<(IpNet, Option<u128>, Spans)> = Vec::new();
    let close = |open: &mut Vec<(IpNet, Option<u128>, Spans)>, done: &mut Vec<(IpNet, Spans)>| {
        if let Some((net, next, mut spans)) = open.pop() {
            let last = bounds(&net).1;
            if let Some(next) = next.filter(|next| *next <= last) {
                spans.push((next, last));
            }
            done.push((net, spans));
        }
    };
    for net in prefixes {
        let (first, last) = bounds(&net);
        while open.last().is_some_and(|(outer, ..)| bounds(outer).1 < first) {
            close(&mut open, &mut done);
        }
        if let Some((_, next, spans)) = open.last_mut() {
            if let Some(start) = next.filter(|start| *start < first) {
                spans.push((start, first - 1));
            }
            *next = last.checked_add(1);
        }
        open.push((net, Some(first), Vec::new()));
    }
    while !open.is_empty() {
        close(&mut open, &mut done);
    }
    done.retain(|(_, spans)| !spans.is_empty());
    done
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proxy_rules::{Action, Match, PortRange, RuleId, RuleTable, Settings};

    use super::*;

    fn spans(prefixes: &[&str]) -> Vec<(String, Vec<String>)> {
        let nets = prefixes.iter().map(|p| p.parse().unwrap()).collect();
        disjoint(nets)
            .into_iter()
            .map(|(net, spans)| {
                let text = spans
                    .iter()
                    .map(|(a, b)| format!("{}-{}", address(*a, &net), address(*b, &net)));
                (net.to_string(), text.collect())
            })
            .collect()
    }

    #[test]
    fn nested_prefixes_are_cut_out_of_the_outer_ones() {
        let got = spans(&["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "192.0.2.0/24"]);
        let want: [(&str, &[&str]); 4] = [
            ("10.1.2.3/32", &["10.1.2.3-10.1.2.3"]),
            ("10.1.0.0/16", &["10.1.0.0-10.1.2.2", "10.1.2.4-10.1.255.255"]),
            ("10.0.0.0/8", &["10.0.0.0-10.0.255.255", "10.2.0.0-10.255.255.255"]),
            ("192.0.2.0/24", &["192.0.2.0-192.0.2.255"]),
        ];
        assert_eq!(got.len(), want.len());
        for ((net, spans), (want_net, want_spans)) in got.iter().zip(want) {
            assert_eq!(net, want_net);
            assert_eq!(spans, want_spans);
        }
    }

    #[test]
    fn the_ends_of_the_address_space_do_not_overflow() {
        assert_eq!(
            spans(&["::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"]).last().unwrap().1,
            ["::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"]
        );
        assert_eq!(spans(&["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1"]).len(), 2);
    }

    fn rules() -> impl Strategy<Value = Vec<Rule>> {
        let prefix = prop_oneof![
            Just("10.0.0.0/30"),
            Just("10.0.0.0/31"),
            Just("10.0.0.0/32"),
            Just("10.0.0.1/32"),
            Just("10.0.0.2/32"),
            Just("0.0.0.0/0"),
        ];
        let ports = prop_oneof![
            Just((0, u16::MAX)),
            (1_u16..6).prop_map(|port| (port, port)),
            (1_u16..4, 0_u16..4).prop_map(|(first, more)| (first, first + more)),
        ];
        let protocol = prop_oneof![
            Just(None),
            Just(Some(Protocol::Tcp)),
            Just(Some(Protocol::Udp)),
            Just(Some(Protocol::Icmp))
        ];
        let source = prop_oneof![3 => Just(None), 1 => Just(Some("192.0.2.0/31")), 1 => Just(Some("192.0.2.1/32"))];
        let rule = (prefix, ports, protocol, source, any::<bool>()).prop_filter_map(
            "only protocols with ports have ports",
            |(dst, (first, last), protocol, source, each)| {
                let ports = PortRange::new(first, last).unwrap_or(PortRange::ANY);
                let has_ports = matches!(protocol, Some(Protocol::Tcp | Protocol::Udp));
                (ports.is_any() || has_ports).then(|| Rule {
                    id: RuleId::new("rule"),
                    from: Side::Tailnet,
                    matches: Match {
                        protocol,
                        dst: dst.parse().unwrap(),
                        ports,
                        src: source.iter().map(|net| net.parse().unwrap()).collect(),
                    },
                    action: Action::Reject,
                    count_per_port: each,
                })
            },
        );
        prop::collection::vec(rule, 0..12)
    }

    proptest! {
        /// Every destination, protocol, port and source finds the rule that a search through the table finds.
        #[test]
        fn a_lookup_finds_what_a_search_finds(rules in rules()) {
            let table = RuleTable::new(rules, Settings::default());
            let rules = table.rules();
            let lookup = Lookup::new(rules, Side::Tailnet, false);
            for last in 0..5_u8 {
                for protocol in Protocol::ALL {
                    let ports = if protocol == Protocol::Icmp { 0..1 } else { 1..9_u16 };
                    for port in ports {
                        let dst = IpAddr::from([10, 0, 0, last]);
                        let boxes: Vec<_> = lookup
                            .boxes
                            .iter()
                            .filter(|b| (b.first..=b.last).contains(&dst) && b.protocol == protocol)
                            .filter(|b| (b.ports.0..=b.ports.1).contains(&port))
                            .collect();
                        prop_assert!(boxes.len() <= 1, "boxes overlap: {boxes:?}");
                        let exact = lookup.exact.get(&(dst, protocol, port));
                        let candidates = exact.or(boxes.first().map(|b| &b.candidates));
                        for source in 0..3_u8 {
                            let src = IpAddr::from([192, 0, 2, source]);
                            let from = |m: &Match| m.src.is_empty() || m.src.iter().any(|n| n.contains(&src));
                            let found = candidates.and_then(|all| {
                                all.iter().find(|c| from(&rules[c.rule].matches))
                            });
                            let searched = rules.iter().position(|rule| {
                                let m = &rule.matches;
                                m.dst.contains(&dst)
                                    && m.ports.contains(port)
                                    && m.protocol.is_none_or(|p| p == protocol)
                                    && from(m)
                            });
                            prop_assert_eq!(found.map(|c| c.rule), searched);
                            if let Some(Candidate { rule, port: counted }) = found {
                                let each = rules[*rule].counts_each_port();
                                prop_assert_eq!(*counted, each.then_some(port));
                            }
                        }
                    }
                }
            }
        }
    }
}
