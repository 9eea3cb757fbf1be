//! `kubectl sluice`: the operator's tools for people, found by kubectl under this name in PATH.

use std::{io::Write as _, process::ExitCode};

use anyhow::Result;
use clap::Parser;
use operator::top;

/// Shows what Sluice's proxies in a cluster carry.
#[derive(Debug, Parser)]
#[command(name = "kubectl-sluice", bin_name = "kubectl sluice", version)]
enum Command {
    /// What proxies carry, live.
    Top(top::Args),
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "kubectl sluice: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(command: Command) -> Result<()> {
    let Command::Top(args) = command;
    let stop = async {
        // Without a way to hear of it, the process just ends.
        let _ = tokio::signal::ctrl_c().await;
    };
    top::run(args, stop).await
}
