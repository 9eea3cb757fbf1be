//! The benchmark of proxy pods on a real tailnet.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use benches::{
    machine, plot,
    report::Report,
    table,
    tailnet::{
        self, Plan,
        goals::goals,
        load::Load,
        way::{Role, Way},
    },
};
use clap::{Parser, ValueEnum};

/// Measures upstream's proxy pod and ours side by side, each with real tailscaleds. Needs root.
#[derive(Parser)]
#[command(name = "tailnet")]
struct Args {
    /// Write machine facts, every series and the goals here; the plot beside it, as SVG and PNG.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of a round of each kind of traffic.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
    /// Only these ways.
    #[arg(long, value_enum, value_name = "RUNG")]
    rung: Vec<Way>,
    /// Only these kinds of traffic.
    #[arg(long, value_enum, value_name = "PART")]
    part: Vec<Part>,
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
    /// TCP, 1 and 8 streams, and what they cost.
    Stream,
    /// Datagrams, at a steady pace and as they come.
    Udp,
    /// Request-response, and memory.
    Rr,
    /// Connect-request-response.
    Crr,
    /// From the start of a process to the first byte.
    Start,
}

impl Part {
    const fn loads(self) -> &'static [Load] {
        match self {
            Self::Stream => &[Load::Stream, Load::Streams],
            Self::Udp => &[Load::Udp, Load::Flood],
            Self::Rr => &[Load::Rr],
            Self::Crr => &[Load::Crr],
            Self::Start => &[],
        }
    }
}

impl Args {
    fn plan(&self) -> Result<Plan> {
        let all = |given: &[Way]| match given {
            [] => Way::value_variants().to_vec(),
            some => some.to_vec(),
        };
        let parts: &[Part] = if self.part.is_empty() { Part::value_variants() } else { &self.part };
        Ok(Plan {
            rounds: self.rounds,
            round: Duration::try_from_secs_f64(self.seconds)?,
            ways: all(&self.rung),
            loads: parts.iter().flat_map(|part| part.loads()).copied().collect(),
            starts: parts.contains(&Part::Start),
        })
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let (plan, machine) = (args.plan()?, machine::machine());
    let book = tailnet::measure(&plan)?;
    let mut goals = goals(&book);
    goals.retain(|goal| {
        args.goal.is_empty() || args.goal.iter().any(|g| goal.id.starts_with(g.as_str()))
    });
    for role in Role::ALL {
        println!("{}\n", book.table(role));
    }
    println!("{}", table::goals(&goals));
    if let Some(path) = &args.json {
        let report = Report {
            benchmark: "tailnet",
            machine: &machine,
            rounds: plan.rounds,
            round_seconds: plan.round.as_secs_f64(),
            series: &book.series,
            goals: &goals,
        };
        report.write(path)?;
        plot::write(&book.picture(), path)?;
    }
    let missed = goals.iter().filter(|goal| goal.is_missed()).count();
    Ok(if args.gate && missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
