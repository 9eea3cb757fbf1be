//! A UDP session: one client, one backend, one socket.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use proxy_rules::{DropReason, FlowState, Protocol, RuleId};
use socket2::{Domain, SockRef, Socket, Type};
use tokio::{
    net::UdpSocket,
    select,
    task::coop::consume_budget,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    Service, batch, ip_length,
    relay::{self, Relay},
    reply,
};
use crate::data_path::userspace::{
    Shared,
    count::{Direction, Permit, Tally},
    frontend::{Carry, Live},
    socks,
};

/// How the backend is reached.
enum Link {
    Direct(UdpSocket),
    Relayed(Relay),
}

/// One client's datagrams to one backend and back.
pub(super) struct Session {
    pub(super) client: SocketAddr,
    pub(super) tally: Arc<Tally>,
    rule: RuleId,
    backend: SocketAddr,
    link: Link,
    started: Instant,
    /// Milliseconds after `started` of the last datagram in either direction.
    last: AtomicU64,
    replied: AtomicBool,
    ended: CancellationToken,
    _permit: Permit,
}

impl Session {
    /// Opens the socket towards the backend.
    pub(super) fn new(
        client: SocketAddr,
        rule: &RuleId,
        backend: SocketAddr,
        carry: &Carry,
        tally: &Arc<Tally>,
        permit: Permit,
    ) -> io::Result<Self> {
        let link = match carry.socks5 {
            None => Link::Direct(direct(backend, carry.source)?),
            Some(server) => Link::Relayed(Relay::new(server, backend)),
        };
        Ok(Self {
            client,
            tally: Arc::clone(tally),
            rule: rule.clone(),
            backend,
            link,
            started: Instant::now(),
            last: AtomicU64::new(0),
            replied: AtomicBool::new(false),
            ended: CancellationToken::new(),
            _permit: permit,
        })
    }

    /// Whether rule and backend are still there.
    pub(super) fn is_kept(&self, live: &Live) -> bool {
        live.keeps(&self.rule, self.backend)
    }

    /// Ends the session; true.
    pub(super) fn end(&self) -> bool {
        self.ended.cancel();
        true
    }

    /// Sends a datagram of the client's to the backend.
    pub(super) fn send(&self, payload: &[u8], shared: &Shared) {
        self.touch();
        self.tally.packet(Direction::Original, ip_length(payload.len(), self.client));
        let socket = match &self.link {
            Link::Direct(socket) => socket,
            Link::Relayed(relay) => {
                if !relay.send(payload) {
                    shared.counters.dropped(DropReason::TooBig, Some(&self.tally));
                }
                return;
            }
        };
        // Not tokio's `try_send`: a new socket would be reported as blocked until the event loop has seen it.
        let socket = SockRef::from(socket);
        match socket.send(payload) {
            // The kernel tells of an earlier datagram's ICMP error and has not sent this one.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.refused(shared);
                let _resent = socket.send(payload);
            }
            Err(error) => tracing::trace!(backend = %self.backend, %error, "datagram lost"),
            Ok(_) => {}
        }
    }

    /// Returns the backend's answers until the session is idle, is re-homed, or the path ends.
    pub(super) async fn run(self: Arc<Self>, service: &Service, stop: CancellationToken) {
        let opened;
        let (socket, mut held) = match &self.link {
            Link::Direct(socket) => (socket, None),
            Link::Relayed(relay) => {
                let open = select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = self.ended.cancelled() => return,
                    open = relay.open() => open,
                };
                match open {
                    Ok((held, socket)) => {
                        opened = socket;
                        (&*opened, Some(held))
                    }
                    Err(error) => {
                        tracing::debug!(rule = %self.rule, backend = %self.backend, %error, "no relay");
                        self.refused(&service.shared);
                        return service.close(&self);
                    }
                }
            }
        };
        loop {
            consume_budget().await;
            let ready = select! {
                biased;
                () = stop.cancelled() => return,
                () = self.ended.cancelled() => return,
                ready = batch::ready(socket) => ready,
                // The relay lasts as long as the connection that it was asked for on.
                () = relay::ended(&mut held) => break,
                () = sleep(self.remaining()) => {
                    if self.remaining().is_zero() { break }
                    continue;
                }
            };
            let Ok(interest) = ready else { break };
            let received = batch::receive(socket, interest, |bytes, _| {
                if let Some(payload) = self.payload(bytes) {
                    reply(service, &self, payload);
                }
            });
            match received {
                Ok(_) => {
                    self.replied.store(true, Relaxed);
                    self.touch();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    self.refused(&service.shared);
                }
                Err(error) => tracing::debug!(backend = %self.backend, %error, "session"),
            }
        }
        service.close(&self);
    }

    /// What the backend has sent, of what has come.
    fn payload<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        match &self.link {
            Link::Direct(_) => Some(bytes),
            Link::Relayed(_) => {
                let (from, payload) = socks::datagram(bytes)?;
                (from == self.backend).then_some(payload)
            }
        }
    }

    /// The backend's host has answered that nobody listens. The client cannot be told (that takes a raw socket), so
    /// it is counted.
    fn refused(&self, shared: &Shared) {
        tracing::debug!(rule = %self.rule, client = %self.client, backend = %self.backend, "port unreachable");
        shared.counters.dropped(DropReason::BackendGone, Some(&self.tally));
    }

    fn touch(&self) {
        self.last.store(self.started.elapsed().as_millis() as u64, Relaxed);
    }

    /// How long the session may still be idle.
    fn remaining(&self) -> Duration {
        let state =
            if self.replied.load(Relaxed) { FlowState::Replied } else { FlowState::Unreplied };
        let deadline =
            Duration::from_millis(self.last.load(Relaxed)) + state.timeout(Protocol::Udp);
        deadline.saturating_sub(self.started.elapsed())
    }
}

/// A socket connected to the backend.
fn direct(backend: SocketAddr, source: Option<IpAddr>) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(backend), Type::DGRAM.nonblocking(), None)?;
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect(&backend.into())?;
    UdpSocket::from_std(socket.into())
}

/// What it counts as when a session cannot be opened.
pub(super) fn refusal(error: &io::Error) -> DropReason {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
            DropReason::FlowTableFull
        }
        Some(libc::EAGAIN | libc::EADDRINUSE) => DropReason::PortsExhausted,
        _ => DropReason::NoLink,
    }
}
