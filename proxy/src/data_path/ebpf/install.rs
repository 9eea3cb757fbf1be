//! Image -> kernel: only what has changed, additions before what refers to them, removals last, everything undone if a
//! step fails.

use std::{collections::BTreeMap, io};

use aya::Pod;
use proxy_ebpf_common::Target;

use super::{
    image::{MapImage, Prefixed},
    maps::{Lpm, Maps, Table},
};

/// What differs between two contents of a map.
#[derive(Debug, PartialEq, Eq)]
struct Change<K, V> {
    set: Vec<(K, V)>,
    remove: Vec<K>,
}

fn change<K: Ord + Clone, V: PartialEq + Clone>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
) -> Change<K, V> {
    Change {
        set: new
            .iter()
            .filter(|(key, value)| old.get(*key) != Some(*value))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        remove: old.keys().filter(|key| !new.contains_key(*key)).cloned().collect(),
    }
}

fn set<K: Clone, V: Pod, W: Pod>(
    table: &Table<W, V>,
    change: &Change<K, V>,
    key: impl Fn(K) -> W,
    what: &str,
) -> io::Result<()> {
    let keys: Vec<W> = change.set.iter().map(|(k, _)| key(k.clone())).collect();
    let values: Vec<V> = change.set.iter().map(|(_, value)| *value).collect();
    table.set_all(&keys, &values).map_err(|error| named(what, &error))
}

fn remove<K: Clone, V: Pod, W: Pod>(
    table: &Table<W, V>,
    change: &Change<K, V>,
    key: impl Fn(K) -> W,
    what: &str,
) -> io::Result<()> {
    let keys: Vec<W> = change.remove.iter().map(|k| key(k.clone())).collect();
    table.remove_all(&keys).map_err(|error| named(what, &error))
}

fn named(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("writing {what}: {error}"))
}

fn lpm<K>((len, data): Prefixed<K>) -> Lpm<K> {
    Lpm { len, data }
}

fn same<K>(key: K) -> K {
    key
}

/// Brings the maps from `old` to `new`; on an error they hold `old` again.
pub(super) fn install(maps: &Maps, old: &MapImage, new: &MapImage) -> io::Result<()> {
    step(maps, old, new).inspect_err(|_| {
        // What was not reached yet is as in `old`; writing it again changes nothing.
        if let Err(error) = step(maps, new, old) {
            tracing::error!(%error, "the old rules could not be restored in full");
        }
    })
}

fn step(maps: &Maps, old: &MapImage, new: &MapImage) -> io::Result<()> {
    let targets = change(&old.targets, &new.targets);
    let lookup = change(&old.lookup, &new.lookup);
    let sources = change(&old.sources, &new.sources);
    let ports = change(&old.ports, &new.ports);
    let ranges = change(&old.ranges, &new.ranges);
    let addresses = change(&old.addresses, &new.addresses);
    let routes = change(&old.routes, &new.routes);
    let protected = change(&old.protected, &new.protected);
    let reserved = change(&old.reserved, &new.reserved);
    set(&maps.targets, &targets, same, "targets")?;
    set(&maps.lookup, &lookup, same, "lookup tables")?;
    set(&maps.reserved, &reserved, same, "reserved ports")?;
    set(&maps.protected, &protected, lpm, "protected sources")?;
    set(&maps.sources, &sources, lpm, "source groups")?;
    set(&maps.ranges, &ranges, lpm, "port ranges")?;
    set(&maps.ports, &ports, same, "ports")?;
    set(&maps.addresses, &addresses, same, "addresses")?;
    set(&maps.routes, &routes, lpm, "routes")?;
    remove(&maps.addresses, &addresses, same, "addresses")?;
    remove(&maps.routes, &routes, lpm, "routes")?;
    remove(&maps.ports, &ports, same, "ports")?;
    remove(&maps.ranges, &ranges, lpm, "port ranges")?;
    remove(&maps.sources, &sources, lpm, "source groups")?;
    remove(&maps.protected, &protected, lpm, "protected sources")?;
    for word in &reserved.remove {
        maps.reserved.set(word, &0)?;
    }
    // Array elements cannot be removed: a free target has epoch 0, so that its flows see that it is gone.
    for index in &targets.remove {
        maps.targets.set(index, &Target::default())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_applied_to_the_old_contents_gives_the_new() {
        let old = BTreeMap::from([(1, 'a'), (2, 'b'), (3, 'c')]);
        let new = BTreeMap::from([(2, 'b'), (3, 'x'), (4, 'd')]);
        let change = change(&old, &new);
        assert_eq!(change, Change { set: vec![(3, 'x'), (4, 'd')], remove: vec![1] });
        let mut result = old;
        result.extend(change.set);
        change.remove.iter().for_each(|key| {
            result.remove(key);
        });
        assert_eq!(result, new);
    }
}
