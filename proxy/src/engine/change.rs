//! From the configuration wanted to the path and table in force.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use proxy_rules::{RuleTable, Snapshot, config::Config};

use super::{Applied, Draining, Worker};
use crate::{
    data_path::{
        ApplyError, DataPath, Kind,
        select::{self, Refusal},
        switch,
    },
    memory,
};

/// How long a path may keep flows after a switch.
const DRAIN: Duration = Duration::from_hours(1);

/// How a path took a table.
enum Outcome {
    InForce,
    Refused(ApplyError),
    /// A switch to it failed and the old path is in force.
    Failed(switch::SwitchError),
}

impl Worker {
    /// Makes the best path ready for its first table.
    pub(super) fn prepare(&mut self, config: &Config) {
        let options = &config.options;
        self.factory.configure(options.xdp, options.bpffs.clone());
        let Some(kind) = select::kinds(&options.data_paths).first().copied() else { return };
        let prepared = self.factory.make(kind).and_then(|mut path| {
            path.prepare(&config.table)?;
            Ok(path)
        });
        match prepared {
            Ok(path) => self.prepared = Some(path),
            Err(error) => {
                tracing::debug!(data_path = %kind, error = select::chain(&error), "not prepared");
            }
        }
        memory::give_back();
    }

    /// A path of this kind that says it can carry the table: the prepared one, if it is that.
    fn candidate(
        &mut self,
        kind: Kind,
        table: &RuleTable,
    ) -> Result<Box<dyn DataPath>, ApplyError> {
        match self.prepared.take() {
            Some(path) if path.kind() == kind => {
                path.supports(table)?;
                Ok(path)
            }
            other => {
                self.prepared = other;
                select::candidate(self.factory.as_ref(), kind, table)
            }
        }
    }

    /// Tries the wanted paths in order until one carries the latest table.
    pub(super) fn put_in_force(&mut self) -> Applied {
        let Some(config) = self.config.take() else {
            return Err("there is no configuration yet".into());
        };
        let started = Instant::now();
        let options = &config.options;
        if self.factory.configure(options.xdp, options.bpffs.clone()) && self.current.is_some() {
            tracing::info!("other XDP or bpffs settings are used when a path is next installed");
        }
        self.config = Some(config.clone());
        let wanted = self.order();
        let mut refusals = Vec::new();
        let mut in_force = false;
        for kind in &wanted {
            match self.attempt(*kind, &config.table) {
                Outcome::InForce => {
                    in_force = true;
                    break;
                }
                Outcome::Refused(error) => refusals.push(Refusal::new(*kind, &error)),
                Outcome::Failed(error) => refusals.push(Refusal {
                    kind: *kind,
                    reason: "switch",
                    message: failure(&error),
                }),
            }
        }
        if in_force && let Some(mut unused) = self.prepared.take() {
            // Another path carries the table: what was prepared would only hold memory, and pins.
            if let Err(error) = unused.remove() {
                tracing::debug!(error = select::chain(&error), "removing what was prepared");
            }
        }
        self.retry_at = Instant::now() + self.retry_after;
        memory::give_back();
        self.conclude(in_force, wanted, refusals, config.table);
        match &self.state.error {
            None => Ok(started.elapsed()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Logs what is new, and tells everyone.
    fn conclude(
        &mut self,
        in_force: bool,
        wanted: Vec<Kind>,
        refusals: Vec<Refusal>,
        table: RuleTable,
    ) {
        for refusal in refusals.iter().filter(|refusal| !self.state.refusals.contains(refusal)) {
            let (kind, reason) = (refusal.kind, refusal.reason);
            tracing::warn!(data_path = %kind, reason, "refused: {}", refusal.message);
        }
        if in_force {
            let kind = self.current.as_ref().map(|path| path.kind());
            let before = self.state.table.as_ref().map(|table| table.generation());
            if self.state.kind != kind || before != Some(table.generation()) {
                let kind = kind.map_or("none", Kind::label);
                let (generation, rules) = (table.generation(), table.rules().len());
                tracing::info!(data_path = kind, table.generation = generation, rules, "in force");
            }
            self.state.table = Some(Arc::new(table));
            self.state.error = None;
        } else {
            let reasons: Vec<_> =
                refusals.iter().map(|r| format!("{}: {}", r.kind, r.message)).collect();
            let error = format!("no data path can carry it: {}", reasons.join("; "));
            if self.state.error.as_ref() != Some(&error) {
                tracing::error!(table.generation = table.generation(), "not in force: {error}");
            }
            self.state.error = Some(error);
        }
        self.state.forced = self.forced.is_some();
        self.state.wanted = wanted;
        self.state.refusals = refusals;
        self.publish();
    }

    /// Makes one kind carry the table, moving flows if another does now.
    fn attempt(&mut self, kind: Kind, table: &RuleTable) -> Outcome {
        if self.current.is_none() {
            self.current = self.left_by_another(kind, table);
        }
        let Some(mut old) = self.current.take() else {
            return match self.install(kind, table) {
                Ok(path) => {
                    self.current = Some(path);
                    Outcome::InForce
                }
                Err(error) => Outcome::Refused(error),
            };
        };
        if old.kind() == kind {
            let outcome = old.apply(table);
            self.current = Some(old);
            return outcome.map_or_else(Outcome::Refused, |()| Outcome::InForce);
        }
        // After a success, `old` is the new path.
        let outcome = self.replace(&mut old, kind, table);
        self.current = Some(old);
        outcome
    }

    fn install(&mut self, kind: Kind, table: &RuleTable) -> Result<Box<dyn DataPath>, ApplyError> {
        let mut path = self.candidate(kind, table)?;
        path.apply(table)?;
        Ok(path)
    }

    /// Another path that an earlier process has left in force: it carries on until its flows have been moved.
    fn left_by_another(&self, kind: Kind, table: &RuleTable) -> Option<Box<dyn DataPath>> {
        for other in Kind::ALL.into_iter().filter(|other| *other != kind) {
            let Ok(mut path) = self.factory.make(other) else { continue };
            if !path.is_left() {
                continue;
            }
            tracing::info!(data_path = %other, "taking over what an earlier process has left");
            match path.apply(table) {
                Ok(()) => return Some(path),
                Err(error) => {
                    let error = select::chain(&error);
                    tracing::warn!(data_path = %other, %error, "it cannot be taken over and is removed");
                    if let Err(error) = path.remove() {
                        let error = select::chain(&error);
                        tracing::warn!(data_path = %other, %error, "removing it");
                    }
                }
            }
        }
        None
    }

    /// Switches; on success the new path takes the place of the one before, which is retired or draining.
    fn replace(&mut self, old: &mut Box<dyn DataPath>, kind: Kind, table: &RuleTable) -> Outcome {
        let mut new = match self.successor(kind, table) {
            Ok(new) => new,
            Err(error) => return Outcome::Refused(error),
        };
        let before = new.counters().unwrap_or_default();
        match switch::switch(old.as_mut(), new.as_mut(), table) {
            Ok(moved) => {
                let (from, to) = (old.kind(), new.kind());
                let (flows, adopted) = (moved.flows, moved.adopted);
                tracing::info!(%from, %to, flows, adopted, "switched data paths");
                let old = std::mem::replace(old, new);
                match moved.last {
                    Some(last) => self.keep(&last),
                    None => {
                        self.draining.push(Draining { path: old, until: Instant::now() + DRAIN });
                    }
                }
                self.state.switches += 1;
                Outcome::InForce
            }
            Err(error) => {
                // What it has carried before, or meanwhile, stays counted.
                let after = new.counters().unwrap_or_default();
                self.keep(&switch::latest(before, after));
                Outcome::Failed(error)
            }
        }
    }

    /// The path to switch to: one of this kind that still drains, for there must not be two with the same maps, or a
    /// new one.
    fn successor(
        &mut self,
        kind: Kind,
        table: &RuleTable,
    ) -> Result<Box<dyn DataPath>, ApplyError> {
        let Some(place) = self.draining.iter().position(|old| old.path.kind() == kind) else {
            return self.candidate(kind, table);
        };
        if let Some(old) = self.draining.get(place) {
            old.path.supports(table)?;
        }
        Ok(self.draining.remove(place).path)
    }

    /// Adds the last counts of a path that is gone.
    fn keep(&mut self, last: &Snapshot) {
        self.base = std::mem::take(&mut self.base).plus(last);
    }

    /// Removes a path and keeps its counts.
    pub(super) fn retire(&mut self, path: &mut dyn DataPath) {
        match switch::retire(path) {
            Ok(last) => self.keep(&last),
            Err((step, error)) => {
                tracing::warn!(data_path = %path.kind(), step, error = select::chain(&error));
            }
        }
    }
}

fn failure(error: &switch::SwitchError) -> String {
    let text = select::chain(error);
    match &error.undo {
        Some(undo) => format!("{text}; going back failed too: {}", select::chain(undo)),
        None => text,
    }
}
