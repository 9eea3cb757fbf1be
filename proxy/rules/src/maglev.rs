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

/// The slot of a table with this many slots that a hash leads to; 0 for an empty table.
pub const fn slot(hash: u32, slots: usize) -> usize {
    ((hash as u64 * slots as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::{Affinity, Backend};

    fn backends(weights: &[(u32, u16)]) -> Backends {
        let backend = |(host, weight): &(u32, u16)| Backend {
            address: Ipv4Addr::from(0xc000_0200 + host).into(),
            port: Some(80),
            weight: *weight,
            state: BackendState::Ready,
        };
        Backends { list: weights.iter().map(backend).collect(), affinity: Affinity::Flow }
    }

    #[test]
    fn few_backends_need_no_table() {
        assert!(backends(&[]).lookup_table().is_empty());
        assert_eq!(backends(&[(1, 5)]).lookup_table(), [0]);
        let mut two = backends(&[(1, 1), (2, 1)]);
        two.list[0].state = BackendState::Draining;
        assert_eq!(two.lookup_table(), [1]);
    }

    #[test]
    fn shares_follow_weights() {
        let table = backends(&[(1, 1), (2, 3), (3, 100)]).lookup_table();
        assert_eq!(table.len(), 509);
        let share = |index| table.iter().filter(|slot| **slot == index).count();
        assert!((4..=6).contains(&share(0)), "{}", share(0));
        assert!((14..=16).contains(&share(1)), "{}", share(1));
    }

    #[test]
    fn a_hash_leads_to_a_slot_of_the_table() {
        assert_eq!((slot(u32::MAX, 251), slot(0, 251), slot(9, 0)), (250, 0, 0));
    }

    #[test]
    fn the_largest_service_is_built_quickly() {
        let many: Vec<_> = (0..1024).map(|host| (host, 1)).collect();
        assert_eq!(backends(&many).lookup_table().len(), 65521);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn removing_a_backend_moves_few_other_slots(count in 3_u32..20, gone in 0_u32..20) {
            let gone = gone % count;
            let before: Vec<_> = (0..count).map(|host| (host, 1)).collect();
            let after: Vec<_> = before.iter().copied().filter(|(host, _)| *host != gone).collect();
            let (old, new) = (backends(&before).lookup_table(), backends(&after).lookup_table());
            prop_assume!(old.len() == new.len()); // another size is another table
            let others = old.iter().zip(&new).filter(|(old, _)| **old != gone);
            let moved = others.clone().filter(|(old, new)| before[**old as usize] != after[**new as usize]);
            let (moved, all) = (moved.count(), others.count());
            prop_assert!(moved * 4 < all, "{} of {} moved", moved, all);
        }
    }
}
