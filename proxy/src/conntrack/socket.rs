//! Requests and answers on a netfilter netlink socket.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    conntrack::{ConntrackAttribute, ConntrackMessage},
};
use netlink_sys::{SocketAddr, protocols::NETLINK_NETFILTER};

use super::ConntrackError;

/// Requests in one datagram. Their acknowledgements must fit the receive buffer, which holds at least 200 kB.
const BATCH: usize = 64;
/// Receive buffer: holds many thousand entries of a dump, so that the kernel need not wait for us.
const RECEIVE_BUFFER: usize = 4 << 20;

pub(super) struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
}

impl Socket {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = netlink_sys::Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // More than the system allows is cut to what it allows.
        socket.set_rx_buf_sz(RECEIVE_BUFFER as libc::c_int)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Runs a dump; tells whether the table stood still.
    pub(super) fn dump(
        &mut self,
        request: ConntrackMessage,
        flags: u16,
        mut each: impl FnMut(Vec<ConntrackAttribute>),
    ) -> Result<bool, ConntrackError> {
        let request = self.message(NetfilterProtoFamily::Unspec, request, flags);
        self.socket.send(&request, 0)?;
        let mut steady = true;
        loop {
            for answer in self.receive()? {
                steady &= answer.header.flags & NLM_F_DUMP_INTR == 0;
                match answer.payload {
                    NetlinkPayload::Done(_) => return Ok(steady),
                    NetlinkPayload::Error(error) => return Err(error.to_io().into()),
                    NetlinkPayload::InnerMessage(message) => {
                        if let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) =
                            message.inner
                        {
                            each(attributes);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// Sends requests and collects the answer to each, in order.
    pub(super) fn batch(
        &mut self,
        requests: impl Iterator<Item = (bool, ConntrackMessage)>,
        flags: u16,
    ) -> Result<Vec<io::Result<()>>, ConntrackError> {
        let mut outcomes = Vec::new();
        let mut requests = requests.peekable();
        while requests.peek().is_some() {
            let mut datagram = Vec::new();
            let first = self.sequence.wrapping_add(1);
            let mut count = 0;
            for (ipv6, request) in requests.by_ref().take(BATCH) {
                let family =
                    if ipv6 { NetfilterProtoFamily::IPv6 } else { NetfilterProtoFamily::IPv4 };
                datagram.extend(self.message(family, request, flags));
                count += 1;
            }
            self.socket.send(&datagram, 0)?;
            let mut answers: Vec<Option<io::Result<()>>> = Vec::new();
            answers.resize_with(count, || None);
            let mut missing = count;
            while missing > 0 {
                for answer in self.receive()? {
                    let NetlinkPayload::Error(error) = answer.payload else { continue };
                    let index = answer.header.sequence_number.wrapping_sub(first) as usize;
                    if let Some(slot) = answers.get_mut(index).filter(|slot| slot.is_none()) {
                        *slot = Some(error.code.map_or(Ok(()), |_| Err(error.to_io())));
                        missing -= 1;
                    }
                }
            }
            outcomes.extend(answers.into_iter().flatten());
        }
        Ok(outcomes)
    }

    fn message(
        &mut self,
        family: NetfilterProtoFamily,
        inner: ConntrackMessage,
        flags: u16,
    ) -> Vec<u8> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let netfilter = NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), inner);
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(netfilter));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn receive(&self) -> Result<Vec<NetlinkMessage<NetfilterMessage>>, ConntrackError> {
        let (datagram, _) = self.socket.recv_from_full()?;
        messages(&datagram)
    }
}

/// The messages of a datagram.
pub(super) fn messages(
    datagram: &[u8],
) -> Result<Vec<NetlinkMessage<NetfilterMessage>>, ConntrackError> {
    let mut rest = datagram;
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let message = NetlinkMessage::<NetfilterMessage>::deserialize(rest)
            .map_err(|error| ConntrackError::Decode(error.to_string()))?;
        // Messages are padded to four bytes (NLMSG_ALIGN).
        let length = (message.header.length as usize).next_multiple_of(4);
        messages.push(message);
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(messages)
}
