//! Datagrams to a backend through tailscaled's SOCKS5 server.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use socket2::SockRef;
use tokio::net::{TcpStream, UdpSocket};

use crate::data_path::userspace::socks;

/// The longest datagram that tailscaled relays, its header included: it cuts longer ones off.
const LONGEST: usize = 8 << 10;

/// Datagrams that wait while the relay is asked for.
const WAITING: usize = 16;

/// A relay of tailscaled's for one session.
pub(super) struct Relay {
    server: SocketAddr,
    header: Vec<u8>,
    state: Mutex<State>,
}

enum State {
    Waiting(Vec<Vec<u8>>),
    Open(Arc<UdpSocket>),
}

impl Relay {
    /// To this backend; not asked for yet.
    pub(super) fn new(server: SocketAddr, backend: SocketAddr) -> Self {
        let header = socks::datagram_header(backend);
        Self { server, header, state: Mutex::new(State::Waiting(Vec::new())) }
    }

    /// Sends a datagram, or keeps it until the relay is there; false if it is too long. One too many is lost, as in a
    /// network's queue.
    pub(super) fn send(&self, payload: &[u8]) -> bool {
        let datagram = [&self.header, payload].concat();
        if datagram.len() > LONGEST {
            return false;
        }
        match &mut *self.state() {
            State::Open(socket) => send(socket, &datagram),
            State::Waiting(waiting) if waiting.len() < WAITING => waiting.push(datagram),
            State::Waiting(_) => {}
        }
        true
    }

    /// Asks for the relay and sends what waits. It lasts as long as the connection.
    pub(super) async fn open(&self) -> io::Result<(TcpStream, Arc<UdpSocket>)> {
        let (held, socket) = socks::associate(self.server).await?;
        let socket = Arc::new(socket);
        let mut state = self.state();
        if let State::Waiting(waiting) = &*state {
            for datagram in waiting {
                send(&socket, datagram);
            }
        }
        *state = State::Open(Arc::clone(&socket));
        drop(state);
        Ok((held, socket))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Not tokio's `try_send`: a new socket would be reported as blocked until the event loop has seen it.
fn send(socket: &UdpSocket, datagram: &[u8]) {
    if let Err(error) = SockRef::from(socket).send(datagram) {
        tracing::trace!(%error, "datagram lost");
    }
}

/// Resolves when the connection of a relay has ended; never, if there is none.
pub(super) async fn ended(held: &mut Option<TcpStream>) {
    let Some(stream) = held else { return std::future::pending().await };
    loop {
        if stream.readable().await.is_err() {
            return;
        }
        match stream.try_read(&mut [0; 16]) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return,
        }
    }
}
