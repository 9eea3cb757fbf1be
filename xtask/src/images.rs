//! `images`: the container images of the operator and of the proxy, without Docker and without a base image.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use proxy_testbed_programs::TAILNET;

use crate::{
    setup::{self, Purpose},
    step, testbed, workspace,
};

mod stage;

/// Builds the container images of the operator and the proxy: their programs, the libraries that these are linked with,
/// certificates, and nothing else.
///
/// buildah makes OCI archives of them, which `podman load`, `skopeo copy` and `ctr images import` read. `tailscaled` and
/// `tailscale` are built from their published module.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these; both if not given.
    #[arg(value_enum)]
    only: Vec<Image>,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Put programs in that are built for development: quick to build, large and slow.
    #[arg(long)]
    development: bool,
    /// Where the archives go [default: target/images].
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// The images' tag.
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
}

/// An image.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Image {
    /// The operator, which runs as an ordinary user.
    Operator,
    /// The proxy, with tailscaled.
    Proxy,
}

impl Image {
    fn name(self) -> &'static str {
        match self {
            Self::Operator => "sluice-operator",
            Self::Proxy => "sluice-proxy",
        }
    }

    fn containerfile(self) -> PathBuf {
        let name = match self {
            Self::Operator => "operator",
            Self::Proxy => "proxy",
        };
        workspace::root().join(format!("deploy/images/{name}.Containerfile"))
    }

    /// The package and the program of ours that is in it.
    fn own(self) -> (&'static str, &'static str) {
        match self {
            Self::Operator => ("operator", "sluice-operator"),
            Self::Proxy => ("proxy", "sluice-proxy"),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let images = if args.only.is_empty() { Image::value_variants() } else { args.only.as_slice() };
    let output = args.output.clone().unwrap_or_else(|| workspace::target_dir().join("images"));
    if !args.dry_run {
        setup::ensure(&[Purpose::Build, Purpose::Images])?;
    }
    for image in images {
        make(*image, args, &output)?;
    }
    Ok(())
}

fn make(image: Image, args: &Args, output: &Path) -> Result<()> {
    let (package, program) = image.own();
    let mut build = workspace::cargo("build");
    build.args(["--package", package, "--bin", program]);
    let profile = if args.development { "debug" } else { "release" };
    if !args.development {
        build.arg("--release");
    }
    perform(args, &format!("build {program} ({profile})"), &mut build)?;

    let mut programs = vec![(workspace::target_dir().join(profile).join(program), "usr/local/bin")];
    if image == Image::Proxy {
        for (path, to) in others(args)? {
            programs.push((path, to));
        }
    }
    let root = output.join(image.name());
    if args.dry_run {
        for (path, to) in &programs {
            println!("would put {} and its libraries into {}/{to}", path.display(), root.display());
        }
    } else {
        stage::root(&root, &programs)?;
        stage::try_out(&root, &format!("/usr/local/bin/{program}"))?;
    }

    let tagged = format!("{}:{}", image.name(), args.tag);
    let mut bud = buildah(output);
    bud.args(["bud", "--isolation", "chroot", "--timestamp", "0", "--tag", &tagged, "--file"]);
    bud.arg(image.containerfile()).arg(&root);
    perform(args, &format!("make the image {tagged}"), &mut bud)?;
    let archive = output.join(format!("{}.tar", image.name()));
    if !args.dry_run && archive.exists() {
        fs::remove_file(&archive).with_context(|| format!("replace {}", archive.display()))?;
    }
    let mut push = buildah(output);
    push.args(["push", &tagged]).arg(format!("oci-archive:{}:{tagged}", archive.display()));
    perform(args, &format!("write {}", archive.display()), &mut push)?;
    if !args.dry_run {
        // The archive has it all.
        fs::remove_dir_all(output.join("storage")).context("remove buildah's storage")?;
        let bytes = fs::metadata(&archive)?.len();
        println!("{tagged} is in {} ({} MB)", archive.display(), bytes / 1_000_000);
    }
    Ok(())
}

/// What the proxy starts: tailscaled and its client, and nft where there is no eBPF.
fn others(args: &Args) -> Result<Vec<(PathBuf, &'static str)>> {
    let directory = if args.dry_run {
        println!(
            "would build the {}'s programs from their modules, unless they are there",
            TAILNET.name
        );
        TAILNET.directory()?
    } else {
        testbed::build(TAILNET)?
    };
    let Some(nft) = workspace::find_program("nft") else {
        bail!("nft is not installed: `cargo xtask setup` installs it");
    };
    let upstream = ["tailscaled", "tailscale"].map(|name| (directory.join(name), "usr/local/bin"));
    Ok(upstream.into_iter().chain([(nft, "usr/sbin")]).collect())
}

/// Storage of its own, beside what it makes: nothing of the machine's is touched.
fn buildah(output: &Path) -> Command {
    let mut command = Command::new("buildah");
    command.args(["--storage-driver", "vfs"]);
    command.arg("--root").arg(output.join("storage"));
    command.arg("--runroot").arg(output.join("run"));
    command
}

fn perform(args: &Args, name: &str, command: &mut Command) -> Result<()> {
    if args.dry_run {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        println!("would run {}", words.join(" "));
        return Ok(());
    }
    step::must(name, command).map(drop)
}
