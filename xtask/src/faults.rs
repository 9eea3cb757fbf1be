//! `faults`: known mistakes, planted in a copy of the kernel programs one at a time. Tests that let one live are too weak.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use comfy_table::{Table, presets::UTF8_HORIZONTAL_ONLY};
use proxy_ebpf_build::{OBJECT_VARIABLE, Toolchain, build_with};

use crate::{step, test::Tally, workspace};

mod catalogue;

use catalogue::{FAULTS, Fault};

/// Plants known mistakes in the kernel programs, one at a time, and expects the tests to find each.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these; all if not given.
    fault: Vec<String>,
    /// Only list them.
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.list {
        for fault in FAULTS {
            println!("{:<24} {}", fault.name, fault.story);
        }
        return Ok(());
    }
    let chosen: Vec<&Fault> = FAULTS
        .iter()
        .filter(|fault| args.fault.is_empty() || args.fault.iter().any(|name| name == fault.name))
        .collect();
    if let Some(unknown) = args.fault.iter().find(|name| FAULTS.iter().all(|f| f.name != **name)) {
        bail!("there is no fault {unknown}; `cargo xtask faults --list` shows them");
    }
    let tally = kill(&chosen)?;
    if tally.failed > 0 {
        bail!("{} of {} faults survived", tally.failed, chosen.len());
    }
    Ok(())
}

/// Plants every fault; a survivor is a failed test.
pub(crate) fn survivors() -> Result<Tally> {
    kill(&FAULTS.iter().collect::<Vec<_>>())
}

/// How many faults there are.
pub(crate) fn count() -> usize {
    FAULTS.len()
}

fn kill(faults: &[&Fault]) -> Result<Tally> {
    let toolchain = Toolchain::find()
        .context("no toolchain can build the kernel programs; run `cargo xtask setup`")?;
    let directory = workspace::target_dir().join("faults");
    let copy = Copy::make(directory.join("source"))?;
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header(["fault", "found by"]);
    let mut tally = Tally::default();
    for fault in faults {
        let planted = copy.plant(fault)?;
        let object = build_with(toolchain.clone(), &copy.root, &directory.join("target"))
            .with_context(|| format!("fault {} does not compile", fault.name))?;
        // A file of its own for each fault: cargo rebuilds what embeds it when the name changes.
        let named = directory.join(format!("{}.o", fault.name));
        fs::copy(&object.path, &named)?;
        planted.undo()?;

        let found = found_by(fault, &named)?;
        if let Some(test) = &found {
            tally.passed += 1;
            table.add_row([fault.name, test]);
        } else {
            tally.fail(format!("fault {} survived: {}", fault.name, fault.story));
            table.add_row([fault.name, "NOTHING"]);
        }
    }
    println!("{table}");
    Ok(tally)
}

/// The first test that fails with this object.
fn found_by(fault: &Fault, object: &Path) -> Result<Option<String>> {
    let tests = |no_run: bool| {
        let mut command = workspace::cargo("test");
        // The whole workspace's features, as in every other build; others would compile all dependencies again.
        command.args(["--workspace", "--no-fail-fast"]);
        command.args(catalogue::TESTS.iter().flat_map(|test| ["--test", test]));
        if no_run {
            command.arg("--no-run");
        }
        command.env(OBJECT_VARIABLE, object);
        command
    };
    step::must(&format!("fault {}: build", fault.name), &mut tests(true))?;
    let finished = step::run_quietly(&mut tests(false))?;
    let mut tally = Tally::of_output("", &finished);
    if finished.success {
        return Ok(None);
    }
    tally.failures.sort();
    let first = tally.failures.first().map_or("", String::as_str);
    Ok(Some(first.trim_start_matches(": ").to_owned()))
}

/// Removes what an earlier copy has left and the checkout no longer holds.
fn sweep(root: &Path, directory: &Path, names: &HashSet<&str>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            sweep(root, &path, names)?;
        } else if !path.strip_prefix(root).is_ok_and(|n| names.contains(&*n.to_string_lossy())) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// A copy of the workspace to plant faults in: the checkout itself is never touched.
struct Copy {
    root: PathBuf,
}

impl Copy {
    fn make(root: PathBuf) -> Result<Self> {
        let output = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(workspace::root())
            .output()
            .context("cannot start `git`")?;
        for name in String::from_utf8_lossy(&output.stdout).split('\0').filter(|n| !n.is_empty()) {
            let (from, to) = (workspace::root().join(name), root.join(name));
            if !from.is_file() {
                continue;
            }
            let content = fs::read(&from)?;
            // Untouched files keep their time, so that cargo does not compile them again.
            if fs::read(&to).is_ok_and(|old| old == content) {
                continue;
            }
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(&to, content)?;
        }
        let names = String::from_utf8_lossy(&output.stdout);
        sweep(&root, &root, &names.split('\0').collect())?;
        Ok(Self { root })
    }

    fn plant(&self, fault: &Fault) -> Result<Planted> {
        let file = self.root.join("proxy-ebpf/src").join(fault.file);
        let original =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let count = original.matches(fault.find).count();
        if count != 1 {
            bail!(
                "fault {}: `{}` is {count} times in proxy-ebpf/src/{}, not once; adjust \
                 xtask/src/faults/catalogue.rs to the source as it is now",
                fault.name,
                fault.find,
                fault.file
            );
        }
        fs::write(&file, original.replacen(fault.find, fault.replace, 1))?;
        Ok(Planted { file, original })
    }
}

struct Planted {
    file: PathBuf,
    original: String,
}

impl Planted {
    fn undo(self) -> Result<()> {
        fs::write(self.file, self.original).context("cannot take the fault out again")
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::{FAULTS, workspace};

    #[test]
    fn every_fault_can_be_planted_in_the_source_as_it_is() {
        for fault in FAULTS {
            let file = workspace::root().join("proxy-ebpf/src").join(fault.file);
            let source = fs::read_to_string(&file).unwrap();
            assert_eq!(source.matches(fault.find).count(), 1, "{}: `{}`", fault.name, fault.find);
            assert_ne!(fault.find, fault.replace, "{}", fault.name);
        }
    }

    #[test]
    fn faults_have_names_of_their_own() {
        let names: BTreeSet<_> = FAULTS.iter().map(|fault| fault.name).collect();
        assert_eq!(names.len(), FAULTS.len());
    }
}
