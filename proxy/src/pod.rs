//! The pod's process on a tailnet: settings from its environment, and what follows from them.

mod advertise;
mod aside;
pub mod config_map;
pub mod confine;
pub mod doors;
pub mod drain;
pub mod files;
pub mod http;
pub mod installer;
pub mod link;
pub mod local;
pub mod login;
pub mod names;
mod parts;
pub mod reissue;
pub mod report;
pub mod resolve;
pub mod run;
pub mod secret;
pub mod serve;
pub mod settings;
pub mod state;
mod stop;
pub mod upstream;
pub mod view;
pub mod without_tun;
