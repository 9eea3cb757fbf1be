//! The user-space path on loopback: real sockets, no capability, no namespace.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on should say where"
)]

#[path = "userspace/apply.rs"]
mod apply;
#[path = "userspace/limits.rs"]
mod limits;
#[path = "userspace/support.rs"]
mod support;
#[path = "userspace/tcp.rs"]
mod tcp;
#[path = "userspace/through.rs"]
mod through;
#[path = "userspace/udp.rs"]
mod udp;
