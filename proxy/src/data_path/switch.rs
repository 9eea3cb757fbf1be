//! Moving live flows from one data path to another without losing one.
//!
//! Towards nftables, flows are copied first, so that connection tracking gives none of their ports away, and again when
//! the old path has stopped taking new ones: every flow is then in a copy or began on the new path. Towards eBPF, the new
//! path starts with an empty flow table and leaves what it does not know to the kernel, where nftables still carries
//! it; the programs note what they have left. After the first copy they take new flows, but still leave what they
//! have noted, for its backend and port are nftables' choice; a second copy takes that over too. Sockets cannot be handed
//! over: into and out of user space, the old path keeps what it has until it is quiet.
//!
//! A failure at any step leaves the old path in force and nothing of the new one.

use proxy_rules::{RuleTable, Snapshot};

use super::{ApplyError, CounterError, DataPath, Kind, Stance};

/// Why a switch failed. The old path is in force, unless going back failed too.
#[derive(Debug, thiserror::Error)]
#[error("switching from {from} to {to}: {step}")]
pub struct SwitchError {
    /// The path in force.
    pub from: Kind,
    /// The path wanted.
    pub to: Kind,
    /// What was being attempted.
    pub step: &'static str,
    /// The answer.
    #[source]
    pub source: StepError,
    /// Why the old path could not be put back either.
    pub undo: Option<ApplyError>,
}

/// The answer of a step.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// Something could not be installed or removed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Something could not be read.
    #[error(transparent)]
    Read(#[from] CounterError),
}

/// What a switch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Live flows of the old path.
    pub flows: usize,
    /// How many of them the new path has taken.
    pub adopted: usize,
    /// The last counts of the old path, if it is gone.
    pub last: Option<Snapshot>,
}

impl Moved {
    /// Whether the old path still carries flows and must be removed when it is quiet.
    pub fn old_is_draining(&self) -> bool {
        self.last.is_none()
    }
}

type Step<T> = Result<T, (&'static str, StepError)>;

trait At<T> {
    fn at(self, step: &'static str) -> Step<T>;
}

impl<T, E: Into<StepError>> At<T> for Result<T, E> {
    fn at(self, step: &'static str) -> Step<T> {
        self.map_err(|error| (step, error.into()))
    }
}

/// Puts `table` in force on `new` and moves the flows of `old` there.
pub fn switch(
    old: &mut dyn DataPath,
    new: &mut dyn DataPath,
    table: &RuleTable,
) -> Result<Moved, SwitchError> {
    let (from, to) = (old.kind(), new.kind());
    let outcome = match (from, to) {
        (Kind::Userspace, _) | (_, Kind::Userspace) => over_sockets(old, new, table),
        (_, Kind::Ebpf) => behind_the_new(old, new, table),
        _ => before_the_old(old, new, table),
    };
    outcome.map_err(|(step, source)| {
        // Both are tried: a new path that cannot be removed must not keep the old one from carrying.
        let restored = old.set_stance(Stance::All);
        let removed = new.remove();
        SwitchError { from, to, step, source, undo: restored.and(removed).err() }
    })
}

/// The old path hands over what it has, stops taking flows, and hands over what has begun meanwhile.
fn before_the_old(
    old: &mut dyn DataPath,
    new: &mut dyn DataPath,
    table: &RuleTable,
) -> Step<Moved> {
    new.apply(table).at("installing the new path")?;
    let flows = old.flows().at("reading the live flows")?;
    let first = new.adopt(&flows).at("handing the flows over")?;
    old.set_stance(Stance::KnownFlows).at("leaving new flows to the new path")?;
    let flows = old.flows().at("reading the live flows again")?;
    let second = new.adopt(&flows).at("handing the last flows over")?;
    let last = Some(retire(old)?);
    Ok(Moved { flows: flows.len(), adopted: first + second, last })
}

/// The new path carries what it knows, and learns until nothing is left.
fn behind_the_new(
    old: &mut dyn DataPath,
    new: &mut dyn DataPath,
    table: &RuleTable,
) -> Step<Moved> {
    new.set_stance(Stance::KnownFlows).at("limiting the new path to known flows")?;
    new.apply(table).at("installing the new path")?;
    let flows = old.flows().at("reading the live flows")?;
    let first = new.adopt(&flows).at("handing the flows over")?;
    new.set_stance(Stance::Handover).at("giving new flows to the new path")?;
    // What the old path took on since the first copy; nothing new begins there any more.
    let flows = old.flows().at("reading the live flows again")?;
    let second = new.adopt(&flows).at("handing the last flows over")?;
    new.set_stance(Stance::All).at("giving everything to the new path")?;
    let last = Some(retire(old)?);
    Ok(Moved { flows: flows.len(), adopted: first + second, last })
}

/// New flows begin on the new path; nothing is copied. nftables cannot be told to take no new flows, so it goes.
fn over_sockets(old: &mut dyn DataPath, new: &mut dyn DataPath, table: &RuleTable) -> Step<Moved> {
    if old.kind() == Kind::Userspace {
        // A listening socket of ours would answer before the packet path is asked.
        new.apply(table).at("installing the new path")?;
        old.set_stance(Stance::KnownFlows).at("leaving new flows to the new path")?;
    } else {
        old.set_stance(Stance::KnownFlows).at("leaving new flows to the new path")?;
        new.apply(table).at("installing the new path")?;
    }
    // It may be one that was draining.
    new.set_stance(Stance::All).at("giving new flows to the new path")?;
    let last = if old.kind() == Kind::Nftables { Some(retire(old)?) } else { None };
    Ok(Moved { last, ..Moved::default() })
}

/// Removes a path and returns its last counts: what was counted while it was being removed included, where the path
/// remembers it.
pub(crate) fn retire(old: &mut dyn DataPath) -> Step<Snapshot> {
    let before = old.counters().at("reading the last counts")?;
    old.remove().at("removing the old path")?;
    Ok(match old.counters() {
        Ok(after) => latest(before, after),
        Err(_) => before,
    })
}

/// The higher count of each series.
pub(crate) fn latest(before: Snapshot, after: Snapshot) -> Snapshot {
    let mut last = before;
    for (series, count) in after.series {
        let seen = last.series.entry(series).or_default();
        *seen = seen.plus(count.since(*seen));
    }
    for (reason, packets) in after.drops {
        let seen = last.drops.entry(reason).or_default();
        *seen = packets.max(*seen);
    }
    last
}

#[cfg(test)]
mod tests;
