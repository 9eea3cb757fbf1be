//! `generate`: what is generated and kept in the repository, written anew from the code that defines it.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{
    step,
    test::{Tier, run_tiers},
    workspace,
};

/// Writes the generated files (JSON schema, golden files) anew, or checks that they are current.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change nothing; fail if something is not current.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.check {
        let tally = run_tiers(&[Tier::Golden])?;
        println!("{tally}");
        if tally.failed > 0 {
            bail!("not current; run `cargo xtask generate` and review the difference");
        }
        return Ok(());
    }
    // The tests that compare are what writes: there is no second opinion on how a file is made.
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["generate", "--check"]).env("UPDATE_GOLDEN", "1");
    step::must("generate", &mut command)?;
    let mut status = Command::new("git");
    status.args(["status", "--short"]).current_dir(workspace::root()).status()?;
    Ok(())
}
