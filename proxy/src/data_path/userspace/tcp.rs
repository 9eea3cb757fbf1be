//! TCP: a task a listener that accepts, and a task a connection.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use proxy_rules::{DropReason, RuleId};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    select,
    sync::watch,
};
use tokio_util::sync::CancellationToken;

use super::{
    Shared, client_header,
    count::{Permit, Tally},
    frontend::{Carry, Decision, Live},
    socks, step,
    tasks::Spawner,
    through::Through,
};

mod dial;
pub(super) mod pipe;
pub(super) mod proxy_header;
mod relay;

/// Finds peers that vanished without a word: after a minute of silence, four probes.
const KEEP_ALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_mins(1))
    .with_interval(Duration::from_secs(15))
    .with_retries(4);

/// Pause after the process ran out of descriptors; clients wait in the accept queue meanwhile.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(20);

/// How long tailscaled may take to say whose connection it forwards: it has connected to say it.
const HEADER_PATIENCE: Duration = Duration::from_secs(5);

/// tailscaled's SOCKS5 server ends a connection when one side has ended its direction. So the end of a client's is kept
/// from it for as long as the backend answers without such a pause.
const HOLD: Duration = Duration::from_secs(2);

/// What a connection takes of the process's descriptors.
const DESCRIPTORS: u32 = 2;

/// What an accepting task needs besides its socket.
#[derive(Clone)]
pub(super) struct Context {
    /// The listener's rules; closed when the listener is removed.
    pub(super) live: watch::Receiver<Arc<Live>>,
    /// The path's.
    pub(super) shared: Arc<Shared>,
    /// Where connections run: they outlive the listener.
    pub(super) connections: Spawner,
    /// The listener is a door of this frontend.
    pub(super) door: Option<(Arc<Through>, SocketAddr)>,
}

impl Context {
    /// Accepts until told to stop. Connections go on.
    pub(super) async fn accept(self, listener: TcpListener, stop: CancellationToken) {
        loop {
            let accepted = select! {
                biased;
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, client)) => match &self.door {
                    None => self.start(&self.live, stream, client, None),
                    Some((through, frontend)) => self.admit(through, *frontend, stream, client),
                },
                Err(error) if is_exhausted(&error) => {
                    if self.shared.capacity.exhausted() {
                        tracing::warn!(%error, "cannot accept connections: raise the limit of open files");
                    }
                    select! {
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(DESCRIPTOR_PAUSE) => {}
                    }
                }
                // The client has given up while it waited.
                Err(error) => tracing::debug!(%error, "accept"),
            }
        }
    }

    /// Lets tailscaled say whose connection it forwards, then goes on as if it had come directly.
    fn admit(
        &self,
        through: &Arc<Through>,
        frontend: SocketAddr,
        mut stream: TcpStream,
        peer: SocketAddr,
    ) {
        let refuse = |stream: &TcpStream, reason| {
            self.shared.counters.dropped(reason, None);
            reset(stream);
        };
        if !peer.ip().is_loopback() {
            return refuse(&stream, DropReason::Rejected);
        }
        let Some(permit) = self.shared.capacity.take(DESCRIPTORS) else {
            return refuse(&stream, DropReason::FlowTableFull);
        };
        let (context, through) = (self.clone(), Arc::clone(through));
        self.connections.spawn(|stop| async move {
            let client = select! {
                client = step::read(&mut stream, HEADER_PATIENCE, client_header::client) => client,
                () = stop.cancelled() => return reset(&stream),
            };
            let live = client.as_ref().ok().and_then(|client| through.called(frontend, client.ip()));
            match (client, live) {
                (Ok(client), Some(live)) => context.start(&live, stream, client, Some(permit)),
                (Ok(client), None) => {
                    tracing::debug!(%client, %frontend, "no rule for this family");
                    context.shared.counters.dropped(DropReason::Rejected, None);
                    reset(&stream);
                }
                (Err(error), _) => {
                    tracing::debug!(%peer, %frontend, %error, "whose connection it is was not told");
                    context.shared.counters.dropped(DropReason::Malformed, None);
                    reset(&stream);
                }
            }
        });
    }

    /// Decides about a new connection, and starts to carry it.
    fn start(
        &self,
        live: &watch::Receiver<Arc<Live>>,
        stream: TcpStream,
        client: SocketAddr,
        permit: Option<Permit>,
    ) {
        let mut live = live.clone();
        let rules = Arc::clone(&live.borrow_and_update());
        let (reason, tally) = match rules.decide(client) {
            Decision::Refuse(reason, tally) => (reason, tally),
            Decision::Carry { rule, carry, hash, tally } => {
                match permit.or_else(|| self.shared.capacity.take(DESCRIPTORS)) {
                    None => (DropReason::FlowTableFull, Some(tally)),
                    Some(permit) => {
                        let connection = Connection {
                            stream,
                            client,
                            frontend: rules.listen().address,
                            rule: rule.clone(),
                            carry: Arc::clone(carry),
                            hash,
                            tally: Arc::clone(tally),
                            shared: Arc::clone(&self.shared),
                            _permit: permit,
                        };
                        return self.connections.spawn(|stop| connection.run(live, stop));
                    }
                }
            }
        };
        self.shared.counters.dropped(reason, tally);
        reset(&stream);
    }
}

fn is_exhausted(error: &io::Error) -> bool {
    let exhausted = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| exhausted.contains(&code))
}

/// Makes closing the socket send a reset instead of an orderly end.
fn reset(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "SO_LINGER");
    }
}

/// What both sockets of a connection are set to: no delay, since the sender has already decided what a segment is.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_keepalive(&KEEP_ALIVE)
}

/// An accepted connection.
struct Connection {
    stream: TcpStream,
    client: SocketAddr,
    frontend: SocketAddr,
    rule: RuleId,
    carry: Arc<Carry>,
    hash: u32,
    tally: Arc<Tally>,
    shared: Arc<Shared>,
    _permit: Permit,
}

impl Connection {
    async fn run(self, mut live: watch::Receiver<Arc<Live>>, stop: CancellationToken) {
        let dialled = select! {
            dialled = self.dial() => dialled,
            () = stop.cancelled() => return reset(&self.stream),
        };
        let (stream, backend) = match dialled {
            Ok(dialled) => dialled,
            Err(reason) => {
                self.shared.counters.dropped(reason, Some(&self.tally));
                return reset(&self.stream);
            }
        };
        self.tally.flow();
        let hold = self.carry.socks5.map(|_| HOLD);
        let relayed = select! {
            relayed = relay::relay(&self.stream, &stream, &self.tally, hold) => relayed,
            () = self.gone(&mut live, backend) => {
                self.shared.counters.dropped(DropReason::BackendGone, Some(&self.tally));
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            () = stop.cancelled() => Err(io::ErrorKind::ConnectionAborted.into()),
        };
        if let Err(error) = relayed {
            tracing::debug!(client = %self.client, %backend, %error, "connection reset");
            reset(&self.stream);
            reset(&stream);
        }
    }

    /// Connects to the first backend that accepts, beginning with the chosen one.
    async fn dial(&self) -> Result<(TcpStream, SocketAddr), DropReason> {
        let mut reason = DropReason::NoBackend;
        if let Err(error) = tune(&self.stream) {
            tracing::debug!(client = %self.client, %error, "client socket");
        }
        for backend in self.carry.candidates(self.hash) {
            match self.dial_one(backend).await {
                Ok(stream) => return Ok((stream, backend)),
                Err(error) => {
                    if is_exhausted(&error) {
                        self.shared.capacity.exhausted();
                        reason = DropReason::FlowTableFull;
                    }
                    tracing::debug!(rule = %self.rule, %backend, %error, "backend does not accept");
                }
            }
        }
        Err(reason)
    }

    async fn dial_one(&self, backend: SocketAddr) -> io::Result<TcpStream> {
        let stream = match self.carry.socks5 {
            None => dial::connect(backend, self.carry.source).await?,
            Some(server) => socks::connect(server, backend).await?,
        };
        tune(&stream)?;
        if self.carry.proxy_protocol {
            dial::greet(&stream, &proxy_header::encode(self.client, self.frontend)).await?;
        }
        Ok(stream)
    }

    /// Resolves when the rule or the backend has been removed.
    async fn gone(&self, live: &mut watch::Receiver<Arc<Live>>, backend: SocketAddr) {
        while live.changed().await.is_ok() {
            if !live.borrow_and_update().keeps(&self.rule, backend) {
                return;
            }
        }
    }
}
