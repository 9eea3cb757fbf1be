//! Tests on other kernels: Debian's, booted in an emulated machine with our test binaries and little else.

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::{
    step,
    test::{Binary, Build, Tally},
    workspace,
};

mod console;
mod guest;
mod image;

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

/// Boots that kernel and runs there the tests that depend on it.
pub(crate) fn run(version: Version, build: &Build) -> Result<Tally> {
    let number = version.number();
    let binaries: Vec<&Binary> = build.binaries.iter().filter(|binary| binary.guest).collect();
    if binaries.is_empty() {
        bail!("no test is meant for other kernels; see xtask/src/test/tier.rs");
    }
    let (fetched, image) = step::call(&format!("kernel {number}: fetch"), || image::fetch(number));
    let image = image.context(fetched.output)?;
    println!("kernel {number}: {}", image.release);

    let directory = workspace::target_dir().join("guest").join(number);
    let (packed, archive) = step::call(&format!("kernel {number}: pack"), || {
        guest::pack(&directory, &image, &binaries, &build.programs)
    });
    let archive = archive.context(packed.output)?;

    let finished =
        step::run(&format!("kernel {number}: tests"), &mut console::machine(&image, &archive))?;
    let tally = console::read(number, &binaries, &finished.output);
    if tally.failed > 0 {
        println!("{}", finished.output.trim_end());
    }
    Ok(tally)
}
