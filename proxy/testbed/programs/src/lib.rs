//! The Go programs of the test tailnet: where they are, and how they are built. Used by `cargo xtask`, which builds
//! them, and by the testbed, which starts them, so that both mean the same ones.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

/// Names the directory of programs that are already built; the cache is not looked at then.
pub const VARIABLE: &str = "SLUICE_TAILNET_PROGRAMS";

/// What is built: file name and Go package. The first is ours, the others are pinned by its `go.mod`.
pub const PROGRAMS: [(&str, &str); 5] = [
    ("control", "."),
    ("tailscaled", "tailscale.com/cmd/tailscaled"),
    ("tailscale", "tailscale.com/cmd/tailscale"),
    ("containerboot", "tailscale.com/cmd/containerboot"),
    ("pebble", "github.com/letsencrypt/pebble/v2/cmd/pebble"),
];

/// The version of upstream's programs, as `go.mod` pins it.
const VERSION: &str = "1.102.5";

/// The directory of the programs, which must be there.
pub fn find() -> Result<PathBuf> {
    if let Some(directory) = env::var_os(VARIABLE) {
        let directory = PathBuf::from(directory);
        if !complete(&directory) {
            bail!("{VARIABLE}={}: not all of {PROGRAMS:?} are there", directory.display());
        }
        return Ok(directory);
    }
    let directory = directory()?;
    if !complete(&directory) {
        bail!(
            "the test tailnet's programs are not built ({} is missing): run `cargo xtask testbed`",
            directory.display()
        );
    }
    Ok(directory)
}

/// Whether all programs are in the directory.
pub fn complete(directory: &Path) -> bool {
    PROGRAMS.iter().all(|(name, _)| directory.join(name).is_file())
}

/// Where the cache keeps the programs of the sources as they are now, built or not.
pub fn directory() -> Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME") {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base.join("sluice/testbed").join(key(&source())?))
}

/// The command that builds all of them into `into`. Its first run compiles some 600 packages: minutes.
pub fn build(into: &Path) -> Command {
    let mut command = Command::new("go");
    // Without symbols, which would double what is read from the disk at every start; with the version that upstream's
    // own build sets, which clients compare.
    let flags = ["shortStamp", "longStamp"]
        .map(|stamp| format!("-X tailscale.com/version.{stamp}={VERSION}"))
        .join(" ");
    command.args(["build", "-ldflags", &format!("-s -w {flags}"), "-o"]).arg(into);
    command.args(PROGRAMS.map(|(_, package)| package)).current_dir(source());
    command
}

/// The Go module.
fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("control")
}

/// A name for the content of the module: any change to a source or a version makes another.
fn key(module: &Path) -> Result<String> {
    let listing = || fs::read_dir(module)?.collect::<std::io::Result<Vec<_>>>();
    let mut files = listing()
        .with_context(|| format!("list {}", module.display()))?
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension().is_some_and(|kind| ["go", "mod", "sum"].iter().any(|k| kind == *k))
        })
        .collect::<Vec<_>>();
    files.sort();
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let content = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        let name = file.file_name().unwrap_or_default().as_encoded_bytes();
        for part in [name, &content] {
            // Lengths keep `a` + `bc` and `ab` + `c` apart.
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
    }
    Ok(hasher.finalize().to_hex().chars().take(16).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{VERSION, complete, key, source};

    #[test]
    fn the_key_follows_sources_and_versions_and_nothing_else() {
        let directory = std::env::temp_dir().join(format!("programs-key-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
        write("main.go", "package main");
        write("go.mod", "module m");
        let first = key(&directory).unwrap();
        write("notes.txt", "other");
        assert_eq!(key(&directory).unwrap(), first);
        write("go.mod", "module m2");
        let second = key(&directory).unwrap();
        assert_ne!(second, first);
        fs::rename(directory.join("main.go"), directory.join("other.go")).unwrap();
        assert_ne!(key(&directory).unwrap(), second);
        assert!(!complete(&directory));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_module_pins_the_version_that_is_stamped() {
        let module = fs::read_to_string(source().join("go.mod")).unwrap();
        assert!(module.contains(&format!("\ttailscale.com v{VERSION}\n")), "{module}");
    }
}
