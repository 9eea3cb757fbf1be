//! The pod's process on a tailnet: settings from its environment, and what follows from them.

pub mod secret;
pub mod settings;
