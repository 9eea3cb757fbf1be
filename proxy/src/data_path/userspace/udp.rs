//! UDP: a task a frontend that receives, and a task a session that returns what the backend answers.
//!
//! A session is a client of a frontend. It has a socket of its own, connected to the backend: that is what tells the
//! replies of sessions apart, and what brings ICMP errors back.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use proxy_rules::DropReason;
use socket2::SockRef;
use tokio::{net::UdpSocket, select, sync::watch, task::coop::consume_budget};
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    count::Direction,
    frontend::{Carry, Decision, Live},
    tasks::Spawner,
};

mod batch;
mod relay;
mod session;
#[cfg(test)]
mod tests;

use session::Session;

/// One listening UDP socket with its sessions.
pub(super) struct Service {
    socket: UdpSocket,
    live: watch::Receiver<Arc<Live>>,
    shared: Arc<Shared>,
    spawner: Spawner,
    sessions: Mutex<HashMap<SocketAddr, Arc<Session>>>,
    accepting: AtomicBool,
}

impl Service {
    /// A service without sessions.
    pub(super) fn new(
        socket: UdpSocket,
        live: watch::Receiver<Arc<Live>>,
        shared: Arc<Shared>,
        spawner: Spawner,
    ) -> Self {
        let (sessions, accepting) = (Mutex::default(), AtomicBool::new(true));
        Self { socket, live, shared, spawner, sessions, accepting }
    }

    /// Whether datagrams of unknown clients start sessions.
    pub(super) fn set_accepting(&self, accepting: bool) {
        self.accepting.store(accepting, Relaxed);
    }

    /// Ends the sessions whose rule or backend has been removed. The clients' next datagrams start new ones.
    pub(super) fn rehome(&self) {
        let live = Arc::clone(&self.live.borrow());
        self.sessions().retain(|_, session| session.is_kept(&live) || !session.end());
    }

    /// Receives until told to stop.
    pub(super) async fn receive(self: Arc<Self>, stop: CancellationToken) {
        loop {
            consume_budget().await;
            let interest = select! {
                biased;
                () = stop.cancelled() => return,
                ready = batch::ready(&self.socket) => match ready {
                    Ok(interest) => interest,
                    Err(error) => {
                        tracing::warn!(%error, "UDP frontend stops");
                        return;
                    }
                },
            };
            let live = Arc::clone(&self.live.borrow());
            let received = batch::receive(&self.socket, interest, |payload, client| {
                if let Some(client) = client {
                    self.carry(&live, client, payload);
                }
            });
            match received {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    tracing::debug!(%error, "UDP frontend");
                }
                _ => {}
            }
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a client's datagram to its session's backend.
    fn carry(self: &Arc<Self>, live: &Live, client: SocketAddr, payload: &[u8]) {
        // Held while sending: when `rehome` returns, nothing is on its way to a removed backend.
        let mut sessions = self.sessions();
        let session = match sessions.get(&client) {
            Some(session) => session,
            None => match self.open(live, client) {
                Some(session) => sessions.entry(client).or_insert(session),
                None => return,
            },
        };
        session.send(payload, &self.shared);
    }

    /// Starts a session, or counts why not.
    fn open(self: &Arc<Self>, live: &Live, client: SocketAddr) -> Option<Arc<Session>> {
        let refused = |reason, tally| {
            self.shared.counters.dropped(reason, tally);
            None
        };
        if !self.accepting.load(Relaxed) {
            return refused(DropReason::NoFlow, None);
        }
        let (rule, carry, hash, tally) = match live.decide(client) {
            Decision::Refuse(reason, tally) => return refused(reason, tally),
            Decision::Carry { rule, carry, hash, tally } => (rule, carry, hash, tally),
        };
        let Some(permit) = self.shared.capacity.take(files(carry)) else {
            return refused(DropReason::FlowTableFull, Some(tally));
        };
        let Some(backend) = carry.candidates(hash).next() else {
            return refused(DropReason::NoBackend, Some(tally));
        };
        match Session::new(client, rule, backend, carry, tally, permit) {
            Ok(session) => {
                let session = Arc::new(session);
                tally.flow();
                let (service, started) = (Arc::clone(self), Arc::clone(&session));
                self.spawner.spawn(|stop| async move { started.run(&service, stop).await });
                Some(session)
            }
            Err(error) => {
                tracing::debug!(%rule, %client, %backend, %error, "no session");
                refused(session::refusal(&error), Some(tally))
            }
        }
    }

    /// Forgets a session that has ended by itself.
    fn close(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions();
        if sessions.get(&session.client).is_some_and(|current| Arc::ptr_eq(current, session)) {
            sessions.remove(&session.client);
        }
    }
}

/// Descriptors of a session: a relay is asked for on a connection.
fn files(carry: &Carry) -> u32 {
    if carry.socks5.is_some() { 2 } else { 1 }
}

/// Length of the IP packet that carries a datagram.
fn ip_length(payload: usize, peer: SocketAddr) -> u64 {
    let headers = if peer.is_ipv4() { 20 + 8 } else { 40 + 8 };
    (payload + headers) as u64
}

/// Sends a backend's datagram to the client, from the frontend's address.
fn reply(service: &Service, session: &Session, payload: &[u8]) {
    session.tally.packet(Direction::Reply, ip_length(payload.len(), session.client));
    // A full send buffer loses datagrams as a full queue in a network does.
    if let Err(error) = SockRef::from(&service.socket).send_to(payload, &session.client.into()) {
        tracing::trace!(client = %session.client, %error, "reply lost");
    }
}
