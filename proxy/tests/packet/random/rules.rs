//! Random tables over few addresses and ports, so that rules meet each other and packets meet rules.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use proxy_rules::{
    Action, Affinity, Backend, BackendState, Backends, DropReason, Fragments, Match, PortRange,
    Protocol, Rule, RuleId, RuleTable, Settings, Side, Snat, SnatPorts, Unmatched,
};

use super::Random;

/// Ports: edges of ranges, and what lies beside them.
pub(crate) const PORTS: [u16; 10] = [1, 80, 81, 443, 4999, 5000, 5007, 5008, 20_000, 65_535];

/// Hosts of either family: clients, frontends, backends.
pub(crate) fn hosts(v6: bool) -> Vec<IpAddr> {
    let text: &[&str] = if v6 {
        &[
            "2001:db8:64::9",
            "2001:db8:64::a",
            "2001:db8:f::",
            "2001:db8:f::10",
            "2001:db8:f::11",
            "2001:db8:b::20",
            "2001:db8:b::21",
        ]
    } else {
        &[
            "100.64.0.9",
            "100.64.0.10",
            "198.51.100.0",
            "198.51.100.10",
            "198.51.100.255",
            "203.0.113.20",
            "203.0.113.21",
        ]
    };
    text.iter().map(|text| text.parse().unwrap()).collect()
}

fn net(random: &mut Random, v6: bool) -> IpNet {
    let host = random.pick(&hosts(v6));
    let full = if v6 { 128 } else { 32 };
    let len = if random.one_in(2) {
        full
    } else if v6 {
        random.pick(&[0, 1, 32, 48, 64, 127])
    } else {
        random.pick(&[0, 1, 8, 24, 25, 31])
    };
    IpNet::new(host, len).unwrap().trunc()
}

fn ports(random: &mut Random) -> PortRange {
    match random.below(4) {
        0 => PortRange::ANY,
        1 => PortRange::new(5000, 5007).unwrap(),
        2 => PortRange::new(81, 5000).unwrap(),
        _ => PortRange::single(random.pick(&PORTS)).unwrap(),
    }
}

fn backends(random: &mut Random, v6: bool) -> Backends {
    let mut taken = BTreeSet::new();
    let mut list = Vec::new();
    for _ in 0..random.below(4) {
        let port = random.pick(&[None, Some(8080), Some(443)]);
        let address = random.pick(&hosts(v6)[5..]);
        if taken.insert((address, port)) {
            let state = if random.one_in(5) { BackendState::Draining } else { BackendState::Ready };
            list.push(Backend { address, port, weight: random.pick(&[1, 1, 3, 100]), state });
        }
    }
    let affinity = random.pick(&[Affinity::Flow, Affinity::ClientIp]);
    Backends { list, affinity }
}

fn action(random: &mut Random, v6: bool) -> Action {
    let snat = match random.below(4) {
        0 => Snat::To(random.pick(&hosts(v6))),
        1 => Snat::Keep,
        _ => Snat::Masquerade,
    };
    match random.below(10) {
        0 => Action::Reject,
        1 => Action::Drop(DropReason::RuleDrop),
        2..=4 => Action::Forward { to: random.pick(&[Side::Tailnet, Side::Cluster]), snat },
        _ => Action::Dnat { backends: backends(random, v6), snat, proxy_protocol: false },
    }
}

fn rule(random: &mut Random) -> Rule {
    let v6 = random.one_in(2);
    let protocol =
        random.pick(&[None, Some(Protocol::Tcp), Some(Protocol::Udp), Some(Protocol::Icmp)]);
    let has_ports = matches!(protocol, Some(Protocol::Tcp | Protocol::Udp));
    let ports = if has_ports { ports(random) } else { PortRange::ANY };
    let src = if random.one_in(3) { vec![net(random, v6), net(random, v6)] } else { Vec::new() };
    let from = random.pick(&[Side::Tailnet, Side::Tailnet, Side::Cluster]);
    let matches = Match { protocol, dst: net(random, v6), ports, src };
    // A flow belongs to what its rule matches, whatever the rule is called: here both are the same.
    let id = RuleId::new(format!("{from} {matches:?}"));
    Rule { id, from, matches, action: action(random, v6), count_per_port: random.one_in(2) }
}

pub(crate) fn table(random: &mut Random, max_flows: u32) -> RuleTable {
    let mut names = BTreeSet::new();
    let mut rules: Vec<Rule> = (0..=random.below(12)).map(|_| rule(random)).collect();
    rules.retain(|rule| {
        let mut matches = rule.matches.clone();
        matches.src.sort_unstable();
        matches.src.dedup();
        names.insert(format!("{} {matches:?}", rule.from))
    });
    let first = random.pick(&[1024, 4000, 65_500]);
    let last = if random.one_in(3) { first + 7 } else { 65_535 };
    let settings = Settings {
        protected: if random.one_in(3) {
            vec![net(random, false), net(random, true)]
        } else {
            vec![]
        },
        unmatched: random.pick(&[Unmatched::Drop, Unmatched::Pass]),
        fragments: random.pick(&[Fragments::Track, Fragments::Track, Fragments::Drop]),
        snat_ports: SnatPorts {
            first,
            last,
            reserved: vec![first, first + 3, 5000, 65_535],
            tries: random.pick(&[1, 8, 64]),
        },
        max_flows,
        ..Settings::default()
    };
    RuleTable::new(rules, settings)
}
