//! `bench`: the packet-rate benchmark, and criterion's benches.

use anyhow::{Result, bail};
use clap::Subcommand;

use crate::{
    setup::{self, Purpose},
    step, workspace,
};

/// Measures, prints a table, draws a plot.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Packets per second and costs of every data path, side by side with the alternatives.
    PacketRate {
        /// Passed on to the benchmark, as `--json FILE`; `-- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Times of pure functions.
    Criterion {
        /// Passed on to criterion, as a filter.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure(&[Purpose::Bench])?;
    let mut command = match &args.what {
        What::PacketRate { arguments } => {
            let mut build = workspace::cargo("build");
            build.args(["--release", "--package", "benches", "--package", "proxy", "--bins"]);
            step::must("build", &mut build)?;
            let programs = workspace::target_dir().join("release");
            let mut command = std::process::Command::new(programs.join("packet-rate"));
            command.args(arguments).env("SLUICE_PROXY", programs.join("sluice-proxy"));
            command
        }
        What::Criterion { arguments } => {
            let mut command = workspace::cargo("bench");
            command.args(["--package", "benches", "--"]).args(arguments);
            command
        }
    };
    let status = command.current_dir(workspace::root()).status()?;
    if !status.success() {
        bail!("the benchmark ended with {status}");
    }
    Ok(())
}
