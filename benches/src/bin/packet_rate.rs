//! The packet-rate benchmark.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use benches::{
    ladder::{self, Setting},
    plan::Plan,
    progress::Progress,
    rung::Rung,
    stats,
};
use clap::Parser;

/// Measures Sluice's data paths beside the kernel's own, on this machine.
#[derive(Parser)]
struct Args {
    /// Write machine facts, every series and the goals here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Few and short rounds: a look, nothing to quote.
    #[arg(long)]
    quick: bool,
    /// Number of rounds.
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Only these rungs of the ladder.
    #[arg(long, value_enum, value_name = "RUNG")]
    rung: Vec<Rung>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let mut plan = if args.quick { Plan::QUICK } else { Plan::FULL };
    if let Some(rounds) = args.rounds {
        plan.rounds = rounds;
    }
    let setting = Setting { ports: 1, flows: vec![1, 1024], max_flows: 262_144 };
    let rungs: Vec<Rung> =
        Rung::ALL.into_iter().filter(|r| args.rung.is_empty() || args.rung.contains(r)).collect();
    let bar = Progress::new(ladder::rounds(&setting, rungs.len(), &plan));
    for series in ladder::measure(&setting, &rungs, &plan, &bar)? {
        let q = stats::quartiles(&series.nanoseconds);
        println!(
            "{:22} {:8} {:?} lost {} wrong {}/{} counted {:?}/{}",
            series.rung.label(),
            series.flows,
            q,
            series.lost,
            series.wrong,
            series.verified,
            series.counted,
            series.sent
        );
    }
    Ok(ExitCode::SUCCESS)
}
