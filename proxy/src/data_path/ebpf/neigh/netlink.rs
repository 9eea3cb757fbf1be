//! Requests to route netlink (RFC 3549; `rtnetlink(7)`).

use std::{io, net::IpAddr};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
    },
    route::{RouteAddress, RouteAttribute, RouteMessage},
    tc::{TcAttribute, TcHandle, TcMessage},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// A socket for requests, one at a time.
#[derive(Debug)]
pub(super) struct Requests {
    socket: Socket,
    sequence: u32,
}

impl Requests {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    pub(super) fn ask(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            for answer in messages(&bytes)? {
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::InnerMessage(message) => {
                        each(message);
                        if flags & NLM_F_DUMP == 0 {
                            return Ok(());
                        }
                    }
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(error.to_io());
                    }
                    NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    /// Every neighbour.
    pub(super) fn neighbours(&mut self, mut each: impl FnMut(NeighbourMessage)) -> io::Result<()> {
        let message = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        self.ask(message, NLM_F_DUMP, |answer| {
            if let RouteNetlinkMessage::NewNeighbour(entry) = answer {
                each(entry);
            }
        })
    }

    /// The device and next hop towards an address.
    pub(super) fn route(&mut self, to: IpAddr) -> io::Result<Option<(u32, IpAddr)>> {
        let mut message = RouteMessage::default();
        let (family, len, destination) = match to {
            IpAddr::V4(v4) => (AddressFamily::Inet, 32, RouteAddress::Inet(v4)),
            IpAddr::V6(v6) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(v6)),
        };
        message.header.address_family = family;
        message.header.destination_prefix_length = len;
        message.attributes.push(RouteAttribute::Destination(destination));
        let mut found = None;
        let result = self.ask(RouteNetlinkMessage::GetRoute(message), 0, |answer| {
            let RouteNetlinkMessage::NewRoute(route) = answer else { return };
            let mut gateway = to;
            let mut device = None;
            for attribute in &route.attributes {
                match attribute {
                    RouteAttribute::Gateway(RouteAddress::Inet(v4)) => gateway = IpAddr::V4(*v4),
                    RouteAttribute::Gateway(RouteAddress::Inet6(v6)) => gateway = IpAddr::V6(*v6),
                    RouteAttribute::Oif(index) => device = Some(*index),
                    _ => {}
                }
            }
            found = device.map(|device| (device, gateway));
        });
        match result {
            Ok(()) => Ok(found),
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH)) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the kernel resolve or confirm a neighbour (`NTF_USE`, neighbour.c `__neigh_add`).
    pub(super) fn probe(&mut self, ifindex: u32, ip: IpAddr) -> io::Result<()> {
        let mut entry = NeighbourMessage::default();
        entry.header.ifindex = ifindex;
        entry.header.flags = NeighbourFlags::Use;
        entry.header.state = NeighbourState::None;
        let address = match ip {
            IpAddr::V4(v4) => {
                entry.header.family = AddressFamily::Inet;
                NeighbourAddress::Inet(v4)
            }
            IpAddr::V6(v6) => {
                entry.header.family = AddressFamily::Inet6;
                NeighbourAddress::Inet6(v6)
            }
        };
        entry.attributes.push(NeighbourAttribute::Destination(address));
        let flags = NLM_F_ACK | NLM_F_CREATE;
        self.ask(RouteNetlinkMessage::NewNeighbour(entry), flags, |_| {})
    }
}

/// The messages of a datagram.
pub(crate) fn messages(datagram: &[u8]) -> io::Result<Vec<NetlinkMessage<RouteNetlinkMessage>>> {
    let mut rest = datagram;
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
            .map_err(|error| io::Error::other(error.to_string()))?;
        // Messages are padded to four bytes (NLMSG_ALIGN).
        let length = (message.header.length as usize).next_multiple_of(4);
        messages.push(message);
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(messages)
}

/// Removes the clsact qdisc of a device.
pub(super) fn remove_clsact(ifindex: u32) -> io::Result<()> {
    let mut message = TcMessage::default();
    message.header.index = i32::try_from(ifindex).unwrap_or_default();
    // TC_H_CLSACT (include/uapi/linux/pkt_sched.h).
    message.header.parent = TcHandle::from(0xffff_fff1);
    message.header.handle = TcHandle::from(0xffff_0000);
    message.attributes.push(TcAttribute::Kind("clsact".to_owned()));
    let request = RouteNetlinkMessage::DelQueueDiscipline(message);
    Requests::open()?.ask(request, NLM_F_ACK, |_| {})
}
