//! The kernel's connection table over ctnetlink: dump, create with NAT, delete.
//!
//! Types and encoding come from `netlink-packet-netfilter`; what it lacks (the NAT attributes, ICMP's part of a tuple)
//! is built of its generic attributes in `message`, after include/uapi/linux/netfilter/nfnetlink_conntrack.h.
//! Everything happens in the network namespace of the calling thread.

use std::{io, net::SocketAddr, time::Duration};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_netfilter::{
    NetfilterMessage, NetfilterMessageInner, conntrack::ConntrackMessage,
};
use proxy_rules::{Flow, FlowState, Protocol};

mod message;
mod socket;

use socket::Socket;

/// How often a dump is begun anew when the table changed under it.
const DUMPS: u32 = 5;

/// How many entries this network namespace has.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// Why the connection table could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    /// The socket failed.
    #[error("ctnetlink: {0}")]
    Io(#[from] io::Error),
    /// The kernel's answer was not understood.
    #[error("ctnetlink: the kernel's answer was not understood: {0}")]
    Decode(String),
    /// The table changed during every dump.
    #[error("ctnetlink: the table changed during each of {DUMPS} dumps")]
    Unsteady,
}

/// One direction of an entry. ICMP echo: both ports are the identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source.
    pub src: SocketAddr,
    /// Destination.
    pub dst: SocketAddr,
}

/// An entry of the connection table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Protocol.
    pub protocol: Protocol,
    /// The original direction, before translation.
    pub original: Tuple,
    /// The reply direction as it arrives: the translated original, reversed.
    pub reply: Tuple,
    /// The connection mark.
    pub mark: u32,
    /// Whether a reply was seen.
    pub replied: bool,
    /// TCP's state.
    pub tcp_state: Option<u8>,
    /// What is left until it expires.
    pub timeout: Duration,
}

impl Entry {
    /// How far the flow has come.
    pub fn state(&self) -> FlowState {
        match (self.tcp_state, self.replied) {
            (Some(state), _) => message::flow_state(state),
            (None, true) => FlowState::Replied,
            (None, false) => FlowState::Unreplied,
        }
    }
}

/// The entries of a datagram of a dump.
pub(crate) fn entries(datagram: &[u8]) -> Result<Vec<Option<Entry>>, ConntrackError> {
    let entry = |message: NetlinkMessage<NetfilterMessage>| match message.payload {
        NetlinkPayload::InnerMessage(NetfilterMessage {
            inner: NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)),
            ..
        }) => message::entry(attributes),
        _ => None,
    };
    Ok(socket::messages(datagram)?.into_iter().map(entry).collect())
}

/// A connection to ctnetlink.
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// Opens one in the network namespace of this thread.
    pub fn open() -> Result<Self, ConntrackError> {
        Ok(Self { socket: Socket::open()? })
    }

    /// The entries of TCP, UDP and ICMP echo, of both families, whose mark under `mask` is `mark`.
    pub fn dump(&mut self, mark: u32, mask: u32) -> Result<Vec<Entry>, ConntrackError> {
        // The kernel's table is one for all namespaces, and a dump walks all of it: 14 ms where it has 262 144 buckets.
        let own = std::fs::read_to_string(COUNT);
        if own.is_ok_and(|count| count.trim() == "0") {
            return Ok(Vec::new());
        }
        let request = || ConntrackMessage::Get(message::mark_filter(mark, mask));
        for _ in 0..DUMPS {
            let mut entries = Vec::new();
            let steady = self.socket.dump(request(), NLM_F_DUMP, |attributes| {
                // The kernel filters by mark, but one that is too old for it would not say so.
                entries.extend(message::entry(attributes).filter(|e| e.mark & mask == mark));
            })?;
            if steady {
                return Ok(entries);
            }
        }
        Err(ConntrackError::Unsteady)
    }

    /// Creates entries; those that are there already stay as they are. Returns which were created.
    pub fn create(&mut self, flows: &[(&Flow, u32)]) -> Result<Vec<bool>, ConntrackError> {
        let messages = flows.iter().map(|(flow, mark)| {
            (flow.is_ipv6(), ConntrackMessage::New(message::create(flow, *mark)))
        });
        let outcomes = self.socket.batch(messages, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK)?;
        outcomes
            .into_iter()
            .map(|outcome| match outcome {
                Ok(()) => Ok(true),
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
                Err(error) => Err(error.into()),
            })
            .collect()
    }

    /// Deletes entries; those that are gone already do not matter.
    pub fn delete(&mut self, entries: &[Entry]) -> Result<(), ConntrackError> {
        let messages = entries.iter().map(|entry| {
            (entry.original.src.is_ipv6(), ConntrackMessage::Delete(message::original(entry)))
        });
        for outcome in self.socket.batch(messages, NLM_F_ACK)? {
            match outcome {
                Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        Ok(())
    }
}
