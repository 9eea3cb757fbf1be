//! `testbed`: builds the Go programs of tests, once for each state of their sources.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use proxy_testbed_programs::{HELM, KUBERNETES, Programs, TAILNET};

use crate::{step, workspace};

/// Builds the Go programs that tests start (tailscaled, a control server, kube-apiserver, helm), and says where they are.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these; all if not given.
    #[arg(value_enum)]
    only: Vec<Kind>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Kind {
    /// What a tailnet is made of.
    Tailnet,
    /// What a Kubernetes is made of.
    Kubernetes,
    /// What renders the chart.
    Helm,
}

impl Kind {
    fn programs(self) -> Programs {
        match self {
            Self::Tailnet => TAILNET,
            Self::Kubernetes => KUBERNETES,
            Self::Helm => HELM,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let kinds = if args.only.is_empty() { Kind::value_variants() } else { args.only.as_slice() };
    for programs in kinds.iter().map(|kind| kind.programs()) {
        let directory = build(programs)?;
        for (name, _) in programs.programs {
            println!("{}", directory.join(name).display());
        }
    }
    Ok(())
}

/// The directory of the programs, built if they are not there.
pub(crate) fn build(programs: Programs) -> Result<PathBuf> {
    if std::env::var_os(programs.variable).is_some() {
        return programs.find();
    }
    let directory = programs.directory()?;
    if programs.complete(&directory) {
        // For those that tidy up: it is in use.
        let _ = File::open(&directory)?.set_modified(SystemTime::now());
        return Ok(directory);
    }
    if workspace::find_program("go").is_none() {
        bail!(
            "the programs of the {} need Go 1.26 or newer (https://go.dev/dl) to be built",
            programs.name
        );
    }
    let cache = directory.parent().context("the cache has no directory")?;
    fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
    // Two runs at once would build the same twice, on as many cores.
    let lock = File::create(cache.join("lock"))?;
    lock.lock()?;
    if programs.complete(&directory) {
        return Ok(directory);
    }
    let unfinished = directory.with_extension("new");
    fs::create_dir_all(&unfinished)?;
    // The slash makes Go write into a directory.
    step::must(
        &format!("build the {}'s programs (the first time takes minutes)", programs.name),
        &mut programs.build(&unfinished.join("")),
    )?;
    fs::rename(&unfinished, &directory)
        .with_context(|| format!("cannot name {}", directory.display()))?;
    remove_unused(cache)?;
    Ok(directory)
}

/// Removes programs of sources that no checkout has run for a week: each state of them takes about 90 MB.
fn remove_unused(cache: &Path) -> Result<()> {
    const WEEK: Duration = Duration::from_hours(7 * 24);
    for entry in fs::read_dir(cache)?.filter_map(Result::ok) {
        let age = entry.metadata()?.modified()?.elapsed().unwrap_or_default();
        if age > WEEK && entry.path().is_dir() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
