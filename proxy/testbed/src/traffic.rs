//! Real traffic over the kernel's own stacks: servers, clients, and a checker that nothing is lost.

pub mod icmp;
pub mod steady;
pub mod tcp;
pub mod udp;
