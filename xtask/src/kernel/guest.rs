//! The file system of the emulated machine: a shell, the tools that the tests call, modules, and the test binaries at
//! the paths they have here, so that paths compiled into them hold there.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{
    accelerator::Accelerator,
    image::{Image, succeed},
};
use crate::{
    test::Binary,
    workspace::{find_program, root},
};

/// What the tests and the data paths call.
const TOOLS: [&str; 7] = ["ip", "tc", "nft", "conntrack", "ethtool", "sysctl", "wg"];

/// Modules by the start of their names; what they depend on comes along.
const MODULES: [&str; 10] = [
    "act_bpf",
    "act_gact",
    "cls_bpf",
    "nf_",
    "nfnetlink",
    "nft_",
    "sch_ingress",
    "tun",
    "veth",
    "wireguard",
];

/// Read by tools to name what they print.
const FILES: [&str; 2] = ["/etc/protocols", "/etc/services"];

/// Packs an initramfs and returns its path.
pub(crate) fn pack(
    directory: &Path,
    image: &Image,
    accelerator: &Accelerator,
    binaries: &[&Binary],
    programs: &[PathBuf],
) -> Result<PathBuf> {
    let tree = Tree { root: directory.join("root") };
    if tree.root.exists() {
        fs::remove_dir_all(&tree.root)?;
    }
    for name in [
        "proc", "sys", "dev", "tmp", "run", "var", "etc", "bin", "sbin", "usr/sbin", "busybox",
        "root",
    ] {
        fs::create_dir_all(tree.root.join(name))?;
    }
    symlink("/run", tree.root.join("var/run"))?;

    let busybox = find_program("busybox").context("busybox is not installed (busybox-static)")?;
    fs::copy(busybox, tree.root.join("bin/busybox"))?;
    // The kernel loads modules on demand by this path.
    symlink("/bin/busybox", tree.root.join("sbin/modprobe"))?;
    for tool in TOOLS {
        let path = find_program(tool).with_context(|| format!("{tool} is not installed"))?;
        tree.add_program(&path, &Path::new("/bin").join(tool))?;
    }
    for file in FILES.map(Path::new).into_iter().filter(|file| file.is_file()) {
        tree.copy(file, file)?;
    }
    let modules = tree.add_modules(image)?;

    let packages: BTreeSet<&Path> =
        binaries.iter().map(|binary| binary.directory.as_path()).collect();
    for package in packages {
        tree.add_data(package)?;
    }
    for program in programs {
        tree.add_program(program, program)?;
    }
    for binary in binaries {
        tree.add_program(&binary.executable, &binary.executable)?;
    }

    let init = tree.root.join("init");
    fs::write(&init, script(accelerator, &modules, binaries))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    tree.archive(&directory.join("initramfs"))
}

struct Tree {
    root: PathBuf,
}

impl Tree {
    fn place(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        let place = self.place(to);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(from, &place).with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(())
    }

    /// A program without its debug information, and the libraries that it loads.
    fn add_program(&self, from: &Path, to: &Path) -> Result<()> {
        self.copy(from, to)?;
        succeed(Command::new("strip").arg("--strip-debug").arg(self.place(to)))?;
        let output = Command::new("ldd").arg(from).output().context("cannot start `ldd`")?;
        // "libc.so.6 => /lib/libc.so.6 (0x..)" and "/lib64/ld-linux-x86-64.so.2 (0x..)"
        for word in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            let library = Path::new(word);
            if library.is_absolute() && !self.place(library).exists() {
                self.copy(library, library)?;
            }
        }
        Ok(())
    }

    /// The modules that the tests may use; their names, to be loaded.
    fn add_modules(&self, image: &Image) -> Result<Vec<String>> {
        let from = image.modules();
        let to = Path::new("/lib/modules").join(&image.release);
        for entry in fs::read_dir(&from)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with("modules.") {
                self.copy(&path, &to.join(name))?;
            }
        }
        let mut names = Vec::new();
        let dependencies = fs::read_to_string(from.join("modules.dep"))?;
        for line in dependencies.lines() {
            let Some((module, needs)) = line.split_once(':') else { continue };
            let name = Path::new(module).file_stem().and_then(|stem| stem.to_str());
            let Some(name) = name.filter(|name| MODULES.iter().any(|m| name.starts_with(m))) else {
                continue;
            };
            names.push(name.to_owned());
            for file in needs.split_whitespace().chain([module]) {
                if !self.place(&to.join(file)).exists() {
                    self.copy(&from.join(file), &to.join(file))?;
                }
            }
        }
        Ok(names)
    }

    /// What the tests of a package read at run time: its tracked files other than sources.
    fn add_data(&self, package: &Path) -> Result<()> {
        let output = Command::new("git")
            .args(["ls-files", "-z", "--full-name", "--"])
            .arg(package)
            .current_dir(root())
            .output()
            .context("cannot start `git`")?;
        for name in String::from_utf8_lossy(&output.stdout).split('\0').filter(|n| !n.is_empty()) {
            let path = root().join(name);
            let source = path.extension().is_some_and(|extension| extension == "rs");
            if !source && path.is_file() {
                self.copy(&path, &path)?;
            }
        }
        fs::create_dir_all(self.place(package))?;
        Ok(())
    }

    fn archive(&self, to: &Path) -> Result<PathBuf> {
        let script = r#"find . -print0 | cpio --null --create --format=newc --quiet > "$1""#;
        succeed(Command::new("sh").args(["-euc", script, "sh"]).arg(to).current_dir(&self.root))?;
        Ok(to.to_owned())
    }
}

/// The first process: mounts, says how slow the machine is, loads modules, runs each test between two marks, powers off.
fn script(accelerator: &Accelerator, modules: &[String], binaries: &[&Binary]) -> String {
    let slow = accelerator.slowness();
    let modules = modules.join(" ");
    let mut script = format!(
        "#!/bin/busybox sh
/bin/busybox --install -s /busybox
export PATH=/bin:/sbin:/busybox HOME=/tmp SLUICE_SLOW={slow}
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t bpf bpf /sys/fs/bpf
mkdir -p /run/netns /dev/net
ln -sf /proc/self/fd /dev/fd
modprobe -a {modules} 2>/dev/null
ip link set lo up
echo \"::boot $(uname -r) has booted in $(cut -d' ' -f1 /proc/uptime) s\"
"
    );
    for (index, binary) in binaries.iter().enumerate() {
        script.push_str(&format_test(index, accelerator, binary));
    }
    script.push_str("echo '::done'\npoweroff -f\n");
    script
}

/// Killed, not asked to end: a test may be anywhere, and nothing is to be tidied up.
fn format_test(index: usize, accelerator: &Accelerator, binary: &Binary) -> String {
    let limit = accelerator.limit_seconds();
    let names = accelerator.filter(binary).join(" ");
    let directory = binary.directory.display();
    let executable = binary.executable.display();
    format!(
        "echo '::begin {index}'
cd {directory}; CARGO_MANIFEST_DIR={directory} timeout -s KILL {limit} {executable} {names} 2>&1
echo \"::end {index} $?\"
"
    )
}
