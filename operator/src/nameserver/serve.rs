//! UDP and TCP, of both families. What one asker may take of it is bounded.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
    time::timeout,
};

use super::{
    Latest,
    answer::{Transport, answer},
};

/// As many connections are served at once; more wait to be accepted.
const CONNECTIONS: usize = 256;
/// A connection that asks nothing, or does not take its answer, is closed after this time.
const IDLE: Duration = Duration::from_secs(10);
/// Longer questions than any that can be answered are not read.
const QUESTION_LIMIT: usize = 4096;
/// How soon a connection is waited for again when there is no room for one.
const PAUSE: Duration = Duration::from_millis(100);

/// What questions come to.
pub(super) struct Sockets {
    udp: UdpSocket,
    tcp: TcpListener,
}

/// Of both families where the node has both.
pub(super) async fn bind(at: SocketAddr) -> io::Result<Sockets> {
    let (tcp, at) = match TcpListener::bind(at).await {
        // A node without IPv6.
        Err(error) if at.is_ipv6() && at.ip().is_unspecified() => {
            let at = SocketAddr::from(([0, 0, 0, 0], at.port()));
            let listener = TcpListener::bind(at).await.map_err(|_| error)?;
            (listener, at)
        }
        outcome => (outcome?, at),
    };
    // Both have the same port where the system chose it.
    let at = SocketAddr::new(at.ip(), tcp.local_addr()?.port());
    Ok(Sockets { udp: UdpSocket::bind(at).await?, tcp })
}

impl Sockets {
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    pub(super) async fn serve(self, records: Latest) -> io::Result<()> {
        let Self { udp, tcp } = self;
        tokio::select! {
            ended = datagrams(udp, records.clone()) => ended,
            ended = connections(tcp, records) => ended,
        }
    }
}

async fn datagrams(socket: UdpSocket, records: Latest) -> io::Result<()> {
    let mut packet = [0; QUESTION_LIMIT];
    loop {
        // Errors are those of earlier answers: whom nobody listens at any more.
        let Ok((length, from)) = socket.recv_from(&mut packet).await else { continue };
        let known = records.borrow().clone();
        let question = packet.get(..length).unwrap_or_default();
        if let Some(reply) = answer(question, known.as_deref(), Transport::Udp)
            && let Err(error) = socket.send_to(&reply, from).await
        {
            tracing::debug!(%from, %error, "not answered");
        }
    }
}

async fn connections(listener: TcpListener, records: Latest) -> io::Result<()> {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted now");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let records = records.clone();
        tokio::spawn(async move {
            if let Err(error) = connection(stream, &records).await {
                tracing::debug!(%from, %error, "connection ended");
            }
            drop(place);
        });
    }
}

async fn connection(mut stream: TcpStream, records: &Latest) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut packet = Vec::new();
    loop {
        let length = match timeout(IDLE, stream.read_u16()).await? {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            length => usize::from(length?),
        };
        if length > QUESTION_LIMIT {
            return Err(io::Error::other(format!("a question of {length} bytes")));
        }
        packet.resize(length, 0);
        timeout(IDLE, stream.read_exact(&mut packet)).await??;
        let known = records.borrow().clone();
        let Some(reply) = answer(&packet, known.as_deref(), Transport::Tcp) else {
            return Err(io::Error::other("a packet that is no question"));
        };
        let length = u16::try_from(reply.len()).map_err(io::Error::other)?;
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend(reply);
        timeout(IDLE, stream.write_all(&framed)).await??;
    }
}
