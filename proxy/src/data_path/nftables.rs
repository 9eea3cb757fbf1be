//! The nftables data path: the kernel's own forwarding, connection tracking and NAT, told what to do by one table.
//!
//! What it does differently from the eBPF path, and why:
//! - The kernel forwards, so the devices' forwarding switches are on while the path is in force; packets of no
//!   flow of ours are kept from using them.
//! - The kernel puts fragments together before it looks at rules: one datagram is counted as one packet.
//! - Packets that are too big or whose TTL is spent are answered by the kernel; the first kind is not counted.
//! - A reserved source port narrows the pool: the kernel takes one range, so the longest part without one is used.
//! - Backends are chosen by the kernel's hash, so a new flow may choose another than on the eBPF path; flows that
//!   are carried over keep theirs.

use std::collections::BTreeMap;

use caps::{CapSet, Capability};
use proxy_rules::{Action, Flow, RuleTable, Series, Snapshot};

use self::script::{Host, Image};
use super::{ApplyError, CounterError, DataPath, Kind, Unsupported};

mod apply;
pub(crate) mod counters;
mod flows;
mod script;
mod sysctl;

/// The data path over one nftables table.
#[derive(Default)]
pub struct NftPath {
    /// What is in force through this process.
    installed: Option<Installed>,
    /// Counts of series and drops that the table in the kernel no longer holds.
    base: Snapshot,
}

struct Installed {
    table: RuleTable,
    image: Image,
    host: Host,
}

impl NftPath {
    /// A path that has installed nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts of what retired with the last apply: nothing can count there any more, and the next apply drops them.
    fn retired(installed: &Installed) -> Result<Snapshot, ApplyError> {
        if installed.image.retiring.is_empty() {
            return Ok(Snapshot::default());
        }
        let reading = counters::read().map_err(|e| e.into_apply("reading the counters"))?;
        let mut counted = reading
            .unwrap_or_default()
            .snapshot(|mark| installed.image.retiring.get(&mark).cloned());
        counted.drops.clear();
        Ok(counted)
    }
}

impl DataPath for NftPath {
    fn kind(&self) -> Kind {
        Kind::Nftables
    }

    /// A device that was made anew has its settings anew.
    fn maintain(&mut self) -> Result<(), ApplyError> {
        let Some(installed) = &self.installed else { return Ok(()) };
        plan(&installed.table, &installed.host.sysctls)?.set()
    }

    fn supports(&self, table: &RuleTable) -> Result<(), Unsupported> {
        for rule in table.rules() {
            if let Action::Dnat { proxy_protocol: true, .. } = rule.action {
                return Err(Unsupported::Feature {
                    rule: rule.id.to_string(),
                    feature: "the PROXY protocol header",
                });
            }
        }
        let capability = Capability::CAP_NET_ADMIN;
        if !caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false) {
            return Err(Unsupported::Capability("CAP_NET_ADMIN"));
        }
        let interfaces = &table.settings().interfaces;
        for name in interfaces.tailnet.iter().chain(&interfaces.cluster) {
            if nix::net::if_::if_nametoindex(name.as_str()).is_err() {
                return Err(Unsupported::Interface(name.clone()));
            }
        }
        let plan = plan(table, &self.saved())?;
        plan.check()?;
        let image = Image::new(table, &plan.host, &Image::default());
        apply::check(&image.script()).map_err(apply::NftError::into_unsupported)
    }

    fn apply(&mut self, table: &RuleTable) -> Result<(), ApplyError> {
        let Some(old) = self.installed.take() else {
            self.installed = Some(self.begin(table)?);
            return Ok(());
        };
        if old.table == *table && old.image.retiring.is_empty() {
            self.installed = Some(old);
            return Ok(());
        }
        let outcome = self.change(&old, table);
        let (installed, outcome) = match outcome {
            Ok(new) => (new, Ok(())),
            Err(error) => (old, Err(error)),
        };
        self.installed = Some(installed);
        outcome
    }

    fn counters(&self) -> Result<Snapshot, CounterError> {
        let Some(installed) = &self.installed else { return Ok(self.base.clone()) };
        let reading = counters::read().map_err(|source| CounterError {
            step: "reading the nftables counters".into(),
            source: source.into(),
        })?;
        let counted = reading.unwrap_or_default().snapshot(|mark| series(&installed.image, mark));
        Ok(self.base.clone().plus(&counted))
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        let step = "removing the nftables table";
        let installed = self.installed.take();
        let Some(reading) = counters::read().map_err(|e| e.into_apply(step))? else {
            // Somebody else has deleted the table; what it knew of the kernel's settings we know too.
            return installed.map_or(Ok(()), |i| sysctl::restore(&i.host.sysctls));
        };
        if let Some(installed) = &installed {
            self.base = std::mem::take(&mut self.base)
                .plus(&reading.snapshot(|mark| series(&installed.image, mark)));
        }
        apply::apply(&format!("delete table {}\n", script::TABLE))
            .map_err(|e| e.into_apply(step))?;
        sysctl::restore(&reading.sysctls)?;
        flows::forget_all()
    }

    fn is_left(&self) -> bool {
        self.installed.is_none() && counters::read().is_ok_and(|left| left.is_some())
    }

    fn flows(&self) -> Result<Vec<Flow>, CounterError> {
        match &self.installed {
            Some(installed) => flows::live(&installed.table, &installed.image),
            None => Ok(Vec::new()),
        }
    }

    fn adopt(&mut self, flows: &[Flow]) -> Result<usize, ApplyError> {
        match &self.installed {
            Some(installed) => flows::adopt(flows, &installed.table, &installed.image),
            None => Ok(0),
        }
    }
}

impl NftPath {
    /// Kernel settings from before us.
    fn saved(&self) -> BTreeMap<String, String> {
        match &self.installed {
            Some(installed) => installed.host.sysctls.clone(),
            // A process before this one may have left its table. If it cannot be read, applying will say so.
            None => counters::read().ok().flatten().unwrap_or_default().sysctls,
        }
    }

    /// The first apply of this process.
    fn begin(&mut self, table: &RuleTable) -> Result<Installed, ApplyError> {
        let left =
            counters::read().map_err(|e| e.into_apply("reading the table of a process before"))?;
        let saved = left.as_ref().map(|left| left.sysctls.clone()).unwrap_or_default();
        let plan = plan(table, &saved)?;
        let image = Image::new(table, &plan.host, &Image::default());
        let step = format!("installing the nftables table for generation {}", table.generation());
        apply::apply(&image.script()).map_err(|e| e.into_apply(&step))?;
        if let Err(error) = plan.set() {
            // All or nothing: what was there before cannot be had back, so nothing.
            let mut before = saved;
            before.extend(plan.host.sysctls);
            let undone = apply::apply(&format!("delete table {}\n", script::TABLE));
            undone.map_err(|e| e.into_apply("removing the nftables table"))?;
            sysctl::restore(&before)?;
            return Err(error);
        }
        sysctl::restore(&unneeded(&saved, &plan.host))?;
        if let Some(left) = &left {
            // The same rules have the same marks: what a process before this one counted is not lost.
            self.base =
                std::mem::take(&mut self.base).plus(&left.snapshot(|mark| series(&image, mark)));
        }
        flows::end_orphans(&image, None)?;
        flows::release(table, &image, None)?;
        Ok(Installed { table: table.clone(), image, host: plan.host })
    }

    /// Leads from the table in force to another one.
    fn change(&mut self, old: &Installed, table: &RuleTable) -> Result<Installed, ApplyError> {
        let retired = Self::retired(old)?;
        let plan = plan(table, &old.host.sysctls)?;
        let image = Image::new(table, &plan.host, &old.image);
        let step = format!("changing the nftables table to generation {}", table.generation());
        apply::apply(&image.difference(&old.image)).map_err(|e| e.into_apply(&step))?;
        if let Err(error) = plan.set() {
            let back = apply::apply(&old.image.difference(&image));
            back.map_err(|e| e.into_apply("going back to the nftables table before"))?;
            sysctl::restore(&unneeded(&plan.host.sysctls, &old.host))?;
            return Err(error);
        }
        self.base = std::mem::take(&mut self.base).plus(&retired);
        sysctl::restore(&unneeded(&old.host.sysctls, &plan.host))?;
        flows::end_orphans(&image, Some(&old.image))?;
        flows::release(table, &image, Some(&old.image))?;
        Ok(Installed { table: table.clone(), image, host: plan.host })
    }
}

/// The series that a mark counts for.
fn series(image: &Image, mark: u32) -> Option<Series> {
    let live = image.marks.get(&mark).map(|marked| &marked.series);
    live.or_else(|| image.retiring.get(&mark)).cloned()
}

/// Saved settings that the new plan leaves alone.
fn unneeded(saved: &BTreeMap<String, String>, host: &Host) -> BTreeMap<String, String> {
    let unneeded = saved.iter().filter(|(path, _)| !host.sysctls.contains_key(*path));
    unneeded.map(|(path, value)| (path.clone(), value.clone())).collect()
}

fn plan(table: &RuleTable, saved: &BTreeMap<String, String>) -> Result<sysctl::Plan, Unsupported> {
    let interfaces = &table.settings().interfaces;
    let missing = interfaces
        .tailnet
        .iter()
        .chain(&interfaces.cluster)
        .find(|name| nix::net::if_::if_nametoindex(name.as_str()).is_err());
    if let Some(name) = missing {
        return Err(Unsupported::Interface(name.clone()));
    }
    sysctl::plan(table.settings(), saved).map_err(|source| Unsupported::Kernel {
        what: "to tell its forwarding settings".to_owned(),
        source: source.into(),
    })
}
