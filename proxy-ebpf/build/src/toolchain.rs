//! The two ways to compile for BPF, and why one cannot be taken.

use std::{
    env, fmt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use thiserror::Error;

use crate::target_triple;

/// A compiler that can build the kernel programs, with the linker that makes one object of them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Toolchain {
    /// rustup's nightly, which compiles `core` itself (`-Z build-std`).
    Rustup {
        /// What `rustc --version` says.
        version: String,
        /// bpf-linker.
        linker: PathBuf,
    },
    /// A distribution's compiler that comes with `core` already compiled for BPF, as Debian's does.
    Prebuilt {
        /// The compiler.
        rustc: PathBuf,
        /// What `rustc --version` says.
        version: String,
        /// bpf-linker.
        linker: PathBuf,
    },
}

/// Why no toolchain can be used; each part is `None` when that part is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Missing {
    /// What rustup's way lacks.
    pub rustup: Option<RustupMissing>,
    /// What the distribution's way lacks.
    pub prebuilt: Option<PrebuiltMissing>,
    /// What both ways lack.
    pub linker: Option<LinkerMissing>,
}

/// Why rustup's nightly cannot be used.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum RustupMissing {
    /// There is no rustup.
    #[error("rustup is not installed")]
    Rustup,
    /// rustup has no nightly toolchain.
    #[error("rustup has no nightly toolchain (`rustup toolchain install nightly`)")]
    Nightly,
    /// The nightly toolchain has no library sources to compile `core` from.
    #[error("the nightly toolchain has no rust-src (`rustup +nightly component add rust-src`)")]
    Source,
}

/// Why the distribution's compiler cannot be used.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum PrebuiltMissing {
    /// There is no compiler outside of rustup.
    #[error("there is no /usr/bin/rustc")]
    Rustc,
    /// The compiler has no `core` for BPF.
    #[error("/usr/bin/rustc has no core for BPF (Debian: package libstd-rust-web-dev-bpf)")]
    Core,
}

/// Why nothing can be linked.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum LinkerMissing {
    /// There is no bpf-linker.
    #[error("bpf-linker is not installed (`cargo install bpf-linker`)")]
    NotFound,
}

impl Toolchain {
    /// Finds a toolchain; rustup's first, because it is what most developers have and keep current.
    pub fn find() -> Result<Self, Missing> {
        let (rustup, prebuilt) = (rustup_version(), prebuilt_version());
        match (find_linker(), rustup, prebuilt) {
            (Some(linker), Ok(version), _) => Ok(Self::Rustup { version, linker }),
            (Some(linker), Err(_), Ok(version)) => {
                Ok(Self::Prebuilt { rustc: PREBUILT_RUSTC.into(), version, linker })
            }
            (linker, rustup, prebuilt) => Err(Missing {
                rustup: rustup.err(),
                prebuilt: prebuilt.err(),
                linker: linker.is_none().then_some(LinkerMissing::NotFound),
            }),
        }
    }

    pub(crate) fn linker(&self) -> &Path {
        match self {
            Self::Rustup { linker, .. } | Self::Prebuilt { linker, .. } => linker,
        }
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rustup { version, .. } => write!(formatter, "rustup nightly ({version})"),
            Self::Prebuilt { rustc, version, .. } => {
                write!(formatter, "{} with prebuilt core ({version})", rustc.display())
            }
        }
    }
}

impl std::error::Error for Missing {}

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rustup, self.prebuilt) {
            (Some(rustup), Some(prebuilt)) => write!(formatter, "{rustup}, and {prebuilt}")?,
            // One compiler is there, so only the linker can be what is missing.
            _ => write!(formatter, "a compiler is there")?,
        }
        match self.linker {
            Some(linker) => write!(formatter, ", and {linker}"),
            None => Ok(()),
        }
    }
}

/// Where distributions put their compiler; rustup's shims never live there.
const PREBUILT_RUSTC: &str = "/usr/bin/rustc";

fn rustup_version() -> Result<String, RustupMissing> {
    if find_program("rustup").is_none() {
        return Err(RustupMissing::Rustup);
    }
    let nightly = |argument: &[&str]| {
        let mut command = Command::new("rustup");
        command.args(["run", "nightly", "rustc"]).args(argument);
        answer(command)
    };
    let sysroot = nightly(&["--print", "sysroot"]).ok_or(RustupMissing::Nightly)?;
    if !Path::new(&sysroot).join("lib/rustlib/src/rust/library/core").is_dir() {
        return Err(RustupMissing::Source);
    }
    nightly(&["--version"]).ok_or(RustupMissing::Nightly)
}

fn prebuilt_version() -> Result<String, PrebuiltMissing> {
    let ask = |argument: &[&str]| {
        let mut command = Command::new(PREBUILT_RUSTC);
        command.args(argument);
        answer(command)
    };
    let libraries = ask(&["--print", "target-libdir", "--target", target_triple()])
        .ok_or(PrebuiltMissing::Rustc)?;
    let has_core = std::fs::read_dir(libraries).is_ok_and(|mut entries| {
        entries.any(|entry| {
            entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("libcore-"))
        })
    });
    if !has_core {
        return Err(PrebuiltMissing::Core);
    }
    ask(&["--version"]).ok_or(PrebuiltMissing::Rustc)
}

/// The command's standard output, trimmed, if it succeeds.
fn answer(mut command: Command) -> Option<String> {
    crate::environment::clean(&mut command);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
    Some(text.trim().to_owned())
}

fn find_linker() -> Option<PathBuf> {
    // cargo installs it there, and a build started by an editor or a service often lacks that directory in its path.
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    find_program("bpf-linker").or_else(|| {
        home.map(|home| home.join("bin/bpf-linker")).filter(|program| program.is_file())
    })
}

fn find_program(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::{LinkerMissing, Missing, PrebuiltMissing, RustupMissing};

    #[test]
    fn what_is_missing_names_both_ways_and_the_linker() {
        let missing = Missing {
            rustup: Some(RustupMissing::Source),
            prebuilt: Some(PrebuiltMissing::Core),
            linker: Some(LinkerMissing::NotFound),
        };
        let text = missing.to_string();
        for part in ["rust-src", "libstd-rust-web-dev-bpf", "bpf-linker"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn only_the_linker_is_named_when_a_compiler_is_there() {
        let missing = Missing {
            rustup: Some(RustupMissing::Rustup),
            prebuilt: None,
            linker: Some(LinkerMissing::NotFound),
        };
        let text = missing.to_string();
        assert!(text.contains("bpf-linker") && !text.contains("rustup is not"), "{text}");
    }
}
