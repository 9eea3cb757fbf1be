//! The Go programs of tests: where they are, and how they are built. Used by `cargo xtask`, which builds them, and by the
//! testbed, which starts them, so that both mean the same ones.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

/// Programs that are built and kept together: those of one Go module.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Programs {
    /// What they are for.
    pub name: &'static str,
    /// Names the directory of programs that are already built; the cache is not looked at then.
    pub variable: &'static str,
    /// What is built: file name and Go package.
    pub programs: &'static [(&'static str, &'static str)],
    /// The module's directory, beside this package.
    module: &'static str,
    /// Go's variables that upstream's own build sets to the version.
    stamps: &'static [&'static str],
    /// The version, as the module's `go.mod` pins it.
    version: &'static str,
    /// The module that has the version.
    upstream: &'static str,
}

/// Those of the test tailnet. The first is ours, the others are pinned by its `go.mod`.
pub const TAILNET: Programs = Programs {
    name: "test tailnet",
    variable: "SLUICE_TAILNET_PROGRAMS",
    programs: &[
        ("control", "."),
        ("tailscaled", "tailscale.com/cmd/tailscaled"),
        ("tailscale", "tailscale.com/cmd/tailscale"),
        ("containerboot", "tailscale.com/cmd/containerboot"),
        ("pebble", "github.com/letsencrypt/pebble/v2/cmd/pebble"),
    ],
    module: "control",
    // Clients compare them.
    stamps: &["tailscale.com/version.shortStamp", "tailscale.com/version.longStamp"],
    version: "1.102.5",
    upstream: "tailscale.com",
};

/// Those of a real Kubernetes. A module of its own: a change of the control server does not build them again.
pub const KUBERNETES: Programs = Programs {
    name: "test Kubernetes",
    variable: "SLUICE_KUBERNETES_PROGRAMS",
    programs: &[("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver")],
    module: "kubernetes",
    // Without it the server calls itself v0.0.0, which clients and its own feature gates look at.
    stamps: &["k8s.io/component-base/version.gitVersion"],
    version: "v1.34.4",
    upstream: "k8s.io/kubernetes",
};

/// What renders the chart. It comes from the Go module proxy as the others do: no download of a release is trusted.
pub const HELM: Programs = Programs {
    name: "chart",
    variable: "SLUICE_HELM_PROGRAMS",
    programs: &[("helm", "helm.sh/helm/v3/cmd/helm")],
    module: "helm",
    stamps: &["helm.sh/helm/v3/internal/version.version"],
    version: "v3.22.0",
    upstream: "helm.sh/helm/v3",
};

/// Upstream's operator, for comparison: a benchmark's, not a test's.
pub const UPSTREAM: Programs = Programs {
    name: "upstream's operator",
    variable: "SLUICE_UPSTREAM_PROGRAMS",
    programs: &[("k8s-operator", "tailscale.com/cmd/k8s-operator")],
    module: "upstream",
    stamps: &["tailscale.com/version.shortStamp", "tailscale.com/version.longStamp"],
    version: "1.102.5",
    upstream: "tailscale.com",
};

impl Programs {
    /// The directory of the programs, which must be there.
    pub fn find(&self) -> Result<PathBuf> {
        if let Some(directory) = env::var_os(self.variable) {
            let directory = PathBuf::from(directory);
            if !self.complete(&directory) {
                let (variable, shown) = (self.variable, directory.display());
                bail!("{variable}={shown}: not all of {:?} are there", self.programs);
            }
            return Ok(directory);
        }
        let directory = self.directory()?;
        if !self.complete(&directory) {
            bail!(
                "the {}'s programs are not built ({} is missing): run `cargo xtask testbed`",
                self.name,
                directory.display()
            );
        }
        Ok(directory)
    }

    /// Whether all programs are in the directory.
    pub fn complete(&self, directory: &Path) -> bool {
        self.programs.iter().all(|(name, _)| directory.join(name).is_file())
    }

    /// Where the cache keeps the programs of the sources as they are now, built or not.
    pub fn directory(&self) -> Result<PathBuf> {
        let base = match env::var_os("XDG_CACHE_HOME") {
            Some(directory) => PathBuf::from(directory),
            None => PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(".cache"),
        };
        Ok(base.join("sluice/testbed").join(key(&self.source())?))
    }

    /// The command that builds all of them into `into`. Its first run compiles hundreds of packages: minutes.
    pub fn build(&self, into: &Path) -> Command {
        let mut command = Command::new("go");
        // Without symbols, which would double what is read from the disk at every start.
        let stamps = self.stamps.iter().map(|stamp| format!("-X {stamp}={}", self.version));
        let flags = stamps.fold("-s -w".to_owned(), |flags, stamp| flags + " " + &stamp);
        command.args(["build", "-ldflags", &flags, "-o"]).arg(into);
        command.args(self.programs.iter().map(|(_, package)| package)).current_dir(self.source());
        command
    }

    /// The Go module.
    fn source(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(self.module)
    }
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

    use super::{HELM, KUBERNETES, TAILNET, key};

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
        assert!(!TAILNET.complete(&directory));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn each_module_pins_the_version_that_is_stamped() {
        for programs in [TAILNET, KUBERNETES, HELM] {
            let module = fs::read_to_string(programs.source().join("go.mod")).unwrap();
            let version = programs.version.trim_start_matches('v');
            let pin = format!("{} v{version}", programs.upstream);
            // A module that is there for its programs alone is marked as indirect.
            let is_pin = |line: &str| line.split(" //").next().map(str::trim) == Some(&*pin);
            assert!(module.lines().any(is_pin), "{pin}: {module}");
        }
    }
}
