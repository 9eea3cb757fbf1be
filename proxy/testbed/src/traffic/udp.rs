//! UDP servers and clients.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::sys::socket::sockopt::RcvBufForce;

use crate::{DEADLINE, Namespace};

/// Room for seconds of datagrams: what a process without a processor does not take must not count as lost on the way.
fn hold_much(socket: &UdpSocket) {
    // Only root may; others keep the usual quarter of a second.
    let _usual = nix::sys::socket::setsockopt(socket, RcvBufForce, &(8 << 20));
}

/// What a [`UdpServer`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The datagram itself.
    Echo,
    /// `own-address peer-address`.
    Names,
    /// Nothing: datagrams are only counted.
    Nothing,
}

/// A UDP server, until dropped.
#[derive(Debug)]
pub struct UdpServer {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl UdpServer {
    /// Serves in the namespace.
    pub fn new(namespace: &Namespace, address: &str, answer: Answer) -> Result<Self> {
        let socket = namespace
            .enter(|| UdpSocket::bind(address))
            .with_context(|| format!("bind {address}"))?;
        hold_much(&socket);
        // How soon a dropped server notices.
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let own = socket.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let received = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&received);
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while !stopping.load(Ordering::Relaxed) {
                if let Ok((length, peer)) = socket.recv_from(&mut buffer) {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let _ = match answer {
                        Answer::Echo => socket.send_to(&buffer[..length], peer),
                        Answer::Names => socket.send_to(format!("{own} {peer}").as_bytes(), peer),
                        Answer::Nothing => Ok(0),
                    };
                }
            }
        });
        Ok(Self { stop, received, thread: Some(thread) })
    }

    /// How many datagrams have come.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A UDP socket connected to one server: only its answers arrive, and ICMP errors are reported.
#[derive(Debug)]
pub struct UdpClient {
    /// The socket.
    pub socket: UdpSocket,
}

impl UdpClient {
    /// A socket in the namespace.
    pub fn new(namespace: &Namespace, to: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => ([0; 4], 0).into(),
            SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
        };
        Self::bound(namespace, any, to)
    }

    /// A socket with a given own address.
    pub fn bound(namespace: &Namespace, from: SocketAddr, to: SocketAddr) -> io::Result<Self> {
        let socket = namespace.enter(|| UdpSocket::bind(from))?;
        hold_much(&socket);
        socket.connect(to)?;
        socket.set_read_timeout(Some(DEADLINE))?;
        Ok(Self { socket })
    }

    /// Sends a datagram and returns the answer.
    pub fn ask(&self, payload: &[u8]) -> io::Result<Vec<u8>> {
        self.socket.send(payload)?;
        let mut buffer = vec![0; 1 << 16];
        let length = self.socket.recv(&mut buffer)?;
        buffer.truncate(length);
        Ok(buffer)
    }

    /// The server's address and ours, as a server with [`Answer::Names`] sees them.
    pub fn names(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        let answer = String::from_utf8_lossy(&self.ask(b"?")?).into_owned();
        let mut words = answer.split(' ').map(str::parse);
        match (words.next(), words.next()) {
            (Some(Ok(server)), Some(Ok(seen))) => Ok((server, seen)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, answer)),
        }
    }

    /// Asks so often, one at a time; returns how many came back whole.
    pub fn echo(&self, count: usize, bytes: usize) -> io::Result<usize> {
        let mut whole = 0;
        for number in 0..count {
            let payload: Vec<u8> = (0..bytes).map(|i| (i + number) as u8).collect();
            whole += usize::from(self.ask(&payload)? == payload);
        }
        Ok(whole)
    }
}
