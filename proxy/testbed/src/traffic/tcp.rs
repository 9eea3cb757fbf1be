//! TCP servers and clients.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    thread::JoinHandle,
};

use anyhow::{Context as _, Result};
use socket2::SockRef;

use crate::{DEADLINE, Namespace};

/// A TCP server: answers each connection with a line `own-address peer-address`, then echoes. Stops accepting when
/// dropped; connections live on.
#[derive(Debug)]
pub struct TcpServer {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl TcpServer {
    /// Listens in the namespace.
    pub fn new(namespace: &Namespace, address: &str) -> Result<Self> {
        let listener = namespace
            .enter(|| TcpListener::bind(address))
            .with_context(|| format!("listen on {address}"))?;
        let accepting = listener.try_clone()?;
        let thread = std::thread::spawn(move || {
            while let Ok((stream, peer)) = accepting.accept() {
                std::thread::spawn(move || serve(stream, peer));
            }
        });
        Ok(Self { listener, thread: Some(thread) })
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        // On a listening socket this ends a blocked `accept`.
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, peer: SocketAddr) {
    let own = stream.local_addr().map_or_else(|_| String::new(), |own| own.to_string());
    let _ = stream.set_nodelay(true);
    if stream.write_all(format!("{own} {peer}\n").as_bytes()).is_err() {
        return;
    }
    let mut buffer = vec![0; 128 << 10];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

/// A connection to a [`TcpServer`].
#[derive(Debug)]
pub struct Client {
    /// The connection.
    pub stream: TcpStream,
    /// Where the server says that it is.
    pub server: SocketAddr,
    /// Where the server sees us.
    pub seen: SocketAddr,
}

impl Client {
    /// Connects from the namespace and reads the server's line.
    pub fn connect(namespace: &Namespace, to: SocketAddr) -> io::Result<Self> {
        Self::greet(namespace.enter(|| TcpStream::connect_timeout(&to, DEADLINE))?)
    }

    /// Connects from a given address.
    pub fn connect_from(
        namespace: &Namespace,
        from: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<Self> {
        let socket = namespace.enter(|| {
            socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::STREAM, None)
        })?;
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&to.into(), DEADLINE)?;
        Self::greet(socket.into())
    }

    fn greet(mut stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        let (mut line, mut byte) = (Vec::new(), [0]);
        loop {
            stream.read_exact(&mut byte)?;
            match byte {
                [b'\n'] => break,
                [byte] => line.push(byte),
            }
        }
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split(' ').map(str::parse);
        match (words.next(), words.next()) {
            (Some(Ok(server)), Some(Ok(seen))) => Ok(Self { stream, server, seen }),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, line.into_owned())),
        }
    }

    /// The address from which the server sees us.
    pub fn seen_ip(&self) -> IpAddr {
        self.seen.ip().to_canonical()
    }

    /// Sends and reads the same back, both at once, so that more than the buffers hold can go.
    pub fn echo(&mut self, bytes: usize) -> io::Result<()> {
        let sent: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut back = vec![0; bytes];
        let mut writer = self.stream.try_clone()?;
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| writer.write_all(&sent));
            let read = self.stream.read_exact(&mut back);
            let written = writing.join().map_err(|_| io::Error::other("the writer died"))?;
            match (read, written) {
                // A reset is told once, to whichever of the two comes first; the other sees an end or a broken pipe.
                (_, Err(written)) if written.kind() == io::ErrorKind::ConnectionReset => {
                    Err(written)
                }
                (read, written) => read.and(written),
            }
        })?;
        if back == sent {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "other bytes came back"))
        }
    }

    /// Ends the connection in both directions and waits for the server's end.
    pub fn close(mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        match self.stream.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "bytes after the end")),
        }
    }

    /// What the kernel knows about the connection.
    pub fn info(&self) -> io::Result<TcpInfo> {
        // SAFETY: all zero is a valid `tcp_info`.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `info`.
        let done = unsafe {
            libc::getsockopt(
                self.stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        match done {
            0 => Ok(TcpInfo {
                retransmits: info.tcpi_total_retrans,
                path_mtu: info.tcpi_pmtu,
                send_mss: info.tcpi_snd_mss,
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Part of the kernel's `tcp_info`.
#[derive(Clone, Copy, Debug)]
pub struct TcpInfo {
    /// Segments sent again.
    pub retransmits: u32,
    /// Path MTU, as it stands.
    pub path_mtu: u32,
    /// The largest segment that is sent, without options.
    pub send_mss: u32,
}
