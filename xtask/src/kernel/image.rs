//! Debian's kernel packages, unpacked into a cache. Nothing is installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::workspace;

/// An unpacked kernel.
pub(crate) struct Image {
    /// As `uname -r` says.
    pub(crate) release: String,
    root: PathBuf,
}

impl Image {
    fn new(cache: &Path, package: &str) -> Self {
        Self { release: package.trim_start_matches(PREFIX).to_owned(), root: cache.join(package) }
    }

    fn is_complete(&self) -> bool {
        self.modules().join("modules.dep").is_file()
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.root.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The directory that holds `modules.dep`.
    pub(crate) fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }
}

/// The newest kernel whose version starts with `number`, from the cache or from Debian.
pub(crate) fn fetch(number: &str) -> Result<Image> {
    let cache = workspace::cache_dir("kernels")?;
    let first = match offered(&cache, number) {
        Ok(image) => return Ok(image),
        Err(error) => error,
    };
    // Package lists may be missing, or so old that what they name is gone.
    let updated = succeed(Command::new("apt-get").arg("update"));
    if let Ok(image) = updated.and_then(|()| offered(&cache, number)) {
        return Ok(image);
    }
    // Without a network, what was fetched before serves.
    match newest_cached(&cache, number) {
        Some(package) => Ok(Image::new(&cache, &package)),
        None => Err(first.context(format!(
            "no kernel {number}: apt offers none, also after `apt-get update`, and none is in {}",
            cache.display()
        ))),
    }
}

/// The newest that apt offers, fetched if it is not in the cache.
fn offered(cache: &Path, number: &str) -> Result<Image> {
    let package = newest_offered(number)?.with_context(|| {
        format!("`apt-cache search` finds no {PREFIX}{number}.*{SUFFIX}: enable Debian 12's suites, with backports")
    })?;
    let image = Image::new(cache, &package);
    if !image.is_complete() {
        download(cache, &package, &image)?;
    }
    Ok(image)
}

const PREFIX: &str = "linux-image-";
/// The kernels for virtual machines: a quarter of the size, with all that we need.
const SUFFIX: &str = "-cloud-amd64";

fn newest_offered(number: &str) -> Result<Option<String>> {
    let output = Command::new("apt-cache")
        .args([
            "search",
            "--names-only",
            &format!(r"^{PREFIX}{}\.[0-9].*{SUFFIX}$", escaped(number)),
        ])
        .output()
        .context("cannot start `apt-cache`; other kernels are tested on Debian only")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .max_by_key(|name| numbers(name))
        .map(ToOwned::to_owned))
}

fn newest_cached(cache: &Path, number: &str) -> Option<String> {
    let prefix = format!("{PREFIX}{number}.");
    fs::read_dir(cache)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(&prefix) && name.ends_with(SUFFIX))
        .max_by_key(|name| numbers(name))
}

fn escaped(number: &str) -> String {
    number.replace('.', r"\.")
}

/// The numbers in a package's name, which order as versions do.
fn numbers(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

fn download(cache: &Path, package: &str, image: &Image) -> Result<()> {
    // Unpacked beside its place and moved there when whole: an interrupted run leaves nothing that looks complete.
    let partial = cache.join(format!("{package}.partial"));
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    succeed(Command::new("apt-get").args(["download", package]).current_dir(&partial))?;
    let archive = fs::read_dir(&partial)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("`apt-get download` left no package behind")?;
    let root = partial.join("root");
    succeed(Command::new("dpkg").arg("-x").args([&archive, &root]))?;
    // Compressed modules need a decompressor in the guest; the archive is not compressed either.
    succeed(Command::new("find").arg(&root).args([
        "-name",
        "*.ko.xz",
        "-exec",
        "xz",
        "--decompress",
        "{}",
        "+",
    ]))?;
    let depmod = workspace::find_program("depmod").context("depmod is not installed (kmod)")?;
    succeed(Command::new(depmod).arg("-b").arg(&root).arg(&image.release))?;
    if image.root.exists() {
        fs::remove_dir_all(&image.root)?;
    }
    fs::rename(&root, &image.root)?;
    fs::remove_dir_all(&partial)?;
    Ok(())
}

/// Runs a short command; what it said is the error.
pub(super) fn succeed(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start `{program}`"))?;
    if !output.status.success() {
        bail!(
            "`{program}` ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn package_names_order_as_versions_do() {
        let older = numbers("linux-image-6.12.9+deb12-cloud-amd64");
        let newer = numbers("linux-image-6.12.111+deb12-cloud-amd64");
        assert!(older < newer);
    }
}
