//! Tests on other kernels: Debian's, booted in an emulated machine with our test binaries and little else.

use accelerator::Accelerator;
use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use image::Image;

use crate::{
    step,
    test::{Binary, Build, Tally},
    workspace,
};

mod accelerator;
mod console;
mod guest;
mod image;
mod report;

/// A kernel that the tests also run on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Version {
    /// Debian 12's own: no tcx, so programs are attached by clsact.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 12's backport.
    #[value(name = "6.12")]
    V6_12,
}

impl Version {
    fn number(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        }
    }
}

fn guests(build: &Build) -> Vec<&Binary> {
    build.binaries.iter().filter(|binary| binary.place.is_guest()).collect()
}

/// Counts what would run on that kernel as skipped.
pub(crate) fn skip(version: Version, build: &Build, why: &str) -> Result<Tally> {
    let mut tally = Tally::default();
    for binary in guests(build) {
        let label = format!("kernel {}: {}", version.number(), binary.label());
        tally.skip(&label, binary.count()?, why);
    }
    Ok(tally)
}

/// As [`run`], one step of many: where that kernel cannot be had (another distribution, no network), its tests are
/// skipped, and a machine that cannot be started is a failure beside the others.
pub(crate) fn run_if_offered(version: Version, build: &Build) -> Result<Tally> {
    let image = match fetch(version) {
        Ok(image) => image,
        Err(error) => return skip(version, build, &format!("{error:#}")),
    };
    Ok(boot(version, build, &image).unwrap_or_else(|error| {
        let mut tally = Tally::default();
        tally.fail(format!("kernel {}: {error:#}", version.number()));
        tally
    }))
}

/// Boots that kernel and runs there the tests that depend on it.
pub(crate) fn run(version: Version, build: &Build) -> Result<Tally> {
    boot(version, build, &fetch(version)?)
}

fn fetch(version: Version) -> Result<Image> {
    let number = version.number();
    let (fetched, image) = step::call(&format!("kernel {number}: fetch"), || image::fetch(number));
    image.context(fetched.output)
}

fn boot(version: Version, build: &Build, image: &Image) -> Result<Tally> {
    let number = version.number();
    let binaries = guests(build);
    if binaries.is_empty() {
        bail!("no test is meant for other kernels; see xtask/src/test/tier.rs");
    }
    println!("kernel {number}: {}", image.release);
    let accelerator = Accelerator::find(image);

    let directory = workspace::target_dir().join("guest").join(number);
    let (packed, archive) = step::call(&format!("kernel {number}: pack"), || {
        guest::pack(&directory, image, &accelerator, &binaries, &build.programs)
    });
    let archive = archive.context(packed.output)?;

    console::run(number, &accelerator, image, &archive, &binaries)
}
