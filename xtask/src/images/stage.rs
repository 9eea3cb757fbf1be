//! The files of an image.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{step, workspace};

/// What programs trust, from this machine.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// For programs that want to know who they are, and where names are looked up.
const FILES: [(&str, &str); 3] = [
    ("etc/passwd", "root:x:0:0::/:/nonexistent\nsluice:x:65532:65532::/:/nonexistent\n"),
    ("etc/group", "root:x:0:\nsluice:x:65532:\n"),
    ("etc/nsswitch.conf", "hosts: files dns\n"),
];

/// Makes a root file system of programs, each with its directory there.
pub(super) fn root(root: &Path, programs: &[(PathBuf, &str)]) -> Result<()> {
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| format!("replace {}", root.display()))?;
    }
    let mut libraries = BTreeSet::new();
    for (program, directory) in programs {
        let name = program.file_name().context("a program without a name")?;
        copy(program, &root.join(directory).join(name))?;
        libraries.extend(linked(program)?);
    }
    for library in libraries {
        // At the same path: that is where the loader looks.
        copy(&library, &root.join(library.strip_prefix("/")?))?;
    }
    copy(Path::new(CERTIFICATES), &root.join(CERTIFICATES.trim_start_matches('/')))
        .context("install the package ca-certificates")?;
    for (path, content) in FILES {
        let path = root.join(path);
        fs::create_dir_all(path.parent().context("a file without a directory")?)?;
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
    }
    for directory in ["run", "tmp", "var/lib/tailscale"] {
        fs::create_dir_all(root.join(directory))?;
    }
    // For every user, but nobody removes another's.
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    // Where pods have their service account's token.
    symlink("/run", root.join("var/run"))?;
    Ok(())
}

/// Starts a program with nothing but these files, where that is allowed: a library that is missing is found now.
pub(super) fn try_out(root: &Path, program: &str) -> Result<()> {
    if !is_root() {
        println!("not tried: only root may start {program} with nothing but the image's files");
        return Ok(());
    }
    let chroot = workspace::find_program("chroot").context("chroot comes with coreutils")?;
    let mut command = Command::new(chroot);
    command.arg(root).args([program, "--version"]).env_clear();
    step::must(&format!("start {program} from the image's files"), &mut command).map(drop)
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file without a directory")?)?;
    fs::copy(from, to)
        .with_context(|| format!("copy {} to {}", from.display(), to.display()))
        .map(drop)
}

/// The libraries that a program is linked with, as the loader finds them here.
fn linked(program: &Path) -> Result<Vec<PathBuf>> {
    let output =
        Command::new("ldd").arg(program).output().context("ldd comes with the C library")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    if text.contains("statically linked") || said.contains("not a dynamic executable") {
        return Ok(Vec::new());
    }
    if !output.status.success() || text.contains("not found") {
        bail!("{}: a library is missing: {text}{said}", program.display());
    }
    Ok(paths(&text))
}

/// `name => /path (address)` and `/path (address)`; the kernel's own has no path.
fn paths(ldd: &str) -> Vec<PathBuf> {
    let lines = ldd.lines().filter_map(|line| {
        let path = line.split_once("=>").map_or(line, |(_, path)| path);
        path.split_whitespace().next()
    });
    lines.filter(|path| path.starts_with('/')).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::paths;

    #[test]
    fn libraries_are_found_where_the_loader_finds_them() {
        let said = "\tlinux-vdso.so.1 (0x00007f19d0f2a000)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f19cdc1e000)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f19d0f2c000)\n";
        let found = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(paths(said), found.map(PathBuf::from));
        assert!(paths("").is_empty());
    }
}
