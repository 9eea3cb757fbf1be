//! The TUN driver's device node, made where it is missing, and why there is none.

use std::{
    fmt, io,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use caps::{CapSet, Capability};
use nix::{
    errno::Errno,
    sys::stat::{Mode, SFlag, makedev, mknod},
};

/// The driver's device number (Documentation/admin-guide/devices.txt).
const MAJOR: u64 = 10;
const MINOR: u64 = 200;

/// No TUN device can be had; user-space networking needs none.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}; or set TS_USERSPACE to true", path.display())]
pub struct TunUnavailable {
    /// The device node.
    pub path: PathBuf,
    /// Why.
    pub why: Why,
    /// What the kernel said, if it said anything.
    #[source]
    pub source: Option<io::Error>,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is missing, and this process may not make it.
    CannotMake,
    /// The container's device rules deny it (a device cgroup without `c 10:200 rwm`).
    Denied,
    /// It is there and its permissions keep this process out.
    Forbidden,
    /// The kernel has no TUN driver.
    NoDriver,
    /// Something else has its name.
    NotADevice,
    /// This process may not make network devices.
    NoNetAdmin,
    /// Something else.
    Other,
}

impl Why {
    /// As a condition's reason or a metric's label has it.
    pub fn label(self) -> &'static str {
        match self {
            Self::CannotMake => "CannotMake",
            Self::Denied => "Denied",
            Self::Forbidden => "Forbidden",
            Self::NoDriver => "NoDriver",
            Self::NotADevice => "NotADevice",
            Self::NoNetAdmin => "NoNetAdmin",
            Self::Other => "Other",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::CannotMake => {
                "is missing and cannot be made: add the capability MKNOD, or mount the device into the pod"
            }
            Self::Denied => {
                "the container's device rules deny the TUN driver: allow device 10:200 (a device plugin, or the runtime's \
                 configuration)"
            }
            Self::Forbidden => "may not be opened: run as its owner, or give it mode 0666",
            Self::NoDriver => "the kernel has no TUN driver: load the module `tun` on the node",
            Self::NotADevice => "is not the TUN driver's device: remove what has its name",
            Self::NoNetAdmin => "is no use without the capability NET_ADMIN: add it",
            Self::Other => "cannot be opened",
        })
    }
}

/// Makes `dev/net/tun` below `root` where it is missing, and finds out whether it can be used.
pub fn ensure(root: &Path) -> Result<PathBuf, TunUnavailable> {
    let path = root.join("dev/net/tun");
    match check(&path) {
        Ok(()) => Ok(path),
        Err((why, source)) => Err(TunUnavailable { path, why, source }),
    }
}

fn check(path: &Path) -> Result<(), (Why, Option<io::Error>)> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_char_device() => {}
        Ok(_) => return Err((Why::NotADevice, None)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(path)?,
        Err(error) => return Err((Why::Other, Some(error))),
    }
    let opened = std::fs::File::options().read(true).write(true).open(path);
    opened.map_err(|error| (why(&error), Some(error)))?;
    // Opening it is free; what makes a device of it is not.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_NET_ADMIN).unwrap_or(false) {
        Ok(())
    } else {
        Err((Why::NoNetAdmin, None))
    }
}

fn make(path: &Path) -> Result<(), (Why, Option<io::Error>)> {
    let cannot = |error| (Why::CannotMake, Some(error));
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(cannot)?;
    }
    let (mode, device) = (Mode::S_IRUSR | Mode::S_IWUSR, makedev(MAJOR, MINOR));
    match mknod(path, SFlag::S_IFCHR, mode, device) {
        // Somebody else may have made it meanwhile.
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        // With the capability, only the device rules can forbid it.
        Err(Errno::EPERM)
            if caps::has_cap(None, CapSet::Effective, Capability::CAP_MKNOD).unwrap_or(false) =>
        {
            Err((Why::Denied, Some(Errno::EPERM.into())))
        }
        Err(error) => Err(cannot(error.into())),
    }
}

/// Why the driver's device cannot be opened: EPERM is what the device rules answer, EACCES the node's permissions or a mount
/// without devices.
fn why(error: &io::Error) -> Why {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM) => Why::Denied,
        Some(Errno::EACCES) => Why::Forbidden,
        Some(Errno::ENODEV | Errno::ENXIO | Errno::ENOENT) => Why::NoDriver,
        _ => Why::Other,
    }
}
