//! `bench`: the packet-rate, the tailnet and the operator benchmark, and criterion's benches.

use std::{path::PathBuf, process::Command};

use anyhow::{Result, bail};
use clap::Subcommand;
use proxy_testbed_programs::{KUBERNETES, TAILNET, UPSTREAM};

use crate::{
    setup::{self, Purpose},
    step, testbed, workspace,
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
    /// Upstream's proxy pod and ours on a real tailnet, side by side.
    Tailnet {
        /// Passed on to the benchmark, as `--json FILE`; `-- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Upstream's operator and ours on a real API server, side by side.
    Operator {
        /// Passed on to the benchmark, as `--services N`; `-- --help` lists them.
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
            let mut command = program("packet-rate", arguments)?;
            if let Some(rival) = netstack()? {
                command.env("SLUICE_NETSTACK", rival);
            }
            command
        }
        What::Tailnet { arguments } => {
            let mut command = program("tailnet", arguments)?;
            command.env(TAILNET.variable, testbed::build(TAILNET)?);
            command
        }
        What::Operator { arguments } => {
            let mut command = program("operator", arguments)?;
            for programs in [TAILNET, KUBERNETES, UPSTREAM] {
                command.env(programs.variable, testbed::build(programs)?);
            }
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

/// A benchmark's program, built together with the product's, which it is told of.
fn program(name: &str, arguments: &[String]) -> Result<Command> {
    let mut build = workspace::cargo("build");
    build.args(["--release", "--bins"]);
    build.args(["--package", "benches", "--package", "proxy", "--package", "operator"]);
    step::must("build", &mut build)?;
    let programs = workspace::target_dir().join("release");
    let mut command = Command::new(programs.join(name));
    command.args(arguments).env("SLUICE_PROXY", programs.join("sluice-proxy"));
    command.env("SLUICE_OPERATOR", programs.join("sluice-operator"));
    Ok(command)
}

/// Builds tailscaled's netstack, which our user-space path is compared with. Go is only for that, so it is not a need.
fn netstack() -> Result<Option<PathBuf>> {
    if workspace::find_program("go").is_none() {
        println!("goal G15 is left out: it needs Go 1.26 or newer (https://go.dev/dl)");
        return Ok(None);
    }
    let program = workspace::cache_dir("netstack")?.join("netstack");
    let mut build = Command::new("go");
    build.args(["build", "-trimpath", "-o"]).arg(&program).arg(".");
    build.current_dir(workspace::root().join("benches/netstack"));
    step::must("build tailscaled's netstack", &mut build)?;
    Ok(Some(program))
}
