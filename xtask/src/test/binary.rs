//! The workspace's test binaries: built by one cargo call, then run by us, here or in an emulated machine.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use proxy_testbed_programs::Programs;
use serde::Deserialize;

use super::{Place, Tally, Tier, bounded};
use crate::{step, testbed, workspace};

/// No test binary may take longer; a hang is a failure with a name.
const LIMIT_SECONDS: u32 = 900;

/// A built test binary.
#[derive(Clone, Debug)]
pub(crate) struct Binary {
    pub(crate) package: String,
    /// The target's name; the same as the package's for unit tests of its library or program.
    pub(crate) name: String,
    pub(crate) tier: Tier,
    /// Whether it runs on this machine's kernel, and on the others.
    pub(crate) place: Place,
    /// What of it runs in a guest without KVM; all of it, if nothing is named.
    pub(crate) quick: &'static [&'static str],
    /// What it starts of the programs that `cargo xtask testbed` builds.
    pub(crate) programs: &'static [Programs],
    pub(crate) executable: PathBuf,
    /// Where cargo would run it.
    pub(crate) directory: PathBuf,
}

/// What a build of the tests leaves.
#[derive(Debug)]
pub(crate) struct Build {
    pub(crate) binaries: Vec<Binary>,
    /// Programs that tests start, by the path that is compiled into them.
    pub(crate) programs: Vec<PathBuf>,
}

/// The part of cargo's messages that we read.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact(Artifact),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Artifact {
    package_id: String,
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all test binaries of the workspace.
pub(crate) fn build() -> Result<Build> {
    let mut command = workspace::cargo("test");
    command.args(["--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let finished = step::must("build the tests", &mut command)?;
    let build = read(&finished.output)?;
    if build.binaries.is_empty() {
        bail!("cargo built no test binary");
    }
    Ok(build)
}

fn read(messages: &str) -> Result<Build> {
    let mut binaries = Vec::new();
    let mut programs = Vec::new();
    let mut unknown = Vec::new();
    let mut integration = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message =
            serde_json::from_str(line).context("cargo printed a message that is not understood")?;
        let artifact = match message {
            Message::CompilerArtifact(artifact) => artifact,
            Message::Other => continue,
        };
        let Some(executable) = artifact.executable else { continue };
        if !artifact.profile.test {
            programs.push(executable);
            continue;
        }
        let package = package_name(&artifact.package_id).to_owned();
        let name = artifact.target.name;
        let is_integration = artifact.target.kind.iter().any(|kind| kind == "test");
        let tier = if is_integration {
            integration.push((package.clone(), name.clone()));
            Tier::of(&package, &name)
        } else {
            Some(Tier::Unit)
        };
        let Some(tier) = tier else {
            unknown.push(format!("{package} {name}"));
            continue;
        };
        binaries.push(Binary {
            tier,
            quick: if is_integration { Tier::quick(&package, &name) } else { &[] },
            programs: if is_integration { Tier::programs(&package, &name) } else { &[] },
            place: if is_integration { Tier::place(&package, &name) } else { Place::Here },
            package,
            name,
            executable,
            directory: artifact.manifest_path.parent().map(Path::to_owned).unwrap_or_default(),
        });
    }
    if !unknown.is_empty() {
        bail!("no tier runs {}: name it in xtask/src/test/tier.rs", unknown.join(", "));
    }
    let stale = Tier::stale(&integration);
    if !stale.is_empty() {
        bail!("xtask/src/test/tier.rs names tests that are gone: {}", stale.join(", "));
    }
    Ok(Build { binaries, programs })
}

/// `path+file:///somewhere/proxy#0.1.0` or `path+file:///somewhere#name@0.1.0` -> the name.
fn package_name(id: &str) -> &str {
    let (path, fragment) = id.rsplit_once('#').unwrap_or((id, ""));
    match fragment.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

impl Binary {
    pub(crate) fn label(&self) -> String {
        if self.name.replace('_', "-") == self.package {
            format!("{} (unit)", self.package)
        } else {
            format!("{} {}", self.package, self.name)
        }
    }

    /// Runs it here; a test that needs programs of the testbed is a failure without them.
    pub(crate) fn run(&self) -> Result<Tally> {
        let label = self.label();
        let mut command = self.command();
        for programs in self.programs {
            match testbed::build(*programs) {
                Ok(directory) => command.env(programs.variable, directory),
                Err(error) => {
                    let mut tally = Tally::default();
                    tally.fail(format!("{label}: {error:#}"));
                    return Ok(tally);
                }
            };
        }
        let finished = step::run(&format!("{} {label}", self.tier), &mut command)?;
        if !finished.success {
            println!("{}", finished.output.trim_end());
        }
        Ok(Tally::of_output(&label, &finished))
    }

    /// How many tests it holds.
    pub(crate) fn count(&self) -> Result<usize> {
        Ok(self.tests(&[])?.len())
    }

    /// The tests whose names contain one of `filter`; all, if it is empty.
    pub(crate) fn tests(&self, filter: &[&str]) -> Result<BTreeSet<String>> {
        let output = self.command().args(["--list", "--format=terse"]).args(filter).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect())
    }

    fn command(&self) -> Command {
        let mut command = bounded(LIMIT_SECONDS, &self.executable);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::{package_name, read};

    #[test]
    fn both_forms_of_a_package_id_name_the_package() {
        assert_eq!(package_name("path+file:///a/proxy#0.1.0"), "proxy");
        assert_eq!(package_name("path+file:///a/rules#proxy-rules@0.1.0"), "proxy-rules");
    }

    #[test]
    fn a_test_that_no_tier_runs_is_an_error() {
        let message = r#"{"reason":"compiler-artifact","package_id":"path+file:///a/proxy#0.1.0",
            "manifest_path":"/a/proxy/Cargo.toml","target":{"name":"stray","kind":["test"]},
            "profile":{"test":true},"executable":"/t/stray"}"#
            .replace('\n', "");
        let error = read(&message).unwrap_err().to_string();
        assert!(error.contains("no tier runs proxy stray"), "{error}");
    }
}
