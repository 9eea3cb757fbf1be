//! Several backends: a Maglev table (Eisenbud et al., NSDI 2016, section 3.4) as a map on a hash.

use std::{fmt::Write as _, net::IpAddr};

use proxy_rules::{Affinity, Backend, Match, Protocol};

use super::mark::fnv1a;

/// The primes that table sizes are taken from: the first with at least 16 slots for each backend. A slot costs the
/// kernel memory and an apply time; a few backends are spread well by few slots.
const SIZES: [usize; 5] = [61, 127, 251, 509, 1021];

/// The backend of every slot. A backend that comes or goes moves few of the others' slots.
pub(super) fn slots(backends: &[&Backend]) -> Vec<usize> {
    let size = SIZES.into_iter().find(|size| *size >= 16 * backends.len()).unwrap_or(1021);
    let mut table: Vec<Option<usize>> = vec![None; size];
    let mut walks: Vec<(usize, usize)> = backends
        .iter()
        .map(|backend| {
            let name = format!("{}/{:?}", backend.address, backend.port);
            let (offset, skip) = (fnv1a(name.as_bytes()), fnv1a(format!("{name}/skip").as_bytes()));
            (offset as usize % size, skip as usize % (size - 1) + 1)
        })
        .collect();
    // Each round a backend earns its weight and pays the greatest weight for a slot.
    let price = backends.iter().map(|b| u32::from(b.weight.max(1))).max().unwrap_or(1);
    let mut credit = vec![0_u32; backends.len()];
    let mut left = size;
    while left > 0 {
        let turns = backends.iter().zip(&mut walks).zip(&mut credit).enumerate();
        for (index, ((backend, (position, skip)), credit)) in turns {
            *credit += u32::from(backend.weight.max(1));
            if *credit < price || left == 0 {
                continue;
            }
            *credit -= price;
            // The skip is coprime to the size, so the walk meets every slot; one is free while `left` > 0.
            while let Some(slot) = table.get_mut(*position) {
                *position = (*position + *skip) % size;
                if slot.is_none() {
                    *slot = Some(index);
                    left -= 1;
                    break;
                }
            }
        }
        if backends.is_empty() {
            break;
        }
    }
    table.into_iter().flatten().collect()
}

/// The rules of a chain that sends a flow to one of the backends, for one address family.
pub(super) fn chain(
    backends: &[&Backend],
    affinity: Affinity,
    matches: &Match,
    seed: u32,
) -> Vec<String> {
    let family = match backends.first().map(|b| b.address) {
        Some(IpAddr::V6(_)) => "ip6",
        _ => "ip",
    };
    let slots = slots(backends);
    let hash = |fields: &str| format!("jhash {fields} mod {} seed {seed:#x}", slots.len());
    let client = format!("{family} saddr");
    let tuple = format!("{family} saddr . {family} daddr . th sport . th dport");
    let mut rules = Vec::new();
    let ports = matches.ports;
    let fixed_port = |b: &Backend| b.port.or(ports.is_single().then_some(ports.first()));
    let has_ports = matches.protocol != Some(Protocol::Icmp);
    let has_icmp = matches!(matches.protocol, None | Some(Protocol::Icmp));
    let fields = if affinity == Affinity::ClientIp { &client } else { &tuple };
    let with_port = runs(&slots, |index| {
        let backend = backends.get(index)?;
        Some(format!("{} . {}", backend.address, fixed_port(backend)?))
    });
    if let Some(map) = with_port.filter(|_| has_ports) {
        let hash = hash(fields);
        rules.push(format!(
            "meta l4proto {{ tcp, udp }} dnat {family} addr . port to {hash} map {map}"
        ));
    }
    // What is left keeps its port: ICMP, and backends that take the frontend's port of a range.
    let without_port = |with_fixed: bool| {
        runs(&slots, |index| {
            let backend = backends.get(index)?;
            (with_fixed || fixed_port(backend).is_none()).then(|| backend.address.to_string())
        })
    };
    if let Some(map) = without_port(false).filter(|_| has_ports) {
        let hash = hash(fields);
        rules.push(format!("meta l4proto {{ tcp, udp }} dnat {family} to {hash} map {map}"));
    }
    if let Some(map) = without_port(true).filter(|_| has_icmp) {
        // ICMP has a checksum where ports would be: every echo would hash differently.
        let hash = hash(&client);
        rules.push(format!("dnat {family} to {hash} map {map}"));
    }
    rules
}

/// `{ 0-3 : a, 4 : b }`, neighbours with the same answer as one range; `None` if no slot has an answer.
fn runs(slots: &[usize], answer: impl Fn(usize) -> Option<String>) -> Option<String> {
    let mut map = String::new();
    let mut rest = slots.iter().copied().enumerate().peekable();
    while let Some((first, backend)) = rest.next() {
        let mut last = first;
        while let Some((next, _)) = rest.next_if(|(_, other)| *other == backend) {
            last = next;
        }
        let Some(answer) = answer(backend) else { continue };
        let comma = if map.is_empty() { "" } else { ", " };
        let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
        // Writing to a String does not fail.
        let _ = write!(map, "{comma}{range} : {answer}");
    }
    (!map.is_empty()).then(|| format!("{{ {map} }}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_rules::BackendState;

    fn backend(last: u8, weight: u16) -> Backend {
        Backend {
            address: IpAddr::from([198, 51, 100, last]),
            port: Some(80),
            weight,
            state: BackendState::Ready,
        }
    }

    #[test]
    fn slots_follow_the_weights() {
        let (one, three) = (backend(1, 1), backend(2, 3));
        let slots = slots(&[&one, &three]);
        let share = slots.iter().filter(|s| **s == 1).count();
        assert!((44..=47).contains(&share), "{share} of {}", slots.len());
    }

    #[test]
    fn a_lost_backend_moves_few_slots_of_the_others() {
        let all: Vec<_> = (1..=5).map(|i| backend(i, 1)).collect();
        let before = slots(&all.iter().collect::<Vec<_>>());
        let after = slots(&all.iter().take(4).collect::<Vec<_>>());
        let kept = before.iter().zip(&after).filter(|(b, _)| **b < 4);
        let (same, total) =
            kept.fold((0, 0), |(same, total), (b, a)| (same + usize::from(a == b), total + 1));
        assert!(same * 10 >= total * 7, "{same} of {total}");
    }

    #[test]
    fn no_backend_gives_no_slots() {
        assert_eq!(slots(&[]), Vec::<usize>::new());
    }
}
