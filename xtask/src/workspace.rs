//! Where things are, and the cargo that runs us.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// cargo's target directory.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The target directory of the kernel programs when xtask builds them.
pub(crate) fn ebpf_target_dir() -> PathBuf {
    target_dir().join("ebpf")
}

/// A directory for what is worth keeping over fresh checkouts (kernels); made if it is not there.
pub(crate) fn cache_dir(name: &str) -> Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME") {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    let directory = base.join("sluice").join(name);
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make the cache directory {}", directory.display()))?;
    Ok(directory)
}

/// The cargo that runs us, in the root of the checkout.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(subcommand).current_dir(root());
    command
}

/// Whether a pipeline runs us, so that nobody is there to answer questions.
pub(crate) fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// The first executable of that name in the search path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    // Debian keeps network tools in sbin, which an ordinary user's search path lacks.
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}
