//! The object: opened, its maps sized or taken over, its programs verified.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfLoader, VerifierLogLevel, include_bytes_aligned,
    programs::{Program, ProgramError},
};
use caps::{CapSet, Capability};
use proxy_ebpf_common::{LAYOUT_VERSION, name};

use super::{image::MapImage, maps::Maps};
use crate::data_path::Unsupported;

static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/proxy-ebpf"));

/// `BPF_FS_MAGIC` (include/uapi/linux/magic.h).
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Maps that live on when the process ends.
const PINNED: &[&str] = &[
    name::GLOBALS,
    name::LINKS,
    name::ADDRESSES,
    name::ROUTES,
    name::PORTS,
    name::RANGES,
    name::SOURCES,
    name::LOOKUP,
    name::TARGETS,
    name::PROTECTED,
    name::LOCAL,
    name::RESERVED,
    name::FLOWS_V4,
    name::FLOWS_V6,
    name::FRAGMENTS,
    name::COUNTERS,
    name::DROPS,
    name::SERIES,
];

/// How many elements each map must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Of each family.
    pub(super) flows: u32,
    pub(super) addresses: u32,
    pub(super) routes: u32,
    pub(super) ports: u32,
    pub(super) ranges: u32,
    pub(super) sources: u32,
    pub(super) lookup: u32,
    pub(super) targets: u32,
    pub(super) protected: u32,
    pub(super) counters: u32,
}

/// The least that a map holds: a thousand published ports fit without replacing maps. 0.1 MB a CPU, nearly all of it counters.
const LEAST: usize = 2048;

/// Lookup tables are long and their elements short: 64 KiB.
const LEAST_LOOKUP: u32 = 16_384;

fn room(count: usize) -> u32 {
    count.saturating_mul(2).next_power_of_two().clamp(LEAST, 1 << 24) as u32
}

impl Capacity {
    /// For an image, with room to grow: both the old and the new contents are held while a change is installed.
    pub fn of(image: &MapImage, sizes: (u32, u32, u32), max_flows: u32) -> Self {
        let (targets, lookup, counters) = sizes;
        Self {
            flows: max_flows.saturating_mul(2).max(16),
            addresses: room(image.addresses.len()),
            routes: room(image.routes.len()),
            ports: room(image.ports.len()),
            ranges: room(image.ranges.len()),
            sources: room(image.sources.len()),
            lookup: room(lookup as usize).max(LEAST_LOOKUP),
            targets: room(targets as usize),
            protected: room(image.protected.len()),
            counters: room(counters as usize),
        }
    }

    /// What the maps that are there hold.
    pub fn held(maps: &Maps) -> Self {
        Self {
            flows: maps.flows.capacity(),
            addresses: maps.addresses.capacity(),
            routes: maps.routes.capacity(),
            ports: maps.ports.capacity(),
            ranges: maps.ranges.capacity(),
            sources: maps.sources.capacity(),
            lookup: maps.lookup.capacity(),
            targets: maps.targets.capacity(),
            protected: maps.protected.capacity(),
            counters: maps.counters.capacity(),
        }
    }

    fn list(self) -> [(&'static str, u32); 11] {
        [
            (name::FLOWS_V4, self.flows),
            (name::FLOWS_V6, self.flows),
            (name::ADDRESSES, self.addresses),
            (name::ROUTES, self.routes),
            (name::PORTS, self.ports),
            (name::RANGES, self.ranges),
            (name::SOURCES, self.sources),
            (name::LOOKUP, self.lookup),
            (name::TARGETS, self.targets),
            (name::PROTECTED, self.protected),
            (name::COUNTERS, self.counters),
        ]
    }

    /// Whether an image fits: flows exactly, the rest without counting the room to grow.
    pub fn fits(self, image: &MapImage, sizes: (u32, u32, u32), max_flows: u32) -> bool {
        let (targets, lookup, counters) = sizes;
        let holds =
            |capacity: u32, count: usize| capacity as usize >= count.saturating_add(count / 4);
        self.flows == max_flows.saturating_mul(2).max(16)
            && holds(self.addresses, image.addresses.len())
            && holds(self.routes, image.routes.len())
            && holds(self.ports, image.ports.len())
            && holds(self.ranges, image.ranges.len())
            && holds(self.sources, image.sources.len())
            && self.lookup >= lookup
            && self.targets >= targets
            && holds(self.protected, image.protected.len())
            && self.counters >= counters
    }
}

/// A loaded object.
#[derive(Debug)]
pub struct Object {
    pub(super) ebpf: Ebpf,
    pub(super) maps: Maps,
}

/// What one program costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramCost {
    /// Its name.
    pub name: String,
    /// Instructions that the verifier walked.
    pub verified: u32,
    /// Bytes of translated code.
    pub translated: u32,
    /// Bytes of machine code.
    pub jited: u32,
}

/// Whether the programs were built into this binary.
pub fn is_built_in() -> bool {
    !OBJECT.is_empty()
}

fn refused(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Unsupported {
    Unsupported::Kernel { what: what.to_owned(), source: Box::new(error) }
}

/// Opens the object and creates its maps, or takes over those that are pinned in `pins`.
pub fn open(capacity: Capacity, pins: Option<&Path>) -> Result<Object, Unsupported> {
    if !is_built_in() {
        return Err(Unsupported::BuiltWithout);
    }
    let mut loader = EbpfLoader::new();
    loader.verifier_log_level(VerifierLogLevel::STATS);
    for (name, entries) in capacity.list() {
        loader.map_max_entries(name, entries);
    }
    if let Some(pins) = pins {
        for name in PINNED {
            loader.map_pin_path(name, pins.join(name));
        }
    }
    let mut ebpf = loader.load(OBJECT).map_err(|error| refused("the eBPF maps", error))?;
    let maps = Maps::take(&mut ebpf).map_err(|error| refused("the eBPF maps", error))?;
    Ok(Object { ebpf, maps })
}

fn chain_has_errno(error: &(dyn std::error::Error + 'static), errno: i32) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.raw_os_error() == Some(errno))
}

/// Pins the maps of an object that was opened without pins, so that they live on when the process ends.
pub(super) fn pin_maps(object: &mut Object, pins: &Path) -> Result<(), String> {
    object.maps.pin(pins).map_err(|error| format!("{}: {error}", pins.display()))?;
    let fragments = object.ebpf.map_mut(name::FRAGMENTS).ok_or("the object has no fragment map")?;
    let pinned = fragments.pin(pins.join(name::FRAGMENTS));
    pinned.map_err(|error| format!("{}: {error}", pins.display()))
}

/// Loads one program if it is not loaded yet.
pub fn load(ebpf: &mut Ebpf, name: &str) -> Result<(), Unsupported> {
    let what = || format!("the eBPF program {name}");
    let program = ebpf
        .program_mut(name)
        .ok_or_else(|| refused(&what(), io::Error::other("it is not in the object")))?;
    let refused_load = |error: ProgramError| {
        let denied = chain_has_errno(&error, libc::EACCES);
        // Without it the verifier forbids some of what compilers do with pointers (Spectre), and answers EACCES.
        if denied
            && !caps::has_cap(None, CapSet::Effective, Capability::CAP_PERFMON).unwrap_or(true)
        {
            return Unsupported::Capability("CAP_PERFMON");
        }
        refused(&what(), error)
    };
    let loaded = match program {
        Program::SchedClassifier(program) => {
            program.fd().is_ok() || program.load().map(|()| true).map_err(refused_load)?
        }
        Program::Xdp(program) => {
            program.fd().is_ok() || program.load().map(|()| true).map_err(refused_load)?
        }
        _ => false,
    };
    if loaded { Ok(()) } else { Err(refused(&what(), io::Error::other("it is of another type"))) }
}

/// Loads every program of an object of its own and reports what each costs.
pub fn costs() -> Result<Vec<ProgramCost>, Unsupported> {
    let mut object = open(Capacity::of(&MapImage::default(), (1, 1, 1), 1024), None)?;
    let mut names: Vec<String> = object.ebpf.programs().map(|(name, _)| name.to_owned()).collect();
    names.sort();
    names
        .into_iter()
        .map(|name| {
            load(&mut object.ebpf, &name)?;
            let info = object
                .ebpf
                .program(&name)
                .ok_or(Unsupported::BuiltWithout)?
                .info()
                .map_err(|error| refused("program information", error))?;
            Ok(ProgramCost {
                verified: info.verified_instruction_count().unwrap_or_default(),
                translated: info.size_translated().unwrap_or_default(),
                jited: info.size_jitted(),
                name,
            })
        })
        .collect()
}

/// The directory for this namespace's pins, made if need be. `Err` says why nothing can be pinned.
pub fn pin_directory(bpffs: &Path) -> Result<PathBuf, String> {
    if let (Err(nix::errno::Errno::ENOENT), Some(parent)) =
        (nix::sys::statfs::statfs(bpffs), bpffs.parent())
        && nix::sys::statfs::statfs(parent).is_ok_and(|stat| is_bpffs(&stat))
    {
        // A directory on a bpffs that is not there yet, or that went with an earlier run.
        let _shown_below = fs::create_dir(bpffs);
    }
    let stat = nix::sys::statfs::statfs(bpffs)
        .map_err(|error| format!("{}: {error}: mount a bpffs there (type bpf)", bpffs.display()))?;
    if !is_bpffs(&stat) {
        return Err(format!("{} is not a bpffs: mount one there (type bpf)", bpffs.display()));
    }
    let ours = namespace_directory(bpffs).map_err(|error| error.to_string())?;
    let current = ours.join(format!("v{LAYOUT_VERSION}"));
    fs::create_dir_all(&current).map_err(|error| format!("{}: {error}", current.display()))?;
    let others = fs::read_dir(&ours).map_err(|error| error.to_string())?;
    for other in others.flatten().map(|entry| entry.path()).filter(|path| *path != current) {
        tracing::warn!(path = %other.display(), "maps of another layout are left behind: their flows and counters start anew");
        remove_directory(&other);
    }
    Ok(current)
}

fn is_bpffs(stat: &nix::sys::statfs::Statfs) -> bool {
    stat.filesystem_type().0 == BPF_FS_MAGIC
}

/// The directory for this network namespace, whatever the layout.
pub fn namespace_directory(bpffs: &Path) -> io::Result<PathBuf> {
    Ok(bpffs.join("sluice").join(namespace_name()?))
}

/// A name for this thread's network namespace. Its cookie belongs to no other until the machine starts anew, as pins do; the
/// number of its file is given to another as soon as it is gone, which would then find the pins of the dead one.
fn namespace_name() -> io::Result<String> {
    use std::os::unix::fs::MetadataExt as _;
    match namespace_cookie() {
        Ok(cookie) => Ok(format!("netns-{cookie}")),
        // Before 5.14.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            Ok(fs::metadata("/proc/thread-self/ns/net")?.ino().to_string())
        }
        Err(error) => Err(error),
    }
}

/// `SO_NETNS_COOKIE` (socket(7)); no crate of ours has it.
fn namespace_cookie() -> io::Result<u64> {
    use std::os::fd::AsRawFd as _;
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    let (mut cookie, mut length) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: both pointers are to values of the lengths that are given, and live until the call returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// Whether a process has left links of this network namespace: programs that are attached.
pub fn has_links(bpffs: &Path) -> bool {
    let ours = namespace_directory(bpffs).and_then(fs::read_dir);
    let layouts = ours.into_iter().flatten().flatten();
    let pins = layouts.flat_map(|layout| fs::read_dir(layout.path())).flatten().flatten();
    pins.map(|pin| pin.file_name()).any(|name| {
        let name = name.to_string_lossy();
        name.starts_with("tc-") || name.starts_with("xdp-")
    })
}

/// Removes pins and the directory that holds them.
pub fn remove_directory(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let path = entry.path();
        let removed = if path.is_dir() {
            remove_directory(&path);
            Ok(())
        } else {
            fs::remove_file(&path)
        };
        if let Err(error) = removed {
            tracing::warn!(%error, path = %path.display(), "a pin could not be removed");
        }
    }
    if let Err(error) = fs::remove_dir(path) {
        tracing::debug!(%error, path = %path.display(), "a pin directory could not be removed");
    }
}
