use proxy_ebpf_common::{clock, protocol, tcp};

use super::*;

fn flow(
    protocol: u8,
    original: u8,
    reply: u8,
    seen: u32,
    replied: u32,
) -> (FlowKey, FlowHalf, FlowHalf) {
    let key = FlowKey { protocol, ..FlowKey::default() };
    let half = FlowHalf { tcp: original, last_seen: seen, ..FlowHalf::default() };
    let back =
        FlowHalf { tcp: reply, last_seen: replied, flags: half::REPLY, ..FlowHalf::default() };
    (key, half, back)
}

fn lifetime(protocol: u8, original: u8, reply: u8, replied: bool) -> u32 {
    let start = 1000;
    let (key, half, back) = flow(protocol, original, reply, start, if replied { start } else { 0 });
    (0..500_000)
        .find(|idle| fate(&key, &half, Some(&back), start + idle, false) == Fate::Remove)
        .map_or(u32::MAX, |ticks| clock::seconds(ticks) as u32)
}

#[test]
fn time_outs_are_those_of_the_kernels_connection_tracking() {
    assert_eq!(lifetime(protocol::UDP, 0, 0, false), 30);
    assert_eq!(lifetime(protocol::UDP, 0, 0, true), 120);
    assert_eq!(lifetime(protocol::ICMP, 0, 0, true), 30);
    assert_eq!(lifetime(protocol::TCP, tcp::SYN, 0, false), 120);
    assert_eq!(lifetime(protocol::TCP, tcp::SYN, tcp::SYN, true), 60);
    assert_eq!(lifetime(protocol::TCP, tcp::SYN | tcp::OPEN, tcp::SYN | tcp::OPEN, true), 432_000);
    assert_eq!(lifetime(protocol::TCP, tcp::OPEN | tcp::FIN, tcp::OPEN, true), 120);
    assert_eq!(lifetime(protocol::TCP, tcp::OPEN | tcp::FIN, tcp::OPEN | tcp::FIN, true), 120);
    assert_eq!(lifetime(protocol::TCP, tcp::OPEN | tcp::RST, tcp::OPEN, true), 10);
}

#[test]
fn a_crowded_table_gives_up_unassured_flows_only() {
    let (key, half, back) = flow(protocol::TCP, tcp::SYN, 0, 1000, 0);
    assert_eq!(fate(&key, &half, Some(&back), 1001, true), Fate::Remove);
    assert_eq!(fate(&key, &half, Some(&back), 1001, false), Fate::Keep);
    let (key, half, back) = flow(protocol::TCP, tcp::OPEN, tcp::OPEN, 1000, 1000);
    assert_eq!(fate(&key, &half, Some(&back), 90_000, true), Fate::Keep);
}

#[test]
fn a_day_of_ageing_keeps_established_flows_and_nothing_else() {
    let flows: Vec<_> = (0..1000u32)
        .map(|n| match n % 4 {
            0 => flow(protocol::TCP, tcp::OPEN, tcp::OPEN, 1 + n, 1 + n),
            1 => flow(protocol::TCP, tcp::SYN, 0, 1 + n, 0),
            2 => flow(protocol::UDP, 0, 0, 1 + n, 1 + n),
            _ => flow(protocol::TCP, tcp::FIN | tcp::OPEN, tcp::FIN | tcp::OPEN, 1 + n, 1 + n),
        })
        .collect();
    let left = flows
        .iter()
        .filter(|(key, half, back)| fate(key, half, Some(back), 86_400, false) == Fate::Keep)
        .count();
    assert_eq!(left, 250);
}
