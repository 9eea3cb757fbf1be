//! Raw frames: what is on a device, and what is put on it.

use std::{
    io::{self, Read as _},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};

use crate::Namespace;

/// A packet socket on one device. It shows both directions, from the network layer on (`Level::Network`) or with the
/// link header.
#[derive(Debug)]
pub struct Capture {
    socket: Socket,
    buffer: Vec<u8>,
}

/// Where the bytes of a packet begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// With the link header, if the device has one.
    Link,
    /// At the IP header.
    Network,
}

impl Capture {
    /// Begins to capture.
    pub fn new(namespace: &Namespace, device: &str, level: Level) -> Result<Self> {
        let kind = if level == Level::Link { Type::RAW } else { Type::DGRAM };
        let every = Protocol::from(i32::from((libc::ETH_P_ALL as u16).to_be()));
        let socket = namespace
            .enter(|| -> Result<Socket> {
                let socket = Socket::new(Domain::PACKET, kind, Some(every))?;
                let index = nix::net::if_::if_nametoindex(device)?;
                socket.bind(&address(index))?;
                Ok(socket)
            })
            .with_context(|| format!("capture on {device}"))?;
        Ok(Self { socket, buffer: vec![0; 1 << 17] })
    }

    /// The first packet within the time for which the function has an answer.
    pub fn find<T>(
        &mut self,
        timeout: Duration,
        mut wanted: impl FnMut(&[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let end = Instant::now() + timeout;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) {
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.read(&mut self.buffer) {
                Ok(length) => {
                    if let Some(answer) = wanted(&self.buffer[..length]) {
                        return Ok(Some(answer));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Puts a frame on the device (`Level::Link` only).
    pub fn inject(&self, frame: &[u8]) -> io::Result<()> {
        self.socket.send(frame).map(drop)
    }
}

fn address(index: u32) -> SockAddr {
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: the storage is as large as any address, and all of it is initialised.
    let packet = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    packet.sll_family = libc::AF_PACKET as u16;
    packet.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    packet.sll_ifindex = index as i32;
    // SAFETY: the first bytes are a `sockaddr_ll`, written above.
    unsafe { SockAddr::new(storage, size_of::<libc::sockaddr_ll>() as libc::socklen_t) }
}
