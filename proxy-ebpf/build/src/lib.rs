//! Builds the kernel programs: called by `proxy/build.rs` and by `cargo xtask build-ebpf`, so that both build the same
//! object in the same way.
//!
//! `aya-build` always asks rustup for a nightly toolchain and for `rust-src`; machines that have only Debian's prebuilt
//! `core` for the BPF targets would be refused, hence this crate.

use std::{
    env, io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use thiserror::Error;

mod environment;
mod toolchain;

pub use toolchain::{LinkerMissing, Missing, PrebuiltMissing, RustupMissing, Toolchain};

/// Names an object that is already built; nothing is compiled then. For packagers, and for tests of altered programs.
pub const OBJECT_VARIABLE: &str = "SLUICE_EBPF_OBJECT";

/// The package that holds the kernel programs, and the name of the file it builds.
const PACKAGE: &str = "proxy-ebpf";

/// A built object file.
#[derive(Clone, Debug)]
pub struct Object {
    /// Where it is.
    pub path: PathBuf,
    /// What built it; `None` when [`OBJECT_VARIABLE`] named it.
    pub toolchain: Option<Toolchain>,
}

/// Why there is no object.
#[derive(Debug, Error)]
pub enum BuildError {
    /// No toolchain on this machine can build for BPF.
    #[error("no toolchain can build the kernel programs: {0}; run `cargo xtask setup`")]
    NoToolchain(#[from] Missing),
    /// The named object is not there.
    #[error("{OBJECT_VARIABLE} names {}, which is not a file", .0.display())]
    NoSuchObject(PathBuf),
    /// The compiler could not be started.
    #[error("cannot start `{command}`")]
    Start {
        /// The program that was to run.
        command: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The compiler ran and refused.
    #[error("building the kernel programs with {toolchain} ended with {status}:\n{output}")]
    Compile {
        /// What was building.
        toolchain: Box<Toolchain>,
        /// How it ended.
        status: ExitStatus,
        /// What it wrote to its standard error.
        output: String,
    },
    /// The compiler said that all was well and wrote nothing.
    #[error("{} was not written by the build", .0.display())]
    NoOutput(PathBuf),
}

/// Builds the kernel programs of `workspace`; `out_dir` becomes a cargo target directory of their own, since the outer
/// cargo holds the lock of its one.
pub fn build(workspace: &Path, out_dir: &Path) -> Result<Object, BuildError> {
    if let Some(path) = env::var_os(OBJECT_VARIABLE).map(PathBuf::from) {
        return if path.is_file() {
            Ok(Object { path, toolchain: None })
        } else {
            Err(BuildError::NoSuchObject(path))
        };
    }
    build_with(Toolchain::find()?, workspace, out_dir)
}

/// As [`build`], with a toolchain already found and whatever [`OBJECT_VARIABLE`] says.
pub fn build_with(
    toolchain: Toolchain,
    workspace: &Path,
    out_dir: &Path,
) -> Result<Object, BuildError> {
    let target = target_triple();
    let mut command = cargo(&toolchain, "build");
    command.current_dir(workspace);
    command.args(["--package", PACKAGE, "--release", "--target", target, "--target-dir"]);
    command.arg(out_dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());

    let output = command.output().map_err(|source| BuildError::Start {
        command: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    if !output.status.success() {
        return Err(BuildError::Compile {
            toolchain: Box::new(toolchain),
            status: output.status,
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    let path = out_dir.join(target).join("release").join(PACKAGE);
    if !path.is_file() {
        return Err(BuildError::NoOutput(path));
    }
    Ok(Object { path, toolchain: Some(toolchain) })
}

/// `cargo <subcommand>` set up for the BPF target with `toolchain`; the caller adds package, target and directories.
/// `cargo xtask check` type-checks the kernel programs through it.
pub fn cargo(toolchain: &Toolchain, subcommand: &str) -> Command {
    let mut command = match toolchain {
        Toolchain::Rustup { .. } => {
            let mut command = Command::new("rustup");
            command.args(["run", "nightly", "cargo", subcommand, "-Z", "build-std=core"]);
            command
        }
        Toolchain::Prebuilt { .. } => {
            // Any cargo will do: it is `RUSTC` that compiles. Inside a build script or `cargo run` this is the outer one.
            let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            command.arg(subcommand);
            command
        }
    };
    environment::clean(&mut command);
    if let Toolchain::Prebuilt { rustc, .. } = toolchain {
        // The BPF targets are tier 3 and aya-ebpf uses unstable features; Debian's compiler is a stable release.
        command.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
    }
    command.env("CARGO_ENCODED_RUSTFLAGS", rustflags(toolchain.linker()));
    command
}

/// The BPF target of the machine's byte order.
pub const fn target_triple() -> &'static str {
    if cfg!(target_endian = "big") { "bpfeb-unknown-none" } else { "bpfel-unknown-none" }
}

/// What `proxy/build.rs` must print so that cargo runs it again when, and only when, an input of the object changed.
pub fn rerun_directives(workspace: &Path) -> String {
    let variables = [OBJECT_VARIABLE, "PATH", "CARGO_HOME"]
        .map(|variable| format!("cargo::rerun-if-env-changed={variable}"));
    let inputs = [
        "Cargo.lock",
        "Cargo.toml",
        "proxy-ebpf/Cargo.toml",
        "proxy-ebpf/src",
        "proxy-ebpf/common/Cargo.toml",
        "proxy-ebpf/common/src",
    ]
    .map(|input| format!("cargo::rerun-if-changed={}", workspace.join(input).display()));
    [variables.join("\n"), inputs.join("\n")].join("\n")
}

fn rustflags(linker: &Path) -> String {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_else(|_| env::consts::ARCH.to_owned());
    [
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        // Else every copy and every clearing, however small, becomes a call that moves single bytes: slow, and refused by
        // the verifier without CAP_PERFMON, since one instruction then works on pointers of several kinds.
        "-Clink-arg=--disable-expand-memcpy-in-order".to_owned(),
        format!("-Clinker={}", linker.display()),
    ]
    .join("\x1f")
}
