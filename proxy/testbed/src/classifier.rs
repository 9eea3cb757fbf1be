//! Somebody else's TC program on a device: it counts packets and lets every one through.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
};

use anyhow::{Context as _, Result};

use crate::Namespace;

// Commands of bpf(2), and what they take (include/uapi/linux/bpf.h).
const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP: libc::c_long = 1;
const PROGRAM_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_ARRAY: u32 = 2;
const PROGRAM_SCHED_CLS: u32 = 3;
const TCX_INGRESS: u32 = 46;

/// Where among a device's programs (`BPF_F_BEFORE`, `BPF_F_AFTER`, relative to all of them).
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Before the others.
    First = 1 << 3,
    /// After the others.
    Last = 1 << 4,
}

/// A counting program on a device's ingress, by tcx (kernel 6.6); it goes when this value goes.
#[derive(Debug)]
pub struct Classifier {
    counter: OwnedFd,
    _link: OwnedFd,
}

impl Classifier {
    /// Attaches a new program.
    pub fn attach(namespace: &Namespace, device: &str, place: Place) -> Result<Self> {
        let counter =
            descriptor(MAP_CREATE, &mut Map { kind: MAP_ARRAY, key: 4, value: 8, entries: 1 })
                .context("make the map of a counting program")?;
        let program = load(&counter).context("load a counting program")?;
        let index = namespace
            .enter(|| nix::net::if_::if_nametoindex(device))
            .with_context(|| format!("device {device}"))?;
        let mut attr = Link {
            program: program.as_raw_fd() as u32,
            target: index,
            kind: TCX_INGRESS,
            flags: place as u32,
            relative: [0; 4],
        };
        let link = namespace
            .enter(|| descriptor(LINK_CREATE, &mut attr))
            .with_context(|| format!("attach a counting program to {device} by tcx"))?;
        Ok(Self { counter, _link: link })
    }

    /// Packets that have come to it.
    pub fn packets(&self) -> Result<u64> {
        let (key, mut value) = (0_u32, 0_u64);
        let mut attr = Element {
            map: self.counter.as_raw_fd() as u32,
            pad: 0,
            key: &raw const key as u64,
            value: &raw mut value as u64,
            flags: 0,
        };
        bpf(MAP_LOOKUP, &mut attr).context("read the map of a counting program")?;
        Ok(value)
    }
}

fn load(counter: &OwnedFd) -> io::Result<OwnedFd> {
    let map = counter.as_raw_fd() as u32;
    // From the low end: operation, registers, offset, 32 bits of immediate value.
    let code: [u64; 6] = [
        // r1 = the address of the counter: two instructions, the first holds the map's descriptor.
        (u64::from(map) << 32) | 0x2118,
        0,
        // r2 = 1; atomically *r1 += r2
        (1 << 32) | 0x02b7,
        0x21db,
        // r0 = TCX_NEXT: whoever is next decides.
        (0xffff_ffff << 32) | 0x00b7,
        0x0095,
    ];
    let mut attr = Program {
        kind: PROGRAM_SCHED_CLS,
        count: code.len() as u32,
        code: code.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log: [0; 2],
    };
    descriptor(PROGRAM_LOAD, &mut attr)
}

#[repr(C)]
struct Map {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
}

#[repr(C)]
struct Program {
    kind: u32,
    count: u32,
    code: u64,
    license: u64,
    log: [u64; 2],
}

#[repr(C)]
struct Link {
    program: u32,
    target: u32,
    kind: u32,
    flags: u32,
    relative: [u32; 4],
}

#[repr(C)]
struct Element {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is one of the structures above, laid out as the kernel's union member for `command`; every pointer
    // in it was made from a live value of the size that the kernel uses.
    let code = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<T>()) };
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) }
}

fn descriptor<T>(command: libc::c_long, attr: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attr)? as RawFd;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
