//! The packet-rate benchmark.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use benches::{
    apply,
    goals::Book,
    ladder, limits, machine, netstack, pairs, panels,
    plan::Plan,
    plot,
    progress::Progress,
    report::Report,
    resident,
    rung::Rung,
    series::{Measure, Series},
    table, tcp, tun,
};
use clap::{Parser, ValueEnum};

/// Measures Sluice's data paths beside the kernel's own ways, on this machine. Needs root.
#[derive(Parser)]
#[command(name = "packet-rate")]
struct Args {
    /// Write machine facts, every series and the goals here; the plot beside it, as SVG and PNG.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Few and short rounds: a look, nothing to quote.
    #[arg(long)]
    quick: bool,
    /// Number of rounds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Only these parts.
    #[arg(long, value_enum, value_name = "PART")]
    part: Vec<Part>,
    /// Only these rungs of the ladder.
    #[arg(long, value_enum, value_name = "RUNG")]
    rung: Vec<Rung>,
    /// Only these goals in the table and the JSON.
    #[arg(long, value_name = "G")]
    goal: Vec<String>,
    /// Fail if a goal that was measured misses its floor.
    #[arg(long)]
    gate: bool,
}

/// A part of the run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Packets a second, rung by rung.
    Ladder,
    /// Packets written to a TUN device.
    Tun,
    /// Stream, request-response, connect-request-response.
    Tcp,
    /// Time until a table is in force.
    Apply,
    /// The flow table past its capacity.
    Pairs,
    /// Our user-space path beside tailscaled's.
    User,
    /// The agent's memory.
    Memory,
}

impl Args {
    fn has(&self, part: Part) -> bool {
        self.part.is_empty() || self.part.contains(&part)
    }

    fn has_rung(&self, rung: Rung) -> bool {
        self.rung.is_empty() || self.rung.contains(&rung)
    }

    fn plan(&self) -> Plan {
        let plan = if self.quick { Plan::QUICK } else { Plan::FULL };
        Plan { rounds: self.rounds.unwrap_or(plan.rounds), ..plan }
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let plan = args.plan();
    let machine = machine::machine();
    let _raised = limits::raise()?;
    let (series, found) = measure(&args, &plan)?;
    let resident = args.has(Part::Memory).then(resident::measure).transpose()?;
    let book = Book { series: &series, found, resident };
    let mut goals = book.goals();
    goals.retain(|goal| {
        args.goal.is_empty() || args.goal.iter().any(|g| goal.id.starts_with(g.as_str()))
    });

    println!("{}\n\n{}", table::series(&series), table::goals(&goals));
    if let Some(path) = &args.json {
        let report = Report {
            benchmark: "packet-rate",
            machine: &machine,
            rounds: plan.rounds,
            round_seconds: plan.round.as_secs_f64(),
            series: &series,
            goals: &goals,
        };
        report.write(path)?;
        plot::write(&panels::picture(&series), path)?;
    }
    let missed = goals.iter().filter(|goal| goal.is_missed()).count();
    Ok(if args.gate && missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(args: &Args, plan: &Plan) -> Result<(Vec<Series>, Option<pairs::Found>)> {
    let rungs: Vec<_> = Rung::ALL.into_iter().filter(|rung| args.has_rung(*rung)).collect();
    let tun_rungs: Vec<_> = tun::RUNGS.into_iter().filter(|rung| args.has_rung(*rung)).collect();
    let keep = |pairs: &[(Rung, u16)]| -> Vec<_> {
        pairs.iter().copied().filter(|(rung, _)| args.has_rung(*rung)).collect()
    };
    let (few, many) = (keep(&tcp::RUNGS), keep(&[&tcp::RUNGS[..], &tcp::MANY_PORTS].concat()));
    let kinds = [(tcp::Kind::Stream, &few), (tcp::Kind::Rr, &few), (tcp::Kind::Crr, &many)];
    let packets = [Measure::TunUdp, Measure::TunTcpGso, Measure::TunUdpUso];
    let applied = [Rung::SluiceTc, Rung::SluiceNft].map(|rung| [1000, 10_000].map(|n| (rung, n)));
    let applied: Vec<_> =
        applied.into_iter().flatten().filter(|(r, _)| args.has_rung(*r)).collect();
    let settings = plan.settings();

    let mut rounds = 0;
    if args.has(Part::Ladder) {
        rounds += settings.iter().map(|s| ladder::series(s, rungs.len())).sum::<usize>();
    }
    if args.has(Part::Tun) {
        rounds += packets.len() * tun_rungs.len();
    }
    if args.has(Part::Tcp) {
        rounds += kinds.iter().map(|(_, rungs)| rungs.len()).sum::<usize>();
    }
    if args.has(Part::Apply) {
        rounds += applied.len();
    }
    if args.has(Part::User) {
        rounds += netstack::ROUNDS;
    }
    let bar = Progress::new(rounds as u64 * u64::from(plan.rounds));
    let mut all = Vec::new();
    if args.has(Part::Ladder) {
        for setting in &settings {
            all.extend(ladder::measure(setting, &rungs, plan, &bar)?);
        }
    }
    if args.has(Part::Tun) {
        for measure in packets {
            all.extend(tun::measure(measure, &tun_rungs, plan, &bar)?);
        }
    }
    if args.has(Part::Tcp) {
        for (kind, rungs) in kinds {
            all.extend(tcp::measure(kind, rungs, plan, &bar)?);
        }
    }
    if args.has(Part::Apply) {
        for (rung, ports) in applied {
            all.extend(apply::measure(rung, ports, plan, &bar)?);
        }
    }
    if args.has(Part::User) {
        all.extend(netstack::measure(plan, &bar)?);
    }
    let found = args.has(Part::Pairs).then(pairs::overfill).transpose()?;
    bar.finish();
    Ok((all, found))
}
