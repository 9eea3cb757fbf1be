//! The maps of a loaded object, typed.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use aya::{
    Ebpf, Pod,
    maps::{Map, MapData},
};
use proxy_ebpf_common::{
    Address, AddressKey, AddressPrefix, Counter, Globals, Link, PortKey, PortPrefix, RuleEntry,
    SourcePrefix, Target, name,
};

use super::{flow_table::FlowTable, sys};

/// A longest-prefix key as the kernel lays it out.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Lpm<K> {
    /// Bits that count.
    pub len: u32,
    /// The rest of the key.
    pub data: K,
}

// SAFETY: packed, and both parts are plain data.
unsafe impl<K: Pod> Pod for Lpm<K> {}

/// One map.
#[derive(Debug)]
pub struct Table<K, V> {
    data: MapData,
    marker: PhantomData<(K, V)>,
}

impl<K: Pod, V: Pod> Table<K, V> {
    pub(super) fn take(object: &mut Ebpf, name: &'static str) -> io::Result<Self> {
        let missing = || io::Error::other(format!("the object has no map {name}"));
        let map = object.take_map(name).ok_or_else(missing)?;
        let (Map::Array(data)
        | Map::HashMap(data)
        | Map::LpmTrie(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)) = map
        else {
            return Err(io::Error::other(format!("map {name} is of another type")));
        };
        let info = data.info().map_err(io::Error::other)?;
        if info.key_size() as usize != size_of::<K>()
            || info.value_size() as usize != size_of::<V>()
        {
            return Err(io::Error::other(format!("map {name} has another layout")));
        }
        Ok(Self { data, marker: PhantomData })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.data.fd().as_fd()
    }

    pub(super) fn pin(&self, pins: &Path, name: &str) -> io::Result<()> {
        self.data.pin(pins.join(name)).map_err(io::Error::other)
    }

    /// How many elements fit.
    pub fn capacity(&self) -> u32 {
        self.data.info().map_or(0, |info| info.max_entries())
    }

    /// Reads one element.
    pub fn get(&self, key: &K) -> io::Result<Option<V>>
    where
        V: Default,
    {
        let mut value = [V::default()];
        let found = sys::lookup(self.fd(), key, &mut value)?;
        Ok(found.then(|| value.into_iter().next()).flatten())
    }

    /// Writes one element.
    pub fn set(&self, key: &K, value: &V) -> io::Result<()> {
        sys::update(self.fd(), key, value, sys::ANY)
    }

    /// Inserts one element; `false` if the key is taken.
    pub fn insert_new(&self, key: &K, value: &V) -> io::Result<bool> {
        match sys::update(self.fd(), key, value, sys::NO_EXIST) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Replaces one element; `false` if there is none.
    pub fn replace(&self, key: &K, value: &V) -> io::Result<bool> {
        match sys::update(self.fd(), key, value, sys::EXIST) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes one element.
    pub fn remove(&self, key: &K) -> io::Result<()> {
        sys::delete(self.fd(), key)
    }

    /// Writes many elements.
    pub fn set_all(&self, keys: &[K], values: &[V]) -> io::Result<()> {
        sys::update_all(self.fd(), keys, values)
    }

    /// Removes many elements.
    pub fn remove_all(&self, keys: &[K]) -> io::Result<()> {
        sys::delete_all(self.fd(), keys)
    }

    /// Walks through a hash map; `each` sees every element that is there all the while.
    pub fn walk(&self, mut each: impl FnMut(&K, &V)) -> io::Result<()>
    where
        K: Default,
        V: Default,
    {
        let mut keys = vec![K::default(); WALK];
        let mut values = vec![V::default(); WALK];
        let mut cursor = sys::Cursor::default();
        loop {
            let (count, over) = sys::walk(self.fd(), &mut cursor, &mut keys, &mut values)?;
            keys.iter().zip(&values).take(count).for_each(|(key, value)| each(key, value));
            if over {
                return Ok(());
            }
        }
    }
}

/// Elements a system call; a hash bucket must fit (the kernel answers ENOSPC otherwise).
pub(super) const WALK: usize = 4096;

/// Every map that the user side touches.
#[derive(Debug)]
pub struct Maps {
    pub globals: Table<u32, Globals>,
    pub links: Table<u32, Link>,
    pub addresses: Table<AddressKey, u32>,
    pub routes: Table<Lpm<AddressPrefix>, u32>,
    pub ports: Table<PortKey, RuleEntry>,
    pub ranges: Table<Lpm<PortPrefix>, RuleEntry>,
    pub sources: Table<Lpm<SourcePrefix>, RuleEntry>,
    pub lookup: Table<u32, u32>,
    pub targets: Table<u32, Target>,
    pub protected: Table<Lpm<AddressPrefix>, u32>,
    pub local: Table<Address, u32>,
    pub reserved: Table<u32, u64>,
    pub flows: FlowTable,
    pub counters: Table<u32, Counter>,
    pub drops: Table<u32, u64>,
    pub series: Table<u64, u32>,
}

impl Maps {
    pub(super) fn take(object: &mut Ebpf) -> io::Result<Self> {
        Ok(Self {
            globals: Table::take(object, name::GLOBALS)?,
            links: Table::take(object, name::LINKS)?,
            addresses: Table::take(object, name::ADDRESSES)?,
            routes: Table::take(object, name::ROUTES)?,
            ports: Table::take(object, name::PORTS)?,
            ranges: Table::take(object, name::RANGES)?,
            sources: Table::take(object, name::SOURCES)?,
            lookup: Table::take(object, name::LOOKUP)?,
            targets: Table::take(object, name::TARGETS)?,
            protected: Table::take(object, name::PROTECTED)?,
            local: Table::take(object, name::LOCAL)?,
            reserved: Table::take(object, name::RESERVED)?,
            flows: FlowTable::take(object)?,
            counters: Table::take(object, name::COUNTERS)?,
            drops: Table::take(object, name::DROPS)?,
            series: Table::take(object, name::SERIES)?,
        })
    }
}

impl Maps {
    /// Pins every map by its name.
    pub(super) fn pin(&self, pins: &Path) -> io::Result<()> {
        self.globals.pin(pins, name::GLOBALS)?;
        self.links.pin(pins, name::LINKS)?;
        self.addresses.pin(pins, name::ADDRESSES)?;
        self.routes.pin(pins, name::ROUTES)?;
        self.ports.pin(pins, name::PORTS)?;
        self.ranges.pin(pins, name::RANGES)?;
        self.sources.pin(pins, name::SOURCES)?;
        self.lookup.pin(pins, name::LOOKUP)?;
        self.targets.pin(pins, name::TARGETS)?;
        self.protected.pin(pins, name::PROTECTED)?;
        self.local.pin(pins, name::LOCAL)?;
        self.reserved.pin(pins, name::RESERVED)?;
        self.flows.pin(pins)?;
        self.counters.pin(pins, name::COUNTERS)?;
        self.drops.pin(pins, name::DROPS)?;
        self.series.pin(pins, name::SERIES)
    }
}

/// Sums a per-CPU element.
pub(super) fn counter(table: &Table<u32, Counter>, index: u32, cpus: usize) -> io::Result<Counter> {
    let mut values = vec![Counter::default(); cpus];
    sys::lookup(table.fd(), &index, &mut values)?;
    Ok(sum(&values))
}

/// The sum over CPUs.
pub(super) fn sum(values: &[Counter]) -> Counter {
    values.iter().fold(Counter::default(), |sum, one| Counter {
        original_packets: sum.original_packets.wrapping_add(one.original_packets),
        original_bytes: sum.original_bytes.wrapping_add(one.original_bytes),
        reply_packets: sum.reply_packets.wrapping_add(one.reply_packets),
        reply_bytes: sum.reply_bytes.wrapping_add(one.reply_bytes),
        flows: sum.flows.wrapping_add(one.flows),
        dropped: sum.dropped.wrapping_add(one.dropped),
    })
}

/// Copies a per-CPU element as it is, and returns it.
pub(super) fn copy<V: Pod + Default>(
    from: &Table<u32, V>,
    to: &Table<u32, V>,
    index: u32,
    cpus: usize,
) -> io::Result<Vec<V>> {
    let mut values = vec![V::default(); cpus];
    if sys::lookup(from.fd(), &index, values.as_mut_slice())?
        && let Some(first) = values.first()
    {
        // The kernel reads an element a CPU from there on.
        sys::update(to.fd(), &index, first, sys::ANY)?;
    }
    Ok(values)
}

/// Sums a per-CPU number.
pub(super) fn number(table: &Table<u32, u64>, index: u32, cpus: usize) -> io::Result<u64> {
    let mut values = vec![0u64; cpus];
    sys::lookup(table.fd(), &index, &mut values)?;
    Ok(values.iter().fold(0, |sum: u64, one| sum.wrapping_add(*one)))
}

/// Sets a per-CPU element to zero, such as a counter whose index is given to another series.
pub(super) fn clear<V: Pod + Default>(
    table: &Table<u32, V>,
    index: u32,
    cpus: usize,
) -> io::Result<()> {
    let values = vec![V::default(); cpus];
    let Some(first) = values.first() else { return Ok(()) };
    sys::update(table.fd(), &index, first, sys::ANY)
}
