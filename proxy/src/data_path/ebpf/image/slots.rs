//! Which index belongs to what, from table to table: what survives keeps its index, so that live flows and counters go on.

use std::{
    collections::{BTreeMap, HashSet},
    hash::Hash,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use foldhash::{HashMap, HashMapExt as _};
use ipnet::IpNet;
use proxy_ebpf_common::{CLASS_HAS_RANGES, Hop, RuleEntry, Target, action, entry, snat, target};
use proxy_rules::{Action, Affinity, BackendState, Backends, Match, Rule, Series, Side, Snat};

use super::{MapImage, address, counters::Places, side};

/// What a target stands for.
type TargetId = (Side, Match, Option<(IpAddr, Option<u16>)>);

/// A run of indices.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u32,
    len: u32,
    /// The table that had it last.
    table: u32,
}

/// Hands out runs of indices; runs of what is gone are given out again, but not before the next table.
#[derive(Clone, Debug)]
struct Runs<K> {
    held: HashMap<K, Run>,
    free: BTreeMap<u32, Vec<u32>>,
    next: u32,
    /// Counts tables.
    table: u32,
}

impl<K: Eq + Hash> Runs<K> {
    fn new(first: u32) -> Self {
        Self { held: HashMap::new(), free: BTreeMap::new(), next: first, table: 0 }
    }

    /// The run that `key` has.
    fn again(&mut self, key: &K, len: u32) -> Option<u32> {
        let run = self.held.get_mut(key).filter(|run| run.len == len)?;
        run.table = self.table;
        Some(run.start)
    }

    /// The run of `key`.
    fn take(&mut self, key: K, len: u32) -> u32 {
        self.again(&key, len).unwrap_or_else(|| self.add(key, len, None))
    }

    /// A run for `key`, which has none: the one that an earlier process has left, if it has.
    fn add(&mut self, key: K, len: u32, left: Option<u32>) -> u32 {
        let start =
            left.or_else(|| self.free.get_mut(&len).and_then(Vec::pop)).unwrap_or_else(|| {
                let start = self.next;
                self.next += len;
                start
            });
        self.add_at(key, start, len);
        start
    }

    /// Notes that `key` has this run.
    fn add_at(&mut self, key: K, start: u32, len: u32) {
        self.held.insert(key, Run { start, len, table: self.table });
    }

    /// Frees what has not been taken since the last call.
    fn sweep(&mut self) {
        for (_, run) in self.held.extract_if(|_, run| run.table != self.table) {
            self.free.entry(run.len).or_default().push(run.start);
        }
        self.table = self.table.wrapping_add(1);
    }
}

/// Every kind of index.
#[derive(Clone, Debug)]
pub struct Slots {
    classes: Runs<(Side, IpNet)>,
    targets: Runs<TargetId>,
    /// Target index -> epoch.
    epochs: HashMap<u32, u32>,
    /// What an earlier process has left: epoch -> index.
    left: HashMap<u32, u32>,
    lookup: Runs<Vec<u32>>,
    counters: Places,
    groups: (u32, u32),
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            classes: Runs::new(1),
            targets: Runs::new(1),
            epochs: HashMap::new(),
            left: HashMap::new(),
            lookup: Runs::new(0),
            counters: Places::default(),
            groups: (1, 1),
        }
    }
}

impl Slots {
    /// Goes on where an earlier process stopped: everything but source groups keeps its place, new numbers are beyond.
    pub fn resume(old: &MapImage) -> Self {
        let mut slots = Self::default();
        let next = |highest: Option<u32>| highest.map_or(0, |highest| highest + 1);
        for (place, class) in classes(old) {
            slots.classes.add_at(place, class, 1);
            slots.classes.next = slots.classes.next.max(class + 1);
        }
        slots.targets.next = next(old.targets.keys().max().copied()).max(1);
        slots.lookup.next = next(old.lookup.keys().max().copied());
        let entries = old.ports.values().chain(old.ranges.values()).chain(old.sources.values());
        for entry in entries.filter(|entry| entry.action == action::DNAT && entry.lookup_len > 1) {
            let run = entry.target..entry.target.saturating_add(entry.lookup_len);
            let held: Option<Vec<u32>> = run.map(|slot| old.lookup.get(&slot).copied()).collect();
            if let Some(held) = held {
                slots.lookup.add_at(held, entry.target, entry.lookup_len);
            }
        }
        slots.counters.next = next(old.hashes.values().max().copied()).max(1);
        slots.left = old.targets.iter().map(|(index, target)| (target.epoch, *index)).collect();
        slots.counters.left = old.hashes.iter().map(|(hash, index)| (*hash, *index)).collect();
        let group = old.sources.keys().map(|(_, data)| u32::from_be_bytes(data.group)).max();
        slots.groups =
            if group.is_some_and(|group| group >= 1 << 31) { (1 << 31, 1) } else { (1, 1) };
        slots
    }

    /// One more than the highest index of targets, lookup slots and counters.
    pub fn sizes(&self) -> (u32, u32, u32) {
        (self.targets.next, self.lookup.next, self.counters.next)
    }

    /// Before a table is compiled. Source groups alternate between two halves of the number space: their contents
    /// differ from table to table, and the old ones stay in force until the new ones are in place.
    pub(super) fn begin(&mut self) {
        let half = if self.groups.0 < 1 << 31 { 1 << 31 } else { 1 };
        self.groups = (half, half);
        self.counters.begin();
    }

    /// After a table is compiled.
    pub(super) fn end(&mut self, image: &mut MapImage) {
        self.classes.sweep();
        self.targets.sweep();
        self.lookup.sweep();
        image.counters = self.counters.all();
    }

    /// How many counters belong to rules that are gone.
    pub fn retired_counters(&self) -> u32 {
        self.counters.retired()
    }

    /// Gives up counters of rules that are gone, those that a flow names excepted; their counts must be kept elsewhere.
    pub fn reclaim_counters(&mut self, named: &HashSet<u32>) -> Vec<(u32, Series)> {
        self.counters.reclaim(named)
    }

    /// The target of a rule that a flow to `backend` belongs to.
    pub fn find(&self, rule: &Rule, backend: SocketAddr) -> Option<u32> {
        let id = |backend| (rule.from, rule.matches.clone(), backend);
        let held = |backend| self.targets.held.get(&id(backend)).map(|run| run.start);
        match rule.action {
            Action::Forward { .. } => held(None),
            _ => held(Some((backend.ip(), Some(backend.port()))))
                .or_else(|| held(Some((backend.ip(), None)))),
        }
    }

    /// The counter of a rule's flow to `port`.
    pub fn counter_of(&self, rule: &Rule, port: u16) -> Option<u32> {
        self.counters.of(rule, port)
    }

    pub(super) fn group(&mut self) -> u32 {
        let group = self.groups.1;
        self.groups.1 += 1;
        group
    }

    /// The class of a prefix; whether it has port ranges is part of its number.
    pub(super) fn class(&mut self, from: Side, prefix: IpNet, ranged: bool) -> u32 {
        let class = self.classes.take((from, prefix), 1);
        if ranged { class | CLASS_HAS_RANGES } else { class }
    }

    /// The entry of a rule, its targets and lookup table put into the image.
    pub(super) fn entry(&mut self, rule: &Rule, image: &mut MapImage) -> RuleEntry {
        let ports = rule.matches.ports;
        let mut entry = RuleEntry { to: side(rule.from.other()), ..RuleEntry::default() };
        if ports.is_single() {
            entry.flags |= entry::EXACT_PORT;
        }
        entry.counter = self.counter(rule, &mut entry.flags);
        match &rule.action {
            Action::Reject => entry.action = action::REJECT,
            Action::Drop(reason) => {
                entry.action = action::DROP;
                entry.reason = *reason as u32;
            }
            Action::Forward { to, snat } => {
                entry.action = action::FORWARD;
                entry.to = side(*to);
                source(*snat, &mut entry);
                entry.target = self.target(rule, None, image);
                entry.lookup_len = 1;
            }
            Action::Dnat { backends, snat, .. } => {
                entry.action = action::DNAT;
                source(*snat, &mut entry);
                if backends.affinity == Affinity::ClientIp {
                    entry.flags |= entry::CLIENT_AFFINITY;
                }
                self.backends(rule, backends, &mut entry, image);
            }
        }
        entry
    }

    fn backends(
        &mut self,
        rule: &Rule,
        backends: &Backends,
        entry: &mut RuleEntry,
        image: &mut MapImage,
    ) {
        let targets: Vec<u32> = backends
            .list
            .iter()
            .map(|backend| self.target(rule, Some((backend.address, backend.port)), image))
            .collect();
        let ready =
            |(backend, _): &(&proxy_rules::Backend, &u32)| backend.state == BackendState::Ready;
        let mut ready = backends.list.iter().zip(&targets).filter(ready);
        match (ready.next(), ready.next()) {
            (None, _) => {}
            (Some((_, only)), None) => (entry.target, entry.lookup_len) = (*only, 1),
            _ => {
                let slots: Vec<u32> = backends
                    .lookup_table()
                    .iter()
                    .filter_map(|index| targets.get(*index as usize).copied())
                    .collect();
                entry.lookup_len = slots.len() as u32;
                entry.target = self.lookup.take(slots.clone(), entry.lookup_len);
                image.lookup.extend((entry.target..).zip(slots));
            }
        }
    }

    fn target(
        &mut self,
        rule: &Rule,
        backend: Option<(IpAddr, Option<u16>)>,
        image: &mut MapImage,
    ) -> u32 {
        let id: TargetId = (rule.from, rule.matches.clone(), backend);
        let (index, epoch) = if let Some(index) = self.targets.again(&id, 1) {
            (index, self.epochs.get(&index).copied().unwrap_or_default())
        } else {
            let epoch = epoch(&id);
            let index = self.targets.add(id, 1, self.left.remove(&epoch));
            self.epochs.insert(index, epoch);
            (index, epoch)
        };
        let target = match backend {
            Some((ip, port)) => Target {
                address: address(ip),
                port: port.unwrap_or_default().to_be_bytes(),
                flags: 0,
                epoch,
                hop: Hop::default(),
            },
            None => Target { flags: target::FORWARD, epoch, ..Target::default() },
        };
        image.targets.insert(index, target);
        index
    }

    /// The rule's counter: the index of its series, or of its first port's minus that port.
    fn counter(&mut self, rule: &Rule, flags: &mut u8) -> u32 {
        let (start, each) = self.counters.take(rule);
        if !each {
            return start;
        }
        *flags |= entry::PER_PORT;
        start.wrapping_sub(u32::from(rule.matches.ports.first()))
    }
}

/// The classes that an image names. Class 0 is a shield, not a class.
fn classes(image: &MapImage) -> impl Iterator<Item = ((Side, IpNet), u32)> + '_ {
    let exact = image.addresses.iter().map(|(key, class)| (key.side, key.address, 128, *class));
    let routes = image.routes.iter().map(|((len, data), class)| {
        let [_, _, _, from] = data.side;
        (from, data.address, len.saturating_sub(proxy_ebpf_common::ADDRESS_BITS), *class)
    });
    exact.chain(routes).filter(|(.., class)| *class != 0).filter_map(|(from, bytes, len, class)| {
        let v6 = Ipv6Addr::from(bytes);
        let prefix = match v6.to_ipv4_mapped().filter(|_| len >= 96) {
            Some(v4) => IpNet::new(v4.into(), (len - 96) as u8),
            None => IpNet::new(v6.into(), len as u8),
        };
        let from = if from == side(Side::Tailnet) { Side::Tailnet } else { Side::Cluster };
        Some(((from, prefix.ok()?), class & !CLASS_HAS_RANGES))
    })
}

/// A number for a target that depends on nothing but what it stands for: an agent that takes over gives the same target the
/// same number, and a slot that is given to another target changes it. Never 0.
fn epoch(id: &TargetId) -> u32 {
    (super::hash(&format!("{id:?}")) as u32).max(1)
}

fn source(wanted: Snat, entry: &mut RuleEntry) {
    match wanted {
        Snat::Keep => entry.snat = snat::KEEP,
        Snat::Masquerade => entry.snat = snat::MASQUERADE,
        Snat::To(ip) => {
            entry.snat = snat::ADDRESS;
            entry.snat_address = address(ip);
        }
    }
}
