//! Network namespaces, devices and real traffic for tests, the demo and benchmarks.
//!
//! Everything here needs root. Namespaces are anonymous: they end with the values that hold them, also when the
//! process is killed, so nothing is left on the machine.
#![expect(
    clippy::indexing_slicing,
    reason = "test tool: buffers are sized where they are cut, a wrong index should stop the test"
)]

pub mod bpffs;
pub mod capture;
pub mod classifier;
pub mod counter;
pub mod daemon;
pub mod dns;
pub mod http;
pub mod kubernetes;
pub mod namespace;
pub mod offload;
pub mod process;
pub mod tailnet;
pub mod topology;
pub mod traffic;
pub mod tun;
pub mod wait;

pub use bpffs::Bpffs;
pub use daemon::Daemon;
pub use kubernetes::ApiServer;
pub use namespace::Namespace;
pub use process::ProxyProcess;
pub use tailnet::Tailnet;
pub use topology::Topology;
pub use wait::{DEADLINE, poll_until};
