//! Echo requests of both families over raw sockets; the kernel of the other side answers.

use std::{
    io::{self, Read as _},
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use socket2::{Domain, Protocol, Socket, Type};

use crate::Namespace;

static IDENTIFIER: AtomicU16 = AtomicU16::new(1);

/// A sender of echo requests.
#[derive(Debug)]
pub struct Pinger {
    socket: Socket,
    to: IpAddr,
    identifier: u16,
    sequence: u16,
}

impl Pinger {
    /// With an identifier of its own.
    pub fn new(namespace: &Namespace, to: IpAddr) -> io::Result<Self> {
        let (domain, protocol) = match to {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let socket = namespace.enter(|| Socket::new(domain, Type::RAW, Some(protocol)))?;
        Ok(Self { socket, to, identifier: IDENTIFIER.fetch_add(1, Ordering::Relaxed), sequence: 0 })
    }

    /// Forbids fragments of what is sent (IP_PMTUDISC_PROBE: whatever the path MTU is thought to be).
    pub fn dont_fragment(&self) -> io::Result<()> {
        let (level, option) = match self.to {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        };
        let value: libc::c_int = libc::IP_PMTUDISC_DO;
        // SAFETY: the kernel reads an int from `value`.
        let done = unsafe {
            libc::setsockopt(
                std::os::fd::AsRawFd::as_raw_fd(&self.socket),
                level,
                option,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends one request with so many bytes of data and waits for its answer; `None` if there is none in time.
    pub fn ping(&mut self, bytes: usize, timeout: Duration) -> io::Result<Option<Duration>> {
        self.sequence += 1;
        let (request, answer) = if self.to.is_ipv4() { (8, 0) } else { (128, 129) };
        let [[i0, i1], [s0, s1]] = [self.identifier.to_be_bytes(), self.sequence.to_be_bytes()];
        let mut packet = vec![request, 0, 0, 0, i0, i1, s0, s1];
        packet.extend((0..bytes).map(|i| i as u8));
        if self.to.is_ipv4() {
            // RFC 792; for ICMPv6 the kernel fills it in.
            let sum = checksum(&packet);
            packet[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        let start = Instant::now();
        self.socket.send_to(&packet, &SocketAddr::new(self.to, 0).into())?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left))?;
            let length = match self.socket.read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
            // A raw IPv4 socket shows the IP header, an IPv6 one does not.
            let skip = if self.to.is_ipv4() { usize::from(buffer[0] & 15) * 4 } else { 0 };
            let message = &buffer[skip..length];
            if message.len() == packet.len() && message[0] == answer && message[4..] == packet[4..]
            {
                return Ok(Some(start.elapsed()));
            }
        }
    }

    /// Sends so many requests, one at a time; returns how many were answered.
    pub fn pings(&mut self, count: usize, bytes: usize, timeout: Duration) -> io::Result<usize> {
        (0..count).try_fold(0, |answered, _| {
            Ok(answered + usize::from(self.ping(bytes, timeout)?.is_some()))
        })
    }
}

/// The Internet checksum (RFC 1071).
pub fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |b| u32::from(*b)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

impl std::ops::Deref for Pinger {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}
