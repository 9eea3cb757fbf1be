//! A bpffs of a test's own, where pins outlive the process that made them.

use std::{os::unix::fs::PermissionsExt as _, path::Path};

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// A mounted bpffs; unmounted, with every pin, when this is dropped.
#[derive(Debug)]
pub struct Bpffs(tempfile::TempDir);

impl Bpffs {
    /// Mounts one in a directory that anybody may enter.
    pub fn new(flags: MsFlags) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))?;
        mount(Some("bpf"), directory.path(), Some("bpf"), flags, None::<&str>)
            .with_context(|| format!("mount a bpffs at {}", directory.path().display()))?;
        Ok(Self(directory))
    }

    /// Where.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}
