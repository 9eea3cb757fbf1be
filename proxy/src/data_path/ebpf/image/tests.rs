use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use proxy_ebpf_common::{CLASS_HAS_RANGES, action};
use proxy_rules::{
    Action, Affinity, Backend, BackendState, Backends, Match, PortRange, Protocol, RuleId, Snat,
};

use super::*;

/// The lookup as the programs do it.
fn look_up(
    image: &MapImage,
    from: Side,
    src: IpAddr,
    dst: IpAddr,
    number: u8,
    port: u16,
) -> Option<RuleEntry> {
    let bytes = address(dst);
    let exact = AddressKey { address: bytes, side: side(from), reserved: [0; 3] };
    let class = image.addresses.get(&exact).copied().or_else(|| {
        (0..=128).rev().find_map(|len| {
            let data = AddressPrefix { side: [0, 0, 0, side(from)], address: truncate(bytes, len) };
            image.routes.get(&(32 + len, data)).copied()
        })
    })?;
    let key =
        |port: u16, protocol| PortKey { class, port: port.to_be_bytes(), protocol, reserved: 0 };
    let mut entry = None;
    if number != protocol::ICMP {
        entry = image.ports.get(&key(port, number)).copied();
        if entry.is_none() && class & CLASS_HAS_RANGES != 0 {
            entry = (0..=16u32).rev().find_map(|len| {
                let masked = if len == 0 { 0 } else { port & (u16::MAX << (16 - len)) };
                let data = PortPrefix {
                    class: class.to_be_bytes(),
                    protocol: number,
                    port: masked.to_be_bytes(),
                    reserved: 0,
                };
                image.ranges.get(&(40 + len, data)).copied()
            });
        }
    }
    let entry = entry
        .or_else(|| image.ports.get(&key(0, number)).copied())
        .or_else(|| image.ports.get(&key(0, protocol::ANY)).copied())?;
    let decided = if entry.source_group == 0 {
        entry
    } else {
        (0..=128)
            .rev()
            .find_map(|len| {
                let data = SourcePrefix {
                    group: entry.source_group.to_be_bytes(),
                    address: truncate(address(src), len),
                };
                image.sources.get(&(32 + len, data)).copied()
            })
            .unwrap_or(entry)
    };
    (decided.action != action::NONE).then_some(decided)
}

fn truncate(bytes: [u8; 16], len: u32) -> [u8; 16] {
    let mask = if len == 0 { 0 } else { u128::MAX << (128 - len) };
    (u128::from_be_bytes(bytes) & mask).to_be_bytes()
}

fn first_match(
    table: &RuleTable,
    from: Side,
    src: IpAddr,
    dst: IpAddr,
    number: u8,
    port: u16,
) -> Option<&Rule> {
    table.rules().iter().find(|rule| {
        let m = &rule.matches;
        rule.from == from
            && m.dst.contains(&dst)
            && m.protocol.is_none_or(|wanted| wanted.number() == number)
            && (m.ports.is_any() || (number != protocol::ICMP && m.ports.contains(port)))
            && (m.src.is_empty() || m.src.iter().any(|prefix| prefix.contains(&src)))
    })
}

fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0u8..4, 0u8..4).prop_map(|(a, b)| IpAddr::V4(Ipv4Addr::new(10, 0, a, b))),
        (0u16..3).prop_map(|a| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, a, 1))),
    ]
}

fn prefix() -> impl Strategy<Value = ipnet::IpNet> {
    (
        ip(),
        prop_oneof![
            Just(0u8),
            Just(8),
            Just(24),
            Just(30),
            Just(31),
            Just(32),
            Just(96),
            Just(128)
        ],
    )
        .prop_map(|(ip, len)| {
            let max = if ip.is_ipv4() { 32 } else { 128 };
            ipnet::IpNet::new_assert(ip, if len == 32 || len == 128 { max } else { len.min(max) })
                .trunc()
        })
}

fn ports() -> impl Strategy<Value = PortRange> {
    prop_oneof![
        Just(PortRange::ANY),
        (1u16..12).prop_map(|port| PortRange::single(port).unwrap()),
        (1u16..12, 0u16..12).prop_map(|(first, len)| PortRange::new(first, first + len).unwrap()),
        Just(PortRange::new(1, 65535).unwrap()),
    ]
}

prop_compose! {
    fn rule()(
        from in prop_oneof![Just(Side::Tailnet), Just(Side::Cluster)],
        dst in prefix(),
        ports in ports(),
        protocol in prop_oneof![Just(None), Just(Some(Protocol::Tcp)), Just(Some(Protocol::Udp)), Just(Some(Protocol::Icmp))],
        src in proptest::collection::vec(prefix(), 0..3),
    ) -> (Side, Match) {
        let protocol = if ports.is_any() { protocol } else { protocol.filter(|p| *p != Protocol::Icmp).or(Some(Protocol::Tcp)) };
        (from, Match { protocol, dst, ports, src })
    }
}

fn table(rules: Vec<(Side, Match)>) -> RuleTable {
    let mut seen = std::collections::HashSet::new();
    let rules = rules
        .into_iter()
        .enumerate()
        .filter(|(_, (from, m))| seen.insert((*from, m.protocol, m.dst, m.ports, m.src.clone())))
        .map(|(index, (from, matches))| Rule {
            id: RuleId::new(format!("r{index}")),
            from,
            matches,
            action: Action::Forward { to: from.other(), snat: Snat::Keep },
            count_per_port: false,
        })
        .collect();
    RuleTable::new(rules, Settings::default())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_lookup_finds_the_first_rule_that_matches(
        rules in proptest::collection::vec(rule(), 0..14),
        packets in proptest::collection::vec((ip(), ip(), 0usize..3, 1u16..26), 20),
    ) {
        let table = table(rules);
        let image = compile(&table, &mut Slots::default());
        for (src, dst, protocol, port) in packets.into_iter().filter(|(src, dst, ..)| src.is_ipv4() == dst.is_ipv4()) {
            let number = Protocol::ALL[protocol].number();
            for from in [Side::Tailnet, Side::Cluster] {
                let wanted = first_match(&table, from, src, dst, number, port).map(|rule| rule.id.clone());
                let found = look_up(&image, from, src, dst, number, port)
                    .map(|entry| image.counters[&entry.counter].rule.clone());
                prop_assert_eq!(found, wanted, "{} {} -> {}:{} proto {}", from, src, dst, port, number);
            }
        }
    }
}

fn frontend(port: u16, backends: &[(u8, BackendState)]) -> Rule {
    Rule {
        id: RuleId::new("web"),
        from: Side::Tailnet,
        matches: Match {
            protocol: Some(Protocol::Tcp),
            dst: "100.64.0.1/32".parse().unwrap(),
            ports: PortRange::single(port).unwrap(),
            src: Vec::new(),
        },
        action: Action::Dnat {
            backends: Backends {
                list: backends
                    .iter()
                    .map(|(last, state)| Backend {
                        address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, *last)),
                        port: Some(8080),
                        weight: 1,
                        state: *state,
                    })
                    .collect(),
                affinity: Affinity::Flow,
            },
            snat: Snat::Masquerade,
            proxy_protocol: false,
        },
        count_per_port: false,
    }
}

#[test]
fn what_survives_keeps_its_place() {
    use BackendState::{Draining, Ready};
    let mut slots = Slots::default();
    let both = RuleTable::new(vec![frontend(80, &[(10, Ready), (11, Ready)])], Settings::default());
    let first = compile(&both, &mut slots);
    let more = RuleTable::new(
        vec![
            frontend(80, &[(10, Ready), (11, Draining), (12, Ready)]),
            frontend(81, &[(10, Ready)]),
        ],
        Settings::default(),
    );
    let second = compile(&more, &mut slots);
    for (index, target) in &first.targets {
        assert_eq!(second.targets.get(index), Some(target), "target {index}");
    }
    for (index, series) in &first.counters {
        assert_eq!(second.counters.get(index), Some(series));
    }
    let ready: std::collections::BTreeSet<u32> =
        second.lookup.values().map(|index| u32::from(second.targets[index].address[15])).collect();
    assert_eq!(ready, [10, 12].into());
    let mut taken_over = Slots::resume(&MapImage { hashes: hashes(&second), ..second.clone() });
    let third = compile(&more, &mut taken_over);
    assert_eq!(third.targets, second.targets, "an agent that takes over numbers alike");
    assert_eq!(third.counters, second.counters);
    assert_eq!(third.ports, second.ports, "so nothing of an unchanged table is written anew");
    assert_eq!((third.addresses, third.lookup), (second.addresses, second.lookup));
    assert_eq!(taken_over.sizes(), slots.sizes(), "and no takeover needs more room than the last");
}

fn hashes(image: &MapImage) -> BTreeMap<u64, u32> {
    image.counters.iter().map(|(index, series)| (series_hash(series), *index)).collect()
}

#[test]
fn ten_thousand_ports_compile_in_linear_time() {
    let rules = (1..=10_000).map(|port| frontend(port, &[(10, BackendState::Ready)])).collect();
    let table = RuleTable::new(rules, Settings::default());
    let image = compile(&table, &mut Slots::default());
    assert_eq!(image.ports.len(), 10_000);
    assert_eq!(image.addresses.len(), 1);
}
