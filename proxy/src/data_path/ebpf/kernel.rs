//! Readings and small writings of the maps that are not rules: what is there already, devices, counters, flows.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    time::Duration,
};

use aya::Pod;
use caps::{CapSet, Capability};
use proxy_ebpf_common::{Address, Counter, FlowHalf, FlowKey, Target, clock, half, stance};
use proxy_rules::{Count, Flow, Series};

use super::{
    device::Device,
    flows,
    image::{MapImage, Prefixed, series_hash},
    maps::{Lpm, Maps, Table},
    sys,
};
use crate::data_path::{Stance, Unsupported};

/// Ticks of the programs' clock.
pub(super) fn now() -> u32 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC_COARSE)
        .map_or(0, |time| clock::ticks(Duration::from(time).as_nanos() as u64))
}

/// Whether programs may be loaded and attached. CAP_SYS_ADMIN stands for CAP_BPF (capabilities(7)).
pub(super) fn capabilities() -> Result<(), Unsupported> {
    let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    if !has(Capability::CAP_NET_ADMIN) {
        return Err(Unsupported::Capability("CAP_NET_ADMIN"));
    }
    if !has(Capability::CAP_BPF) && !has(Capability::CAP_SYS_ADMIN) {
        return Err(Unsupported::Capability("CAP_BPF"));
    }
    Ok(())
}

fn all<K: Pod + Default + Ord, V: Pod + Default>(
    table: &Table<K, V>,
) -> io::Result<BTreeMap<K, V>> {
    let mut found = BTreeMap::new();
    table.walk(|key, value| {
        found.insert(*key, *value);
    })?;
    Ok(found)
}

fn prefixes<K: Pod + Default + Ord, V: Pod + Default>(
    table: &Table<Lpm<K>, V>,
) -> io::Result<BTreeMap<Prefixed<K>, V>> {
    let mut found = BTreeMap::new();
    table.walk(|key, value| {
        found.insert((key.len, key.data), *value);
    })?;
    Ok(found)
}

/// The rules that are in the maps: what an earlier process has installed.
pub(super) fn read(maps: &Maps) -> io::Result<MapImage> {
    let mut image = MapImage {
        addresses: all(&maps.addresses)?,
        ports: all(&maps.ports)?,
        routes: prefixes(&maps.routes)?,
        ranges: prefixes(&maps.ranges)?,
        sources: prefixes(&maps.sources)?,
        protected: prefixes(&maps.protected)?,
        ..MapImage::default()
    };
    maps.targets.walk(|index, target| {
        if target.epoch != 0 {
            image.targets.insert(*index, *target);
        }
    })?;
    if image.targets.is_empty() && image.ports.is_empty() {
        return Ok(image);
    }
    maps.lookup.walk(|slot, target| {
        if *target != 0 {
            image.lookup.insert(*slot, *target);
        }
    })?;
    maps.reserved.walk(|word, bits| {
        if *bits != 0 {
            image.reserved.insert(*word, *bits);
        }
    })?;
    maps.series.walk(|hash, index| {
        image.hashes.insert(*hash, *index);
    })?;
    Ok(image)
}

/// Tells the programs about devices. Those that are gone stay until [`super::moved::follow`] has read their sides.
pub(super) fn set_links(maps: &Maps, devices: &[Device]) -> io::Result<()> {
    devices.iter().try_for_each(|device| maps.links.set(&device.ifindex, &device.link))
}

/// Tells the programs which addresses are this host's own.
pub(super) fn set_local(maps: &Maps, old: &[Address], new: &[Address]) -> io::Result<()> {
    new.iter().try_for_each(|address| maps.local.set(address, &1))?;
    let gone = |address: &&Address| new.binary_search(address).is_err();
    old.iter().filter(gone).try_for_each(|address| maps.local.remove(address))
}

/// Notes which series each counter is, for the next process.
pub(super) fn set_series(maps: &Maps, old: &MapImage, new: &MapImage) -> io::Result<()> {
    let fresh =
        new.counters.iter().filter(|(index, series)| old.counters.get(index) != Some(series));
    let (hashes, indices): (Vec<u64>, Vec<u32>) =
        fresh.map(|(index, series)| (series_hash(series), *index)).unzip();
    maps.series.set_all(&hashes, &indices)?;
    let gone: Vec<u64> = old
        .counters
        .iter()
        .filter(|(index, series)| new.counters.get(index) != Some(series))
        .map(|(_, series)| series_hash(series))
        .filter(|hash| !hashes.contains(hash))
        .collect();
    maps.series.remove_all(&gone)
}

/// A count for the outside.
pub(super) const fn count(counter: Counter) -> Count {
    Count {
        original_packets: counter.original_packets,
        original_bytes: counter.original_bytes,
        reply_packets: counter.reply_packets,
        reply_bytes: counter.reply_bytes,
        flows: counter.flows,
        dropped: counter.dropped,
    }
}

/// Every counter, summed over CPUs, by index.
pub(super) fn all_counters(table: &Table<u32, Counter>, cpus: usize) -> io::Result<Vec<Counter>> {
    sys::per_cpu(table.fd(), table.capacity() as usize, cpus, |sum: &mut Counter, one: &Counter| {
        sum.original_packets = sum.original_packets.wrapping_add(one.original_packets);
        sum.original_bytes = sum.original_bytes.wrapping_add(one.original_bytes);
        sum.reply_packets = sum.reply_packets.wrapping_add(one.reply_packets);
        sum.reply_bytes = sum.reply_bytes.wrapping_add(one.reply_bytes);
        sum.flows = sum.flows.wrapping_add(one.flows);
        sum.dropped = sum.dropped.wrapping_add(one.dropped);
    })
}

/// A stance as the programs read it.
pub(super) const fn stance(stance: Stance) -> u8 {
    match stance {
        Stance::All => stance::ALL,
        Stance::KnownFlows => stance::KNOWN_FLOWS,
        Stance::Handover => stance::HANDOVER,
    }
}

/// The counters that flows name.
pub(super) fn counters_in_use(maps: &Maps) -> io::Result<HashSet<u32>> {
    let mut named = HashSet::new();
    maps.flows.walk(|_, half| {
        named.insert(half.counter);
    })?;
    Ok(named)
}

fn halves(maps: &Maps) -> io::Result<HashMap<FlowKey, FlowHalf>> {
    let mut found = HashMap::new();
    maps.flows.walk(|key, value| {
        found.insert(*key, *value);
    })?;
    Ok(found)
}

/// Every live flow whose backend is still there.
pub(super) fn flows(maps: &Maps, names: &HashMap<u32, &Series>) -> io::Result<Vec<Flow>> {
    let halves = halves(maps)?;
    let now = now();
    let mut found = Vec::with_capacity(halves.len() / 2);
    for (key, original) in halves.iter().filter(|(_, value)| value.flags & half::REPLY == 0) {
        let target: Target = maps.targets.get(&original.target)?.unwrap_or_default();
        if target.epoch != original.epoch {
            continue;
        }
        let reply = halves.get(&original.pair_key(key));
        if let Some(mut flow) = flows::export(key, original, reply, now) {
            flow.rule = names.get(&original.counter).map(|series| series.rule.clone());
            found.push(flow);
        }
    }
    Ok(found)
}

/// Whole flows, and halves that are alone.
pub(super) fn pairs(maps: &Maps) -> io::Result<(u64, u64)> {
    let halves = halves(maps)?;
    let alone =
        halves.iter().filter(|(key, value)| !halves.contains_key(&value.pair_key(key))).count()
            as u64;
    Ok(((halves.len() as u64 - alone) / 2, alone))
}
