//! Two rules must not both be the most specific one for a packet. Every rule is a claim on (side, destination,
//! protocol, ports, sources); claims of different specificity may overlap, equals may not.
//!
//! Hash lookups and one sort: never a comparison of all pairs.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    rc::Rc,
};

use ipnet::IpNet;

use super::error::Report;
use crate::{Match, PortRange, Protocol, Side};

/// Who claims.
#[derive(Debug)]
pub(super) struct Owner {
    /// Path of the port or the entry: `ingress[3].ports[0]`.
    pub(super) path: String,
    /// Name of the entry.
    pub(super) name: String,
}

#[derive(Debug)]
struct Claim {
    from: Side,
    matches: Match,
    owner: Rc<Owner>,
}

/// Collects the claims of all rules.
#[derive(Debug, Default)]
pub(super) struct Claims {
    list: Vec<Claim>,
}

type Place = (Side, IpNet, Option<Protocol>);

impl Claims {
    pub(super) fn add(&mut self, from: Side, matches: &Match, owner: &Rc<Owner>) {
        self.list.push(Claim { from, matches: matches.clone(), owner: Rc::clone(owner) });
    }

    /// Reports each claim that another one contradicts, once.
    pub(super) fn check(&self, report: &mut Report) {
        self.equal_ports(report);
        self.crossing_ranges(report);
    }

    /// Same ports: sources decide, so they must be disjoint, or one claim must have none.
    fn equal_ports(&self, report: &mut Report) {
        let mut groups: HashMap<(Place, PortRange), Group<'_>> = HashMap::new();
        for claim in &self.list {
            let key = (claim.place(), claim.matches.ports);
            let group = groups.entry(key).or_default();
            if let Some(other) = group.insert(claim) {
                claim.contradicts(other, report);
            }
        }
        for claim in &self.list {
            let group = groups.get(&(claim.place(), claim.matches.ports));
            if let Some(other) = group.and_then(|group| group.wider(claim)) {
                claim.contradicts(other, report);
            }
        }
    }

    /// Different ranges that share ports.
    fn crossing_ranges(&self, report: &mut Report) {
        let is_range = |ports: PortRange| !ports.is_any() && !ports.is_single();
        let mut ranges: Vec<&Claim> =
            self.list.iter().filter(|claim| is_range(claim.matches.ports)).collect();
        ranges.sort_by_key(|claim| (claim.place(), claim.matches.ports));
        let mut furthest: Option<&Claim> = None;
        for claim in ranges {
            let ports = claim.matches.ports;
            match furthest.filter(|other| other.place() == claim.place()) {
                Some(other) if other.matches.ports == ports => {}
                Some(other) if other.matches.ports.overlaps(ports) => {
                    claim.contradicts(other, report);
                    if ports.last() > other.matches.ports.last() {
                        furthest = Some(claim);
                    }
                }
                _ => furthest = Some(claim),
            }
        }
    }
}

impl Claim {
    fn place(&self) -> Place {
        (self.from, self.matches.dst, self.matches.protocol)
    }

    fn contradicts(&self, other: &Self, report: &mut Report) {
        let Match { protocol, dst, ports, .. } = &self.matches;
        let protocol = protocol.map_or("any protocol", Protocol::label);
        let dst = if dst.prefix_len() == dst.max_prefix_len() {
            dst.addr().to_string()
        } else {
            dst.to_string()
        };
        let problem = format!(
            "{dst} {protocol} port {ports} from the {} side, claimed by `{}`, is also claimed by `{}` at {}",
            self.from, self.owner.name, other.owner.name, other.owner.path
        );
        let remedy = "remove one, merge their backends, or give them disjoint ports or sources";
        report.add(&self.owner.path, problem, remedy);
    }
}

/// The claims on the same ports, by source; `None` = any source.
#[derive(Debug, Default)]
struct Group<'a> {
    by_source: HashMap<Option<IpNet>, &'a Claim>,
    lengths: BTreeSet<u8>,
}

impl<'a> Group<'a> {
    /// The claim that already has one of these sources.
    fn insert(&mut self, claim: &'a Claim) -> Option<&'a Claim> {
        let mut taken = None;
        let sources = claim.matches.src.iter().copied().map(Some);
        for source in sources.chain(claim.matches.src.is_empty().then_some(None)) {
            self.lengths.extend(source.map(|net| net.prefix_len()));
            match self.by_source.entry(source) {
                // The same prefix twice in one entry is harmless.
                Entry::Occupied(other) if std::ptr::eq(*other.get(), claim) => {}
                Entry::Occupied(other) => taken = taken.or(Some(*other.get())),
                Entry::Vacant(place) => {
                    place.insert(claim);
                }
            }
        }
        taken
    }

    /// Another claim on a wider prefix around one of this claim's sources.
    fn wider(&self, claim: &Claim) -> Option<&'a Claim> {
        claim.matches.src.iter().find_map(|net| {
            let shorter = self.lengths.range(..net.prefix_len());
            shorter
                .filter_map(|length| IpNet::new(net.addr(), *length).ok())
                .filter_map(|around| self.by_source.get(&Some(around.trunc())).copied())
                .find(|other| !std::ptr::eq(*other, claim))
        })
    }
}
