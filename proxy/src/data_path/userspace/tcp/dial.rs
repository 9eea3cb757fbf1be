//! Connecting to a backend.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt::IpBindAddressNoPort};
use socket2::{Domain, Socket, Type};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};

/// How long a backend may take to answer: three SYNs (sent at 0, 1 and 3 seconds).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to the backend.
pub(super) async fn connect(backend: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(backend), Type::STREAM.nonblocking(), None)?;
    if let Some(source) = source {
        // The port is chosen when the peer is known, so that one source has more than 64 K connections.
        setsockopt(&socket, IpBindAddressNoPort, &true)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    let socket = TcpSocket::from_std_stream(socket.into());
    within(socket.connect(backend)).await
}

/// Sends what the backend must read before anything else.
pub(super) async fn greet(stream: &TcpStream, mut header: &[u8]) -> io::Result<()> {
    within(async {
        while !header.is_empty() {
            stream.writable().await?;
            match stream.try_write(header) {
                Ok(written) => header = header.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    })
    .await
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(CONNECT_TIMEOUT, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
