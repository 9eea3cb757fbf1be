//! Receiving many datagrams with one system call.

use std::{
    cell::RefCell,
    io::{self, IoSliceMut},
    net::SocketAddr,
    os::fd::AsRawFd,
};

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg};
use tokio::{io::Interest, net::UdpSocket};

/// Datagrams a call.
const BATCH: usize = 32;

/// The largest UDP payload, rounded up.
const DATAGRAM: usize = 1 << 16;

/// A worker thread's buffers. Only pages that datagrams have touched take memory.
struct Buffers {
    /// For IPv4 and for IPv6: the kernel writes the address's length back, and nix hands it in again as the room there
    /// is, so that headers once used for IPv4 would cut IPv6 addresses short.
    headers: [MultiHeaders<SockaddrStorage>; 2],
    payloads: Vec<Vec<u8>>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers {
        headers: [MultiHeaders::preallocate(BATCH, None), MultiHeaders::preallocate(BATCH, None)],
        payloads: vec![vec![0; DATAGRAM]; BATCH],
    });
}

/// Waits until something has arrived: datagrams, or an ICMP error, which does not make a socket readable. Tokio knows
/// readiness by single interests only, so what comes out is the one to receive with.
pub(super) async fn ready(socket: &UdpSocket) -> io::Result<Interest> {
    let ready = socket.ready(Interest::READABLE | Interest::ERROR).await?;
    Ok(if ready.is_readable() { Interest::READABLE } else { Interest::ERROR })
}

/// Receives what has arrived, at most one batch, and returns the number of datagrams.
pub(super) fn receive(
    socket: &UdpSocket,
    interest: Interest,
    mut each: impl FnMut(&[u8], Option<SocketAddr>),
) -> io::Result<usize> {
    let v6 = socket.local_addr()?.is_ipv6();
    socket.try_io(interest, || {
        BUFFERS.with_borrow_mut(|Buffers { headers: [headers4, headers6], payloads }| {
            let headers = if v6 { headers6 } else { headers4 };
            let mut slices: Vec<_> = payloads.iter_mut().map(|p| [IoSliceMut::new(p)]).collect();
            let flags = MsgFlags::MSG_DONTWAIT;
            let messages = recvmmsg(socket.as_raw_fd(), headers, &mut slices, flags, None)?;
            let received: Vec<_> = messages
                .map(|message| (message.bytes, message.address.and_then(address)))
                .collect();
            for ((bytes, from), payload) in received.iter().zip(payloads) {
                each(payload.get(..*bytes).unwrap_or_default(), *from);
            }
            Ok(received.len())
        })
    })
}

fn address(address: SockaddrStorage) -> Option<SocketAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(SocketAddr::V4((*v4).into())),
        (_, Some(v6)) => Some(SocketAddr::V6((*v6).into())),
        _ => None,
    }
}
