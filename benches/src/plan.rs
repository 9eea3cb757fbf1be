//! How much is measured.

use std::time::Duration;

use crate::ladder::Setting;

/// Number and length of rounds.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: u32,
    pub round: Duration,
}

impl Plan {
    /// The published ports and flows of each rig of the ladder. The last has room for a million flows; its two ports
    /// tell its series from the first rig's.
    pub fn settings(&self) -> Vec<Setting> {
        let usual = 262_144;
        vec![
            Setting { ports: 1, flows: vec![1, 1024, 1 << 15], max_flows: usual },
            Setting { ports: 1000, flows: vec![1 << 15], max_flows: usual },
            Setting { ports: 10_000, flows: vec![1 << 15], max_flows: usual },
            Setting { ports: 2, flows: vec![1024, 1 << 20], max_flows: 1_100_000 },
        ]
    }

    /// What figures are quoted from.
    pub const FULL: Self = Self { rounds: 15, round: Duration::from_millis(600) };
    /// A look.
    pub const QUICK: Self = Self { rounds: 5, round: Duration::from_millis(300) };
}
