//! The rule table: what one proxy should forward, independent of how.
//!
//! Pure: no kernel, no clock, no I/O. The table is compiled by each data path; [`model`] is the slow, obvious
//! specification that all of them are tested against.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod address;
pub mod config;
pub mod flow;
pub mod maglev;
pub mod model;
pub mod packet;
pub mod rule;
pub mod snapshot;
pub mod table;
pub mod validate;

pub use address::{PortRange, Protocol, Side};
pub use flow::{Flow, FlowState};
pub use proxy_ebpf_common::DropReason;
pub use rule::{Action, Affinity, Backend, BackendState, Backends, Match, Rule, RuleId, Snat};
pub use snapshot::{Count, Series, Snapshot};
pub use table::{Fragments, Interfaces, RuleTable, Settings, SnatPorts, Unmatched};
