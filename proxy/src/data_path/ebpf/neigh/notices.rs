//! What the kernel tells of its own accord: neighbours, routes, addresses, devices.

use std::{io, net::IpAddr, time::Duration};

use netlink_packet_core::{NetlinkBuffer, NetlinkPayload};
use netlink_packet_route::{
    RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use socket2::SockRef;

use super::netlink;

/// Multicast groups `RTNLGRP_*` (include/uapi/linux/rtnetlink.h).
const LINK: u32 = 1;
const NEIGH: u32 = 3;
const IPV4_IFADDR: u32 = 5;
const IPV4_ROUTE: u32 = 7;
const IPV4_RULE: u32 = 8;
const IPV6_IFADDR: u32 = 9;
const IPV6_ROUTE: u32 = 11;
const IPV6_RULE: u32 = 19;

/// Message types (include/uapi/linux/rtnetlink.h).
const RTM_NEWLINK: u16 = 16;
const RTM_DELADDR: u16 = 21;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;

/// What a neighbour's entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    /// Its Ethernet address.
    pub(super) mac: [u8; 6],
    /// The kernel would confirm it before long if it were used.
    pub(super) stale: bool,
}

/// One thing that has happened.
pub(super) enum Notice {
    /// A neighbour's entry; `None` if it is of no use any more.
    Neighbour(u32, IpAddr, Option<Neighbour>),
    /// Routes or rules have changed.
    Routes,
    /// Devices or their addresses have changed, and with them perhaps routes.
    Devices,
    /// Notices were lost: everything may have changed.
    Lost,
}

/// A socket that hears notices.
#[derive(Debug)]
pub(crate) struct Notices {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Notices {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        for group in
            [LINK, NEIGH, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE]
        {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        Ok(Self { socket, buffer: Vec::with_capacity(1 << 16) })
    }

    /// A socket that is waited on, for so long at a time.
    pub(crate) fn open_waiting(patience: Duration) -> io::Result<Self> {
        let opened = Self::open()?;
        opened.socket.set_non_blocking(false)?;
        SockRef::from(&opened.socket).set_read_timeout(Some(patience))?;
        Ok(opened)
    }

    /// Waits until something has happened and forgets what; `false` if nothing has.
    pub(crate) fn wait(&mut self) -> io::Result<bool> {
        let mut flags = 0;
        loop {
            self.buffer.clear();
            let heard = flags != 0;
            match self.socket.recv(&mut self.buffer, flags) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(heard),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error),
            }
            // The rest of the burst.
            flags = libc::MSG_DONTWAIT;
        }
    }

    /// Everything that has happened since the last call.
    pub(super) fn drain(&mut self, mut each: impl FnMut(Notice)) -> io::Result<()> {
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, 0) {
                Ok(_) => messages(&self.buffer, &mut each),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => each(Notice::Lost),
                Err(error) => return Err(error),
            }
        }
    }
}

fn messages(mut bytes: &[u8], each: &mut impl FnMut(Notice)) {
    while let Ok(buffer) = NetlinkBuffer::new_checked(bytes) {
        match buffer.message_type() {
            RTM_NEWNEIGH | RTM_DELNEIGH => {
                let end = (buffer.length() as usize).min(bytes.len());
                if let Some(notice) = bytes.get(..end).and_then(neighbour) {
                    each(notice);
                }
            }
            RTM_NEWLINK..=RTM_DELADDR => each(Notice::Devices),
            _ => each(Notice::Routes),
        }
        let len = (buffer.length() as usize + 3) & !3;
        bytes = bytes.get(len..).unwrap_or_default();
    }
}

fn neighbour(bytes: &[u8]) -> Option<Notice> {
    let message = netlink::messages(bytes).ok()?.pop()?;
    let (entry, is_gone) = match message.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry)) => (entry, false),
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(entry)) => (entry, true),
        _ => return None,
    };
    let (ifindex, ip, known) = read(&entry)?;
    Some(Notice::Neighbour(ifindex, ip, known.filter(|_| !is_gone)))
}

/// The device, the address, and what is known of it.
pub(super) fn read(entry: &NeighbourMessage) -> Option<(u32, IpAddr, Option<Neighbour>)> {
    let usable = matches!(
        entry.header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp
    );
    let mut ip = None;
    let mut mac = None;
    for attribute in &entry.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => ip = Some((*v4).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => ip = Some((*v6).into()),
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = <[u8; 6]>::try_from(bytes.as_slice()).ok();
            }
            _ => {}
        }
    }
    let stale = entry.header.state == NeighbourState::Stale;
    let known = mac.filter(|_| usable).map(|mac| Neighbour { mac, stale });
    Some((entry.header.ifindex, ip?, known))
}
