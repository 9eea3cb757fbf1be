//! Raw bpf(2) map operations: what aya 0.14 lacks, batches above all (include/uapi/linux/bpf.h; kernel 5.6).
//!
//! The one module with map system calls; keys and values are `Pod` types whose sizes [`super::maps`] has compared with
//! the kernel's.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use aya::Pod;

const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const OBJ_GET: libc::c_long = 7;
const MAP_LOOKUP_BATCH: libc::c_long = 24;
const MAP_UPDATE_BATCH: libc::c_long = 26;
const MAP_DELETE_BATCH: libc::c_long = 27;
const LINK_DETACH: libc::c_long = 34;
/// `MEMBARRIER_CMD_GLOBAL` (include/uapi/linux/membarrier.h).
const MEMBARRIER_GLOBAL: libc::c_int = 1;

/// Insert or replace.
pub(super) const ANY: u64 = 0;
/// Insert only.
pub(super) const NO_EXIST: u64 = 1;
/// Replace only.
pub(super) const EXIST: u64 = 2;

#[repr(C)]
#[derive(Default)]
struct ElementAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ObjectAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

#[repr(C)]
struct LinkAttr {
    link_fd: u32,
}

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is one of the structures above, laid out as the kernel's union member for `command`; every pointer
    // in it was made from a live slice or reference of the size that the kernel uses for this map.
    let code = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<T>()) };
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) }
}

/// Detaches a pinned link now (kernel 5.11): unpinning alone does so some time later.
pub(super) fn detach_pinned(pin: &Path) -> io::Result<()> {
    let name = CString::new(pin.as_os_str().as_bytes())?;
    let mut get = ObjectAttr { pathname: name.as_ptr() as u64, ..ObjectAttr::default() };
    let link = bpf(OBJ_GET, &mut get)?;
    // SAFETY: the kernel has just made this descriptor for us.
    let link = unsafe { OwnedFd::from_raw_fd(link as RawFd) };
    bpf(LINK_DETACH, &mut LinkAttr { link_fd: fd(link.as_fd()) }).map(drop)
}

/// Waits until every program that is running has ended: what runs afterwards sees what the maps hold now. Where the call
/// is refused, a program that was running has ended long before anything is read back.
pub(super) fn settle() {
    // SAFETY: the call takes three numbers.
    let _refused = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_GLOBAL, 0, 0) };
}

fn fd(map: BorrowedFd<'_>) -> u32 {
    map.as_raw_fd() as u32
}

fn address<T>(value: &T) -> u64 {
    std::ptr::from_ref(value) as u64
}

/// Reads one element; `values` has one element, or one a possible CPU.
pub(super) fn lookup<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    key: &K,
    values: &mut [V],
) -> io::Result<bool> {
    let value = values.as_mut_ptr() as u64;
    let mut attr =
        ElementAttr { map_fd: fd(map), key: address(key), value, ..ElementAttr::default() };
    match bpf(MAP_LOOKUP_ELEM, &mut attr) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes one element.
pub(super) fn update<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    key: &K,
    value: &V,
    flags: u64,
) -> io::Result<()> {
    let (key, value) = (address(key), address(value));
    bpf(MAP_UPDATE_ELEM, &mut ElementAttr { map_fd: fd(map), pad: 0, key, value, flags }).map(drop)
}

/// Removes one element; one that is not there is removed already.
pub(super) fn delete<K: Pod>(map: BorrowedFd<'_>, key: &K) -> io::Result<()> {
    let mut attr = ElementAttr { map_fd: fd(map), key: address(key), ..ElementAttr::default() };
    match bpf(MAP_DELETE_ELEM, &mut attr) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other.map(drop),
    }
}

/// Whether the kernel has no such batch operation for this map type: EINVAL, or ENOTSUPP, which has no name in libc.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | 524))
}

/// Writes many elements, one by one where the kernel cannot do more.
pub(super) fn update_all<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    keys: &[K],
    values: &[V],
) -> io::Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    let mut attr = BatchAttr {
        keys: keys.as_ptr() as u64,
        values: values.as_ptr() as u64,
        count: keys.len().min(values.len()) as u32,
        map_fd: fd(map),
        ..BatchAttr::default()
    };
    match bpf(MAP_UPDATE_BATCH, &mut attr) {
        Err(error) if is_missing(&error) => {
            keys.iter().zip(values).try_for_each(|(key, value)| update(map, key, value, ANY))
        }
        other => other.map(drop),
    }
}

/// Removes many elements, one by one where the kernel cannot do more or one of them is not there.
pub(super) fn delete_all<K: Pod>(map: BorrowedFd<'_>, keys: &[K]) -> io::Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    let mut attr = BatchAttr {
        keys: keys.as_ptr() as u64,
        count: keys.len() as u32,
        map_fd: fd(map),
        ..BatchAttr::default()
    };
    match bpf(MAP_DELETE_BATCH, &mut attr) {
        Err(error) if is_missing(&error) || error.raw_os_error() == Some(libc::ENOENT) => {
            keys.iter().try_for_each(|key| delete(map, key))
        }
        other => other.map(drop),
    }
}

/// Where a walk through a hash map stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    place: [u64; 8],
    started: bool,
}

/// Reads the next elements of a hash map, up to the size of the buffers. Returns how many, and whether the walk is over.
pub(super) fn walk<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    cursor: &mut Cursor,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<(usize, bool)> {
    let mut next = [0u64; 8];
    let mut attr = BatchAttr {
        in_batch: if cursor.started { address(&cursor.place) } else { 0 },
        out_batch: address(&next),
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: keys.len().min(values.len()) as u32,
        map_fd: fd(map),
        ..BatchAttr::default()
    };
    let result = bpf(MAP_LOOKUP_BATCH, &mut attr);
    let over = match result {
        Ok(_) => false,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
        Err(error) => return Err(error),
    };
    std::mem::swap(&mut cursor.place, &mut next);
    cursor.started = !over;
    Ok((attr.count as usize, over))
}

/// Reads the first `count` elements of a per-CPU array, each summed over `cpus` CPUs.
pub(super) fn per_cpu<V: Pod + Default>(
    map: BorrowedFd<'_>,
    count: usize,
    cpus: usize,
    add: impl Fn(&mut V, &V),
) -> io::Result<Vec<V>> {
    let mut keys = vec![0u32; count];
    let mut values = vec![V::default(); count.saturating_mul(cpus)];
    let mut next = [0u64; 8];
    let mut attr = BatchAttr {
        out_batch: address(&next),
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: count as u32,
        map_fd: fd(map),
        ..BatchAttr::default()
    };
    match bpf(MAP_LOOKUP_BATCH, &mut attr) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
        Err(error) if is_missing(&error) => {
            for (key, values) in (0u32..).zip(values.chunks_mut(cpus)) {
                lookup(map, &key, values)?;
            }
        }
        Err(error) => return Err(error),
    }
    next.fill(0);
    Ok(values
        .chunks(cpus)
        .map(|one| {
            let mut sum = V::default();
            for value in one {
                add(&mut sum, value);
            }
            sum
        })
        .collect())
}
