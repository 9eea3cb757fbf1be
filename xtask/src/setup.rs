//! `setup`: finds what a machine needs, says what is missing and how it will get it, asks, and gets it.

use std::{
    fs,
    io::{self, IsTerminal as _, Write as _},
    os::unix::fs::MetadataExt as _,
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::{step, workspace};

mod need;

use need::{Install, NEEDS, Need};

/// Finds or installs what this machine needs to build, test, demonstrate or measure Sluice.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Install without asking.
    #[arg(long)]
    yes: bool,
    /// Only say what is there and what would be done.
    #[arg(long)]
    dry_run: bool,
    /// What the machine is for; everything if not given.
    #[arg(long = "for", value_enum, value_name = "PURPOSE")]
    purpose: Vec<Purpose>,
}

/// What a machine can be set up for. Building is always included.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Purpose {
    /// Compile everything.
    Build,
    /// Run the demonstration.
    Demo,
    /// Run the checks and the tests on this machine's kernel.
    Test,
    /// Run the benchmarks.
    Bench,
    /// Run the tests on other kernels, emulated.
    Kernel,
    /// Make container images.
    Images,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let purposes =
        if args.purpose.is_empty() { Purpose::value_variants() } else { args.purpose.as_slice() };
    let needs: Vec<&Need> = NEEDS
        .iter()
        .filter(|need| need.purposes.iter().any(|purpose| wanted(*purpose, purposes)))
        .collect();

    let mut missing = Vec::new();
    for need in needs {
        if let Some(found) = (need.find)() {
            println!("found    {:<18} {found}", need.name);
        } else {
            println!("missing  {:<18} {}", need.name, need.why);
            missing.push(need);
        }
    }
    if missing.is_empty() {
        println!("nothing to do");
        return Ok(());
    }

    let plan = plan(&missing)?;
    println!("\nthis will run:");
    for command in &plan {
        println!("  {}", shown(command));
    }
    if args.dry_run {
        return Ok(());
    }
    if !(args.yes || workspace::in_ci() || confirmed()?) {
        bail!(
            "nothing was installed; run the commands above yourself, or `cargo xtask setup --yes`"
        );
    }
    for mut command in plan {
        let name = shown(&command);
        step::must(&name, &mut command)?;
    }
    for need in missing {
        (need.find)().with_context(|| {
            format!("{} is still missing after its installation; {}", need.name, need.why)
        })?;
    }
    Ok(())
}

/// Makes the machine fit for `purposes`; for the other tasks. In a pipeline it installs, elsewhere it asks.
pub(crate) fn ensure(purposes: &[Purpose]) -> Result<()> {
    run(&Args { yes: false, dry_run: false, purpose: purposes.to_vec() })
}

fn wanted(purpose: Purpose, purposes: &[Purpose]) -> bool {
    purpose == Purpose::Build || purposes.contains(&purpose)
}

/// The commands that install what is missing, in order: packages first, since programs are linked against them.
fn plan(missing: &[&Need]) -> Result<Vec<Command>> {
    let mut packages = Vec::new();
    let mut commands = Vec::new();
    for need in missing {
        match (need.install)() {
            Install::Packages(names) => packages.extend(names),
            Install::Program { packages: names, command } => {
                packages.extend(names);
                commands.push(command);
            }
        }
    }
    if packages.is_empty() {
        return Ok(commands);
    }
    packages.sort_unstable();
    packages.dedup();
    if workspace::find_program("apt-get").is_none() {
        bail!(
            "this is not Debian: install what these Debian packages hold, then run this again: {}",
            packages.join(" ")
        );
    }
    let mut plan = Vec::new();
    if lists_are_old() {
        plan.push(as_root(&["apt-get", "update"]));
    }
    let mut install = as_root(&["apt-get", "install", "--yes", "--no-install-recommends"]);
    install.args(packages);
    plan.push(install);
    plan.extend(commands);
    Ok(plan)
}

/// Whether apt's idea of what exists is older than a day. It fails to download what was superseded since.
fn lists_are_old() -> bool {
    const DAY: Duration = Duration::from_hours(24);
    let newest = fs::read_dir("/var/lib/apt/lists").ok().and_then(|entries| {
        entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().contains("_dists_"))
            .filter_map(|entry| entry.metadata().ok()?.modified().ok())
            .max()
    });
    // The files carry the time of their publication, which for a stable release may be months ago; the directory's
    // own time is that of the last update.
    let updated = fs::metadata("/var/lib/apt/lists").and_then(|lists| lists.modified());
    match (newest, updated) {
        (Some(_), Ok(updated)) => {
            SystemTime::now().duration_since(updated).is_ok_and(|age| age > DAY)
        }
        _ => true,
    }
}

fn as_root(words: &[&str]) -> Command {
    let root = is_root();
    let mut words = words.iter();
    let mut command =
        if root { Command::new(words.next().unwrap_or(&"true")) } else { Command::new("sudo") };
    command.args(words).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// The command as one would type it.
fn shown(command: &Command) -> String {
    let settings = command.get_envs().filter(|(name, _)| *name != "DEBIAN_FRONTEND").filter_map(
        |(name, value)| Some(format!("{}={}", name.to_string_lossy(), value?.to_string_lossy())),
    );
    settings
        .chain([command.get_program().to_string_lossy().into_owned()])
        .chain(command.get_args().map(|argument| argument.to_string_lossy().into_owned()))
        .collect::<Vec<_>>()
        .join(" ")
}

fn confirmed() -> Result<bool> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    print!("go ahead? [y/N] ");
    io::stdout().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Whether this process is root's.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}
