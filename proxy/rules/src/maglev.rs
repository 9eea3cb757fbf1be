//! Maglev lookup tables (Eisenbud et al., NSDI 2016, section 3.4), with weights.

use crate::{BackendState, Backends};

/// Table sizes, all prime; at least a hundred slots a backend keep shares within a percent or so.
const SIZES: [usize; 9] = [251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521];

impl Backends {
    /// Slot -> index into `list`. Empty without a ready backend; one slot for one.
    pub fn lookup_table(&self) -> Vec<u32> {
        let ready: Vec<_> = (0u32..)
            .zip(&self.list)
            .filter(|(_, backend)| backend.state == BackendState::Ready)
            .collect();
        match ready.as_slice() {
            [] => return Vec::new(),
            [(only, _)] => return vec![*only],
            _ => {}
        }
        let size = SIZES.into_iter().find(|size| *size >= ready.len() * 100).unwrap_or(65521);
        let heaviest = ready.iter().map(|(_, backend)| backend.weight).max().unwrap_or(1).max(1);
        let mut seats: Vec<_> = ready
            .iter()
            .map(|(index, backend)| {
                let hash =
                    blake3::hash(format!("{} {:?}", backend.address, backend.port).as_bytes());
                let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
                let offset = u32::from_le_bytes([a, b, c, d]) as usize % size;
                let skip = u32::from_le_bytes([e, f, g, h]) as usize % (size - 1) + 1;
                (*index, offset, skip, u32::from(backend.weight), 0u32)
            })
            .collect();
        let mut table = vec![u32::MAX; size];
        let mut left = size;
        while left > 0 {
            for (index, place, skip, weight, credit) in &mut seats {
                *credit += *weight;
                if *credit < u32::from(heaviest) || left == 0 {
                    continue;
                }
                *credit -= u32::from(heaviest);
                while table.get(*place).is_some_and(|slot| *slot != u32::MAX) {
                    *place = (*place + *skip) % size;
                }
                if let Some(slot) = table.get_mut(*place) {
                    *slot = *index;
                    left -= 1;
                }
            }
        }
        table
    }
}
