//! The benchmark of operators on a real API server.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use benches::{
    machine,
    operator::{self, Plan, contestant::Contestant, goals::goals, load::Load},
    report::Report,
    table,
};
use clap::{Parser, ValueEnum as _};

/// Measures upstream's operator and ours on the same objects, one after the other. Needs root.
#[derive(Parser)]
#[command(name = "operator")]
struct Args {
    /// Write machine facts, every turn and the goals here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Number of rounds; in each, both have a turn.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Services with proxies of their own.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    services: usize,
    /// Egress Services of one ProxyGroup.
    #[arg(long, value_name = "N", default_value_t = 200)]
    egress: usize,
    /// Ingresses with proxies of their own.
    #[arg(long, value_name = "N", default_value_t = 50)]
    ingresses: usize,
    /// Connectors.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(..=256))]
    connectors: u32,
    /// How long statuses may take.
    #[arg(long, value_name = "S", default_value_t = 900)]
    patience: u64,
    /// What trails after the last status is right.
    #[arg(long, value_name = "S", default_value_t = 30)]
    settle: u64,
    /// How long each is watched while nothing happens.
    #[arg(long, value_name = "S", default_value_t = 60)]
    idle: u64,
    /// Only these.
    #[arg(long, value_enum, value_name = "WHO")]
    only: Vec<Contestant>,
    /// Fail if a goal that was measured misses its floor.
    #[arg(long)]
    gate: bool,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let plan = Plan {
        rounds: args.rounds,
        load: Load {
            services: args.services,
            egress: args.egress,
            ingresses: args.ingresses,
            connectors: args.connectors as usize,
        },
        contestants: match args.only.as_slice() {
            [] => Contestant::value_variants().to_vec(),
            some => some.to_vec(),
        },
        patience: Duration::from_secs(args.patience),
        settle: Duration::from_secs(args.settle),
        idle: Duration::from_secs(args.idle),
    };
    let machine = machine::machine();
    let book = operator::measure(&plan)?;
    let goals = goals(&book);
    println!("{}\n\n{}\n{}", book.table(), book.requests(), table::goals(&goals));
    if let Some(path) = &args.json {
        let report = Report {
            benchmark: "operator",
            machine: &machine,
            rounds: plan.rounds,
            round_seconds: 0.0,
            series: &book.rows,
            goals: &goals,
        };
        report.write(path)?;
    }
    let missed = goals.iter().filter(|goal| goal.is_missed()).count();
    Ok(if args.gate && missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
