//! `check`: everything that needs neither root nor a special kernel. All steps run, even when one fails.

use std::{env, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};
use proxy_ebpf_build::{Toolchain, target_triple};

use crate::{
    step::{self, Finished},
    test, workspace,
    workspace::cargo,
};

/// Format, lints, BPF type check, documentation, dependencies, unit tests and repository rules.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> Result<()> {
    let mut steps = lints()?;
    let (tests, _) = step::call("unit tests", || {
        let tally = test::run_tiers(&[test::Tier::Unit, test::Tier::Golden])?;
        if tally.failed > 0 {
            bail!("{} failed: {}", tally.failed, tally.failures.join(", "));
        }
        Ok(())
    });
    steps.push(tests);
    step::summary(&steps);
    verdict(&steps)
}

/// An error if a step failed, naming them.
pub(crate) fn verdict(steps: &[Finished]) -> Result<()> {
    let failed: Vec<_> =
        steps.iter().filter(|step| !step.success).map(|step| step.name.as_str()).collect();
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

/// What is checked without running anything of ours.
pub(crate) fn lints() -> Result<Vec<Finished>> {
    let mut steps = vec![
        step::run("format", cargo("fmt").args(["--all", "--check"]))?,
        step::run(
            "clippy",
            cargo("clippy").args(["--workspace", "--all-targets", "--", "-D", "warnings"]),
        )?,
        step::run(
            "documentation",
            cargo("doc")
                .args(["--workspace", "--no-deps", "--document-private-items"])
                .env("RUSTDOCFLAGS", "-D warnings"),
        )?,
        bpf()?,
        step::run("dependencies", &mut deny(&["bans", "licenses", "sources"]))?,
    ];
    steps.extend(advisories()?);
    Ok(steps)
}

/// Type-checks the kernel programs for their own target; a warning is an error there as well.
fn bpf() -> Result<Finished> {
    const NAME: &str = "kernel programs";
    let toolchain = match Toolchain::find() {
        Ok(toolchain) => toolchain,
        Err(missing) => {
            return Ok(step::call(NAME, || -> Result<()> {
                bail!("{missing}; run `cargo xtask setup`")
            })
            .0);
        }
    };
    let mut command = proxy_ebpf_build::cargo(&toolchain, "check");
    command.current_dir(workspace::root());
    command.args(["--package", "proxy-ebpf", "--release", "--target", target_triple()]);
    command.arg("--target-dir").arg(workspace::ebpf_target_dir());
    let mut finished = step::run(NAME, &mut command)?;
    if finished.output.contains("\nwarning:") || finished.output.starts_with("warning:") {
        finished.success = false;
    }
    Ok(finished)
}

/// Known vulnerabilities of dependencies. The list of them lives on a public host that build machines often cannot
/// reach; whether it was looked at is said.
fn advisories() -> Result<Option<Finished>> {
    let cargo_home = env::var_os("CARGO_HOME")
        .map(std::path::PathBuf::from)
        .or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")))
        .context("neither CARGO_HOME nor HOME is set")?;
    let reachable = Command::new("timeout")
        .args(["10", "git", "ls-remote", "--quiet", "--exit-code"])
        .args(["https://github.com/rustsec/advisory-db", "HEAD"])
        .env("GIT_TERMINAL_PROMPT", "0")
        .output()
        .is_ok_and(|output| output.status.success());
    // A fetch that failed leaves the directory, with nothing or a lock in it.
    let stored = std::fs::read_dir(cargo_home.join("advisory-dbs"))
        .is_ok_and(|lists| lists.flatten().any(|list| list.path().join(".git").is_dir()));
    if !reachable && !stored {
        println!(
            "skipped advisories: the list of known vulnerabilities cannot be reached from here"
        );
        return Ok(None);
    }
    let mut command = deny(&["advisories"]);
    if !reachable {
        println!("advisories: from the list stored here, since the public one cannot be reached");
        command.arg("--disable-fetch");
    }
    Ok(Some(step::run("advisories", &mut command)?))
}

fn deny(checks: &[&str]) -> Command {
    let mut command = cargo("deny");
    command.args(["--workspace", "check", "--hide-inclusion-graph"]).args(checks);
    command
}
