//! How long a table takes to be in force: from an empty one, and after one backend has changed.

use std::{hint::black_box, time::Instant};

use anyhow::{Context, Result};
use proxy::data_path::{DataPath, nftables::NftPath};
use proxy_rules::{Protocol, Rule, RuleTable};

use crate::{
    ebpf,
    generator::BACKEND_PORT,
    ours,
    plan::Plan,
    progress::Progress,
    rig::{Entry, Lane, Rig},
    rival,
    rung::Rung,
    series::{Measure, Series},
};

/// Measures both on one of our paths with so many ports. Programs are loaded and attached before: a start is not an
/// apply.
pub fn measure(rung: Rung, ports: u16, plan: &Plan, bar: &Progress) -> Result<[Series; 2]> {
    let mut cold = Series::new(Measure::ApplyCold, rung, 0, ports);
    let mut change = Series::new(Measure::ApplyChange, rung, 0, ports);
    for _ in 0..plan.rounds {
        bar.say(&format!("{}: applying {ports} ports", rung.label()));
        let rig = Rig::new(1, Entry::Sockets)?;
        let lane = rig.lanes.first().context("a rig without lanes")?;
        let (first, changed) = lane.router.run(|| {
            let mut path: Box<dyn DataPath> = match rung {
                Rung::SluiceNft => Box::new(NftPath::new()),
                _ => ebpf::with_tc()?,
            };
            path.apply(&RuleTable::empty(ours::settings(262_144)))?;
            let first = timed(path.as_mut(), &table(lane, ports, 0))?;
            let changed = timed(path.as_mut(), &table(lane, ports, 1))?;
            path.remove()?;
            Ok((first, changed))
        })?;
        cold.values.push(first);
        change.values.push(changed);
        bar.step();
    }
    Ok([cold, change])
}

/// Milliseconds.
fn timed(path: &mut dyn DataPath, table: &RuleTable) -> Result<f64> {
    let start = Instant::now();
    path.apply(black_box(table))?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// The lane's ports, the last of them with its backend's port moved by `moved`.
fn table(lane: &Lane, ports: u16, moved: u16) -> RuleTable {
    let mut rules: Vec<Rule> = rival::ports(ports - 1)
        .filter_map(|port| ours::rule(lane, Protocol::Tcp, port, BACKEND_PORT))
        .collect();
    rules.extend(
        rival::ports(ports)
            .last()
            .and_then(|port| ours::rule(lane, Protocol::Tcp, port, BACKEND_PORT + moved)),
    );
    RuleTable::new(rules, ours::settings(262_144))
}
