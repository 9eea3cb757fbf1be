//! The user-space path on loopback: real sockets, no capability, no namespace.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on should say where"
)]

mod apply;
mod limits;
mod support;
mod tcp;
mod udp;
