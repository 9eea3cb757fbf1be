//! `test`: every tier, each test binary built once and run once, and one line that adds up.

use std::{process::Command, time::Instant};

use anyhow::{Result, bail};
use clap::ValueEnum as _;

use crate::{
    check, demo, faults, kernel,
    setup::{self, Purpose},
    step, workspace,
};

mod binary;
mod tally;
mod tier;

pub(crate) use binary::{Binary, Build};
pub(crate) use tally::Tally;
pub(crate) use tier::{Place, Tier};

/// Sets up, checks, builds, and runs the tests on this machine's kernel and on others; planted faults by name.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these tiers, without the checks.
    #[arg(long, value_enum)]
    tier: Vec<Tier>,
    /// Only on this kernel, in a virtual machine.
    #[arg(long, value_enum)]
    kernel: Vec<kernel::Version>,
    /// Only list the test binaries and their tiers.
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.list {
        return list();
    }
    let start = Instant::now();
    let everything = args.tier.is_empty() && args.kernel.is_empty();
    let mut purposes = vec![Purpose::Test];
    let kernels =
        if everything { kernel::Version::value_variants().to_vec() } else { args.kernel.clone() };
    if !kernels.is_empty() && !skips_kernel_tests() {
        purposes.push(Purpose::Kernel);
    }
    setup::ensure(&purposes)?;

    let mut tally = Tally::default();
    let mut checks = Vec::new();
    if everything {
        checks = check::lints()?;
    }
    if args.kernel.is_empty() {
        let tiers = if args.tier.is_empty() { Tier::usual() } else { args.tier.clone() };
        tally.add(run_tiers(&tiers)?);
        if tiers.contains(&Tier::Faults) {
            tally.add(run_faults()?);
        }
    }
    if everything && !skips_kernel_tests() {
        tally.add(demo::tally());
    }
    if !kernels.is_empty() {
        let build = binary::build()?;
        for version in kernels {
            tally.add(if skips_kernel_tests() {
                kernel::skip(version, &build, "SKIP_KERNEL_TESTS=1")?
            } else if everything {
                kernel::run_if_offered(version, &build)?
            } else {
                kernel::run(version, &build)?
            });
        }
    }
    if !checks.is_empty() {
        step::summary(&checks);
    }
    for failure in &tally.failures {
        println!("failed: {failure}");
    }
    for skipped in &tally.skips {
        println!("skipped: {skipped}");
    }
    for note in &tally.notes {
        println!("note: {note}");
    }
    println!("took {}", step::seconds(start.elapsed()));
    println!("{tally}");
    check::verdict(&checks)?;
    if tally.failed > 0 {
        bail!("{} tests failed", tally.failed);
    }
    if tally.passed == 0 {
        bail!("no test ran");
    }
    Ok(())
}

/// Builds the test binaries and runs those of `tiers` here, in order.
pub(crate) fn run_tiers(tiers: &[Tier]) -> Result<Tally> {
    let binaries = binary::build()?.binaries;
    let mut tally = Tally::default();
    for tier in tiers {
        let here = binaries.iter().filter(|binary| binary.place.is_here());
        for binary in here.filter(|binary| binary.tier == *tier) {
            if tier.needs_kernel() && skips_kernel_tests() {
                tally.skip(&binary.label(), binary.count()?, "SKIP_KERNEL_TESTS=1");
            } else {
                tally.add(binary.run()?);
            }
        }
        if *tier == Tier::Unit {
            tally.add(documentation_tests()?);
        }
    }
    Ok(tally)
}

/// The examples in the documentation comments.
fn documentation_tests() -> Result<Tally> {
    let mut command = workspace::cargo("test");
    command.args(["--workspace", "--doc"]);
    let finished = step::run("documentation examples", &mut command)?;
    Ok(Tally::of_output("documentation examples", &finished))
}

fn run_faults() -> Result<Tally> {
    if skips_kernel_tests() {
        let mut tally = Tally::default();
        tally.skip("planted faults", faults::count(), "SKIP_KERNEL_TESTS=1");
        return Ok(tally);
    }
    faults::survivors()
}

/// Whether tests that need root and BPF are left out, as asked for; what is left out is printed.
pub(crate) fn skips_kernel_tests() -> bool {
    std::env::var("SKIP_KERNEL_TESTS").is_ok_and(|value| value == "1")
}

fn list() -> Result<()> {
    for binary in binary::build()?.binaries {
        println!("{:<13} {}", binary.tier.to_string(), binary.label());
    }
    Ok(())
}

/// A command that ends after `seconds` whatever it does; its children too.
pub(crate) fn bounded(seconds: u32, program: &std::path::Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", &seconds.to_string()]).arg(program);
    command
}
