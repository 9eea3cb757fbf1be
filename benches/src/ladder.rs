//! The ladder: every rung measured in turn, round after round.

use anyhow::{Context, Result};
use proxy_rules::Protocol;

use crate::{
    generator::{self, Generator, Limit, Round, Workload},
    kernel::Kernel,
    plan::Plan,
    progress::Progress,
    rig::{Entry, Rig},
    rung::{Fitting, Rung},
    series::{Measure, Series},
};

/// One rig: the same published ports and flow table for every rung.
#[derive(Clone, Debug)]
pub struct Setting {
    pub ports: u16,
    pub flows: Vec<u32>,
    pub max_flows: u32,
}

/// A rung, fitted, with its sink.
struct Stand {
    rung: Rung,
    fitting: Fitting,
    sink: Option<Kernel>,
    counted: u64,
}

impl Stand {
    fn sink(&self) -> Result<&Kernel> {
        // The ceiling's sink is the router's own program.
        self.sink.as_ref().or(self.fitting.kernel.as_ref()).context("a rung without a sink")
    }

    fn sink_mut(&mut self) -> Result<&mut Kernel> {
        self.sink.as_mut().or(self.fitting.kernel.as_mut()).context("a rung without a sink")
    }

    /// Packets that our own counters have seen so far.
    fn count(&self, rig: &Rig, lane: usize) -> Result<Option<u64>> {
        let Some(path) = &self.fitting.path else { return Ok(None) };
        let lane = rig.lanes.get(lane).context("no such lane")?;
        let snapshot = path.counters(&lane.router)?;
        Ok(Some(snapshot.series.values().map(|count| count.original_packets).sum()))
    }
}

/// Measures every rung with every workload of the setting.
pub fn measure(
    setting: &Setting,
    rungs: &[Rung],
    plan: &Plan,
    bar: &Progress,
) -> Result<Vec<Series>> {
    let rig = Rig::new(rungs.len(), Entry::Frames)?;
    let mut generator = Generator::new()?;
    let mut stands = Vec::new();
    for (&rung, lane) in rungs.iter().zip(&rig.lanes) {
        bar.say(&format!("{} with {} ports", rung.label(), setting.ports));
        let fitting = rung
            .install(lane, Protocol::Udp, setting.ports, setting.max_flows)
            .with_context(|| format!("setting up {}", rung.label()))?;
        let sink = if rung == Rung::XdpDrop {
            None
        } else {
            let mut sink = Kernel::load()?;
            sink.configure(generator::counting())?;
            sink.attach_xdp("bench_sink", &rig.receiver, &lane.receiver_device())?;
            Some(sink)
        };
        stands.push(Stand { rung, fitting, sink, counted: 0 });
    }
    let mut all = Vec::new();
    for &flows in &setting.flows {
        let workload =
            Workload { flows, ports: setting.ports.min(u16::try_from(flows).unwrap_or(u16::MAX)) };
        all.extend(measure_workload(&rig, &mut generator, &mut stands, workload, plan, bar)?);
    }
    for series in &mut all {
        series.ports = setting.ports;
    }
    Ok(all)
}

fn measure_workload(
    rig: &Rig,
    generator: &mut Generator,
    stands: &mut [Stand],
    workload: Workload,
    plan: &Plan,
    bar: &Progress,
) -> Result<Vec<Series>> {
    let mut all = Vec::new();
    for (index, (stand, lane)) in stands.iter_mut().zip(&rig.lanes).enumerate() {
        stand.counted = stand.count(rig, index)?.unwrap_or_default();
        let path = stand.rung.path();
        // Twice each flow: the first packet creates, and what arrives is looked at byte by byte.
        let expected = generator::expected(lane, path, workload);
        let looked_at = stand.rung != Rung::XdpDrop;
        if looked_at {
            stand.sink_mut()?.configure(expected)?;
        }
        let limit = Limit::Packets(2 * u64::from(workload.flows).max(1 << 12));
        bar.say(&format!("{}, {} flows: warming up", stand.rung.label(), workload.flows));
        let round = generator.run(rig, lane, path, workload, limit, stand.sink()?)?;
        stand.sink_mut()?.configure(generator::counting())?;
        let mut series = Series::new(Measure::Packet, stand.rung, workload.flows, workload.ports);
        series.wrong = round.wrong;
        series.verified = if looked_at { round.received } else { 0 };
        add(&mut series, &round);
        all.push(series);
    }
    for number in 0..plan.rounds {
        for ((stand, lane), series) in stands.iter().zip(&rig.lanes).zip(&mut all) {
            bar.say(&format!(
                "{}, {} flows, round {}/{}",
                stand.rung.label(),
                workload.flows,
                number + 1,
                plan.rounds
            ));
            let limit = Limit::Time(plan.round);
            let round =
                generator.run(rig, lane, stand.rung.path(), workload, limit, stand.sink()?)?;
            series.values.push(round.nanoseconds());
            add(series, &round);
            bar.step();
        }
    }
    for (index, (stand, series)) in stands.iter().zip(&mut all).enumerate() {
        series.counted = stand.count(rig, index)?.map(|total| total - stand.counted);
    }
    Ok(all)
}

fn add(series: &mut Series, round: &Round) {
    series.sent += round.sent;
    series.lost += round.sent.saturating_sub(round.received);
}

/// How many series a setting gives.
pub fn series(setting: &Setting, rungs: usize) -> usize {
    setting.flows.len() * rungs
}
