//! Nothing is lost when data paths switch or agents die: the real binary under live traffic, on every path, with every
//! set of privileges. Needs root, `ip`, `nft`, `setpriv`, `unshare`; with SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

#[path = "continuity/death.rs"]
mod death;
#[path = "continuity/growth.rs"]
mod growth;
#[path = "continuity/privileges.rs"]
mod privileges;
#[path = "continuity/shutdown.rs"]
mod shutdown;
#[path = "continuity/support.rs"]
mod support;
#[path = "continuity/switching.rs"]
mod switching;
#[path = "continuity/upkeep.rs"]
mod upkeep;
