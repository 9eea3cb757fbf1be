//! How much is measured.

use std::time::Duration;

/// Number and length of rounds.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: u32,
    pub round: Duration,
}

impl Plan {
    /// What figures are quoted from.
    pub const FULL: Self = Self { rounds: 15, round: Duration::from_millis(600) };
    /// A look.
    pub const QUICK: Self = Self { rounds: 5, round: Duration::from_millis(300) };
}
