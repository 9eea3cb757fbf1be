//! `demo`: from nothing to real traffic through the three data paths.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::{
    setup::{self, Purpose},
    step,
    test::Tally,
    workspace,
};

/// Sets up, builds, and carries real traffic through each data path between three network namespaces.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Passed on to the demonstration.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure(&[Purpose::Demo])?;
    demonstrate(&args.arguments)
}

/// The demonstration as a test: it checks its own counters.
pub(crate) fn tally() -> Tally {
    let mut tally = Tally::default();
    match demonstrate(&[]) {
        Ok(()) => tally.passed += 1,
        Err(error) => tally.fail(format!("the demonstration: {error:#}")),
    }
    tally
}

fn demonstrate(arguments: &[String]) -> Result<()> {
    let mut build = workspace::cargo("build");
    build.args(["--package", "proxy", "--package", "proxy-testbed", "--bins"]);
    step::must("build", &mut build)?;

    let start = Instant::now();
    let programs = workspace::target_dir().join("debug");
    let status = std::process::Command::new(programs.join("demo"))
        .args(arguments)
        .env("SLUICE_PROXY", programs.join("sluice-proxy"))
        .current_dir(workspace::root())
        .status()?;
    if !status.success() {
        bail!("the demonstration ended with {status}");
    }
    println!("took {}", step::seconds(start.elapsed()));
    Ok(())
}
