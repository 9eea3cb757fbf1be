//! Opening sockets.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use socket2::{Domain, Socket, Type};

use super::plan::{Listen, Transport};

/// Connections that may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Receive buffer of UDP frontends, shared by all their clients; the kernel caps it at `net.core.rmem_max`.
const UDP_RECEIVE_BUFFER: usize = 4 << 20;

/// A socket bound to its address, not yet listening.
pub(super) struct Bound {
    /// The socket, not blocking.
    pub(super) socket: Socket,
    /// Whether the address is not on this host, so that traffic arrives only if it is routed here.
    pub(super) foreign: bool,
}

/// How often, and how long apart, an address that is in use is tried again.
const AGAIN: (u32, Duration) = (10, Duration::from_millis(10));

/// Binds a socket. An address that is in use is tried again for a tenth of a second: a program that this process is just
/// starting holds what was open here until it runs, a frontend's old socket among it.
#[expect(clippy::disallowed_methods, reason = "an address that becomes free announces nothing")]
pub(super) fn bind(listen: Listen) -> io::Result<Bound> {
    let (mut left, pause) = AGAIN;
    loop {
        match bind_once(listen) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && left > 0 => {
                left -= 1;
                thread::sleep(pause);
            }
            result => return result,
        }
    }
}

/// An address that is not on this host is bound by `IP_FREEBIND`, which needs no capability.
fn bind_once(listen: Listen) -> io::Result<Bound> {
    let Listen { transport, address } = listen;
    let kind = match transport {
        Transport::Tcp => Type::STREAM,
        Transport::Udp => Type::DGRAM,
    };
    let socket = Socket::new(Domain::for_address(address), kind.nonblocking(), None)?;
    match transport {
        // Connections of an earlier listener may still be in TIME-WAIT.
        Transport::Tcp => socket.set_reuse_address(true)?,
        Transport::Udp => socket.set_recv_buffer_size(UDP_RECEIVE_BUFFER)?,
    }
    let foreign = match socket.bind(&address.into()) {
        Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {
            match address {
                SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
                SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
            }
            socket.bind(&address.into())?;
            true
        }
        result => {
            result?;
            false
        }
    };
    Ok(Bound { socket, foreign })
}

impl Bound {
    /// The socket, accepting connections.
    pub(super) fn listen(self) -> io::Result<std::net::TcpListener> {
        self.socket.listen(BACKLOG)?;
        Ok(self.socket.into())
    }
}

/// Tries whether sockets towards backends can be bound to this address.
pub(super) fn source(address: IpAddr) -> io::Result<()> {
    let address = SocketAddr::new(address, 0);
    Socket::new(Domain::for_address(address), Type::DGRAM, None)?.bind(&address.into())
}
