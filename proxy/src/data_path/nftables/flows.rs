//! Flows of the table's rules in the kernel's connection table, by mark.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use proxy_rules::{Flow, FlowState, Match, Protocol, Rule, RuleId, RuleTable};

use super::{
    apply,
    script::{
        Carry, Image, TABLE,
        mark::{OWNER_MASK, RULE},
    },
};
use crate::{
    conntrack::{Conntrack, ConntrackError, Entry, Tuple},
    data_path::{ApplyError, CounterError},
};

/// How many ended TCP flows are remembered, so that their peers get a reset. The rest start anew or time out.
const MAX_GONE: usize = 16_384;
/// For how long: longer than a sender that lost its segment waits before it tries again.
const GONE_SECONDS: u32 = 120;

/// The live flows.
pub(super) fn live(table: &RuleTable, image: &Image) -> Result<Vec<Flow>, CounterError> {
    let failed = |source: ConntrackError| CounterError {
        step: "reading the connection table".into(),
        source: source.into(),
    };
    let mut conntrack = Conntrack::open().map_err(failed)?;
    let entries = conntrack.dump(RULE, OWNER_MASK).map_err(failed)?;
    Ok(entries.iter().filter_map(|entry| flow(entry, table, image)).collect())
}

fn flow(entry: &Entry, table: &RuleTable, image: &Image) -> Option<Flow> {
    let rule = table.rules().get(image.marks.get(&entry.mark)?.rule)?;
    let state = entry.state();
    Some(Flow {
        rule: Some(rule.id.clone()),
        protocol: entry.protocol,
        from: rule.from,
        client: entry.original.src,
        frontend: entry.original.dst,
        source: entry.reply.dst,
        backend: entry.reply.src,
        state,
        idle: state.timeout(entry.protocol).saturating_sub(entry.timeout),
    })
}

/// Puts flows of another path into the connection table; returns how many.
pub(super) fn adopt(flows: &[Flow], table: &RuleTable, image: &Image) -> Result<usize, ApplyError> {
    let mut marks: HashMap<(usize, Option<u16>), u32> = HashMap::new();
    for (mark, marked) in &image.marks {
        if marked.carry != Carry::Nowhere {
            marks.insert((marked.rule, marked.port), *mark);
        }
    }
    // Flows may be many and rules too: a flow that names its rule looks at no other.
    let mut by_id: HashMap<&RuleId, Vec<(usize, &Rule)>> = HashMap::new();
    let all: Vec<(usize, &Rule)> = table.rules().iter().enumerate().collect();
    for (index, rule) in &all {
        by_id.entry(&rule.id).or_default().push((*index, rule));
    }
    let none = Vec::new();
    let known: Vec<(&Flow, u32)> = flows
        .iter()
        .filter_map(|flow| {
            let rules = flow.rule.as_ref().map_or(&all, |id| by_id.get(id).unwrap_or(&none));
            let (index, rule) = rules.iter().find(|(_, rule)| matches(rule, flow))?;
            let port = rule.counts_each_port().then_some(flow.frontend.port());
            Some((flow, *marks.get(&(*index, port))?))
        })
        .collect();
    let failed =
        |source: ConntrackError| ApplyError::step("adding flows to the connection table", source);
    let mut conntrack = Conntrack::open().map_err(failed)?;
    let created = conntrack.create(&known).map_err(failed)?;
    Ok(created.into_iter().filter(|created| *created).count())
}

/// Whether a rule would carry the flow.
fn matches(rule: &Rule, flow: &Flow) -> bool {
    let original = Tuple { src: flow.client, dst: flow.frontend };
    rule.from == flow.from && matches_tuple(rule, flow.protocol, &original)
}

fn matches_tuple(rule: &Rule, protocol: Protocol, original: &Tuple) -> bool {
    let m = &rule.matches;
    let port = if protocol == Protocol::Icmp { 0 } else { original.dst.port() };
    m.protocol.is_none_or(|wanted| wanted == protocol)
        && m.dst.contains(&original.dst.ip())
        && m.ports.contains(port)
        && (m.src.is_empty() || m.src.iter().any(|net| net.contains(&original.src.ip())))
}

/// Forgets what was never answered and belongs to a rule that is new. The kernel translates a connection from its first
/// packet or never: a client that sent datagrams before there was a rule, and goes on sending, would not reach it.
pub(super) fn release(
    table: &RuleTable,
    image: &Image,
    old: Option<&Image>,
) -> Result<(), ApplyError> {
    let carried_before =
        |mark| old.and_then(|old| old.marks.get(mark)).is_some_and(|m| m.carry != Carry::Nowhere);
    // Frontends by key, the rest one by one.
    let mut frontends = HashSet::new();
    let mut others = Vec::new();
    for (mark, marked) in &image.marks {
        let Some(rule) = table.rules().get(marked.rule) else { continue };
        if marked.carry == Carry::Nowhere || carried_before(mark) {
            continue;
        }
        let Match { dst, ports, protocol, .. } = &rule.matches;
        let port = marked.port.or(ports.is_single().then_some(ports.first()));
        match (protocol, port) {
            (Some(protocol), Some(port)) if dst.prefix_len() == dst.max_prefix_len() => {
                frontends.insert((*protocol, SocketAddr::new(dst.addr(), port)));
            }
            _ => others.push(rule),
        }
    }
    if frontends.is_empty() && others.is_empty() {
        return Ok(());
    }
    let failed = |source: ConntrackError| ApplyError::step("releasing unanswered flows", source);
    let mut conntrack = Conntrack::open().map_err(failed)?;
    let mut stale = conntrack.dump(0, u32::MAX).map_err(failed)?;
    stale.retain(|entry| {
        let (protocol, original) = (entry.protocol, &entry.original);
        !entry.replied
            && (frontends.contains(&(protocol, original.dst))
                || others.iter().any(|rule| matches_tuple(rule, protocol, original)))
    });
    conntrack.delete(&stale).map_err(failed)
}

/// Ends the flows whose rule or backend is gone: forgotten, so that UDP and ICMP are matched anew; TCP peers of
/// both sides are sent a reset when they next speak. `old` is the image before, if this process made it.
pub(super) fn end_orphans(image: &Image, old: Option<&Image>) -> Result<(), ApplyError> {
    if old.is_some_and(|old| !lost_something(old, image)) {
        return Ok(());
    }
    let failed =
        |source: ConntrackError| ApplyError::step("ending flows of removed backends", source);
    let mut conntrack = Conntrack::open().map_err(failed)?;
    let mut orphans = conntrack.dump(RULE, OWNER_MASK).map_err(failed)?;
    orphans.retain(|entry| !is_carried(entry, image));
    let script = gone(&orphans);
    // The reset must be ready before the entry is gone, or a segment in between starts a flow to another backend.
    apply::apply(&script).map_err(|e| e.into_apply("refusing flows of removed backends"))?;
    conntrack.delete(&orphans).map_err(failed)
}

/// Whether some mark carries less than before.
fn lost_something(old: &Image, new: &Image) -> bool {
    old.marks.iter().any(|(mark, before)| match (&before.carry, new.marks.get(mark)) {
        (Carry::Nowhere, _) => false,
        (_, None) => true,
        (Carry::To(before), Some(now)) => {
            !matches!(&now.carry, Carry::To(now) if before.is_subset(now))
        }
        (Carry::Onward, Some(now)) => now.carry != Carry::Onward,
    })
}

fn is_carried(entry: &Entry, image: &Image) -> bool {
    match image.marks.get(&entry.mark).map(|marked| &marked.carry) {
        Some(Carry::To(backends)) => {
            let to = entry.reply.src;
            let same_port = (to.ip(), None);
            backends.contains(&(to.ip(), Some(to.port())))
                // ICMP has no port to differ.
                || (entry.protocol == Protocol::Icmp && backends.iter().any(|b| b.0 == to.ip()))
                || (backends.contains(&same_port) && to.port() == entry.original.dst.port())
        }
        Some(Carry::Onward) => entry.reply.src == entry.original.dst,
        Some(Carry::Nowhere) | None => false,
    }
}

/// The script that has segments of ended flows answered.
fn gone(orphans: &[Entry]) -> String {
    let mut script = String::new();
    let live = |entry: &&Entry| {
        !matches!(entry.state(), FlowState::Closed | FlowState::TimeWait | FlowState::SynSent)
    };
    let ended = orphans.iter().filter(|entry| entry.protocol == Protocol::Tcp);
    for entry in ended.filter(live).take(MAX_GONE) {
        // Replies come from the backend to the translated source, whatever becomes of the rule.
        for Tuple { src, dst } in [entry.original, entry.reply] {
            let digit = if matches!(src.ip(), IpAddr::V6(_)) { '6' } else { '4' };
            let _ = writeln!(
                script,
                "add element {TABLE} gone{digit} {{ {} . tcp . {} . {} . {} timeout {GONE_SECONDS}s }}",
                src.ip(),
                src.port(),
                dst.ip(),
                dst.port()
            );
        }
    }
    script
}

/// Forgets every flow of ours.
pub(super) fn forget_all() -> Result<(), ApplyError> {
    let failed = |source: ConntrackError| ApplyError::step("forgetting flows", source);
    let mut conntrack = Conntrack::open().map_err(failed)?;
    let entries = conntrack.dump(RULE, OWNER_MASK).map_err(failed)?;
    conntrack.delete(&entries).map_err(failed)
}
