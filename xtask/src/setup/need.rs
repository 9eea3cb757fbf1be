//! The list of what a machine needs, how each is found and where it comes from.

use std::process::{Command, Stdio};

use proxy_ebpf_build::{Missing, Toolchain};

use super::Purpose::{self, Bench, Build, Demo, Images, Kernel, Test};
use crate::workspace::find_program;

/// Something a machine must have.
pub(super) struct Need {
    pub(super) name: &'static str,
    pub(super) why: &'static str,
    pub(super) purposes: &'static [Purpose],
    /// What was found, to be shown.
    pub(super) find: fn() -> Option<String>,
    pub(super) install: fn() -> Install,
}

/// How something that is missing is got.
pub(super) enum Install {
    /// By the distribution's packages of these names.
    Packages(Vec<&'static str>),
    /// By a command, for which these packages must be there.
    Program { packages: Vec<&'static str>, command: Command },
}

/// The LLVM that Debian's BPF-capable compiler is built with; bpf-linker must read its bitcode.
const LLVM_PREFIX: &str = "/usr/lib/llvm-22";

macro_rules! package {
    ($name:literal, $program:literal, $purposes:expr, $why:literal) => {
        Need {
            name: $program,
            why: $why,
            purposes: &$purposes,
            find: || find_program($program).map(|path| path.display().to_string()),
            install: || Install::Packages(vec![$name]),
        }
    };
}

pub(super) const NEEDS: &[Need] = &[
    package!("gcc", "cc", [Build], "links everything"),
    Need {
        name: "BPF compiler",
        why: "compiles the kernel programs",
        purposes: &[Build],
        find: bpf_compiler,
        install: || {
            if debian_has("libstd-rust-web-dev-bpf") {
                Install::Packages(vec!["rustc-web", "libstd-rust-web-dev-bpf"])
            } else {
                let mut command = Command::new("rustup");
                command.args(["toolchain", "install", "nightly"]);
                command.args(["--profile", "minimal", "--component", "rust-src"]);
                Install::Program { packages: vec![], command }
            }
        },
    },
    Need {
        name: "bpf-linker",
        why: "links the kernel programs",
        purposes: &[Build],
        find: || match Toolchain::find() {
            Err(Missing { linker: Some(_), .. }) => None,
            _ => Some("installed".to_owned()),
        },
        install: || {
            let mut command = cargo_install("bpf-linker", "0.13");
            if !debian_has("libstd-rust-web-dev-bpf") {
                return Install::Program { packages: vec![], command };
            }
            command.args(["--no-default-features", "--features", "llvm-22"]);
            command.env("LLVM_PREFIX", LLVM_PREFIX);
            Install::Program { packages: vec!["llvm-22-dev"], command }
        },
    },
    package!("nftables", "nft", [Demo, Test, Bench, Images], "the nftables data path"),
    package!("buildah", "buildah", [Images], "makes images without a daemon"),
    package!("iproute2", "ip", [Demo, Test, Bench], "namespaces, links and routes"),
    package!("ethtool", "ethtool", [Demo, Test, Bench], "offloads of test devices"),
    package!("procps", "sysctl", [Test], "settings of test namespaces"),
    package!("conntrack", "conntrack", [Test, Bench], "looks at the kernel's flows in tests"),
    package!("etcd-server", "etcd", [Test], "keeps what the API server of tests is told"),
    package!("iperf3", "iperf3", [Bench], "TCP streams in benchmarks"),
    package!("iptables", "iptables", [Bench], "the rules that upstream uses, to compare with"),
    Need {
        name: "cargo-deny",
        why: "checks licences and duplicates of dependencies",
        purposes: &[Test],
        find: || version(Command::new("cargo-deny").arg("--version")),
        install: || Install::Program {
            packages: vec![],
            command: cargo_install("cargo-deny", "0.18"),
        },
    },
    package!("qemu-system-x86", "qemu-system-x86_64", [Kernel], "runs other kernels"),
    package!("busybox-static", "busybox", [Kernel], "the shell of the emulated machine"),
    package!("cpio", "cpio", [Kernel], "packs the emulated machine's files"),
    package!("kmod", "modprobe", [Kernel], "finds the modules that a module needs"),
    package!("xz-utils", "xz", [Kernel], "unpacks a kernel's modules"),
    package!("wireguard-tools", "wg", [Kernel], "sets up WireGuard in the emulated machine"),
    package!("binutils", "strip", [Kernel], "makes the emulated machine's files small"),
];

fn bpf_compiler() -> Option<String> {
    match Toolchain::find() {
        Ok(toolchain) => Some(toolchain.to_string()),
        // One of the two compilers is there and only the linker is not.
        Err(missing) if missing.rustup.is_none() => Some("rustup nightly".to_owned()),
        Err(missing) if missing.prebuilt.is_none() => Some("/usr/bin/rustc".to_owned()),
        Err(_) => None,
    }
}

/// `cargo install`, with the newest version that starts with `version`.
fn cargo_install(package: &str, version: &str) -> Command {
    let mut command = Command::new("cargo");
    command.args(["install", "--locked", package, "--version", &format!("^{version}")]);
    // The search path's cargo may be rustup's shim, for which the checkout chooses the toolchain; ours is inherited.
    command
}

/// Whether this is a Debian whose repositories (as of the last update) know the package, or one that has never updated.
fn debian_has(package: &str) -> bool {
    let Some(program) = find_program("apt-cache") else { return false };
    let known = |package: &str| {
        Command::new(&program)
            .args(["show", "--quiet=0", package])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    // Without lists nothing is known, not even what every release has.
    known(package) || !known("libc6-dev")
}

fn version(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
    Some(text.lines().next()?.trim().to_owned())
}
