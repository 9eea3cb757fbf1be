//! The flow table: a map for each family, as one.

use std::{io, path::Path};

use aya::Ebpf;
use proxy_ebpf_common::{FlowHalf, FlowKey, FlowKeyV4, name};

use super::{maps::Table, sys};

/// Both maps. Each holds as many halves as the table is configured to.
#[derive(Debug)]
pub struct FlowTable {
    v4: Table<FlowKeyV4, FlowHalf>,
    v6: Table<FlowKey, FlowHalf>,
}

impl FlowTable {
    pub(super) fn take(object: &mut Ebpf) -> io::Result<Self> {
        Ok(Self {
            v4: Table::take(object, name::FLOWS_V4)?,
            v6: Table::take(object, name::FLOWS_V6)?,
        })
    }

    pub(super) fn pin(&self, pins: &Path) -> io::Result<()> {
        self.v4.pin(pins, name::FLOWS_V4)?;
        self.v6.pin(pins, name::FLOWS_V6)
    }

    /// How many halves of a family fit.
    pub fn capacity(&self) -> u32 {
        self.v6.capacity()
    }

    /// Reads one half.
    pub fn get(&self, key: &FlowKey) -> io::Result<Option<FlowHalf>> {
        match key.v4() {
            Some(key) => self.v4.get(&key),
            None => self.v6.get(key),
        }
    }

    /// Inserts one half; `false` if the key is taken.
    pub fn insert_new(&self, key: &FlowKey, half: &FlowHalf) -> io::Result<bool> {
        match key.v4() {
            Some(key) => self.v4.insert_new(&key, half),
            None => self.v6.insert_new(key, half),
        }
    }

    /// Replaces one half; `false` if there is none.
    pub(super) fn replace(&self, key: &FlowKey, half: &FlowHalf) -> io::Result<bool> {
        match key.v4() {
            Some(key) => self.v4.replace(&key, half),
            None => self.v6.replace(key, half),
        }
    }

    /// Removes one half.
    pub fn remove(&self, key: &FlowKey) -> io::Result<()> {
        match key.v4() {
            Some(key) => self.v4.remove(&key),
            None => self.v6.remove(key),
        }
    }

    /// Writes many halves.
    pub fn set_all(&self, keys: &[FlowKey], halves: &[FlowHalf]) -> io::Result<()> {
        let (mut v4, mut v6) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (key, half) in keys.iter().zip(halves) {
            if let Some(key) = key.v4() {
                v4.0.push(key);
                v4.1.push(*half);
            } else {
                v6.0.push(*key);
                v6.1.push(*half);
            }
        }
        self.v4.set_all(&v4.0, &v4.1)?;
        self.v6.set_all(&v6.0, &v6.1)
    }

    /// Removes many halves.
    pub fn remove_all(&self, keys: &[FlowKey]) -> io::Result<()> {
        let v4: Vec<_> = keys.iter().filter_map(FlowKey::v4).collect();
        let v6: Vec<_> = keys.iter().filter(|key| key.v4().is_none()).copied().collect();
        self.v4.remove_all(&v4)?;
        self.v6.remove_all(&v6)
    }

    /// Walks through both; `each` sees every half that is there all the while.
    pub fn walk(&self, mut each: impl FnMut(&FlowKey, &FlowHalf)) -> io::Result<()> {
        self.v4.walk(|key, half| each(&FlowKey::from(*key), half))?;
        self.v6.walk(|key, half| each(key, half))
    }

    /// The next entries of a walk through one family after the other; whether that family is through.
    pub(super) fn step(&self, walk: &mut Walk) -> io::Result<bool> {
        let Walk { family, cursor, found, keys_v4, keys_v6, halves } = walk;
        found.clear();
        let over = match family {
            Family::V4 => {
                let (count, over) = sys::walk(self.v4.fd(), cursor, keys_v4, halves)?;
                let keys = keys_v4.iter().map(|key| FlowKey::from(*key));
                found.extend(keys.zip(halves.iter().copied()).take(count));
                over
            }
            Family::V6 => {
                let (count, over) = sys::walk(self.v6.fd(), cursor, keys_v6, halves)?;
                found.extend(keys_v6.iter().copied().zip(halves.iter().copied()).take(count));
                over
            }
        };
        Ok(over)
    }
}

/// Of a walk's entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Family {
    #[default]
    V4,
    V6,
}

/// A walk that is interrupted and resumed.
#[derive(Debug)]
pub(super) struct Walk {
    /// The family that is walked through.
    pub(super) family: Family,
    cursor: sys::Cursor,
    /// The entries of the last step.
    pub(super) found: Vec<(FlowKey, FlowHalf)>,
    keys_v4: Vec<FlowKeyV4>,
    keys_v6: Vec<FlowKey>,
    halves: Vec<FlowHalf>,
}

/// Entries a system call.
const BATCH: usize = 1024;

impl Default for Walk {
    fn default() -> Self {
        Self {
            family: Family::V4,
            cursor: sys::Cursor::default(),
            found: Vec::with_capacity(BATCH),
            keys_v4: vec![FlowKeyV4::default(); BATCH],
            keys_v6: vec![FlowKey::default(); BATCH],
            halves: vec![FlowHalf::default(); BATCH],
        }
    }
}

impl Walk {
    /// Begins with the other family, which it returns.
    pub(super) fn turn_to_other(&mut self) -> Family {
        self.family = match self.family {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        };
        self.cursor = sys::Cursor::default();
        self.family
    }
}
