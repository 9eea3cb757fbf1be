//! The user-space data path: sockets of this process, for where neither eBPF nor nftables may be used.
//!
//! Needs no capability. TCP is accepted here and connected again towards the backend; UDP has a session a client.
//! What that means for the rest of the contract:
//! - The backend sees this host's address: masquerade is all there is. Where a rule wants the client's address kept,
//!   [`DataPath::notes`] says that it is lost; the PROXY protocol can tell the backend.
//! - Bytes of TCP are payload and packets are reads: segments are not visible to sockets. Datagrams count as on the
//!   other paths.
//! - Flows are not handed over: a live socket's sequence numbers cannot be given to a packet path (`TCP_REPAIR` takes
//!   them, but needs `CAP_NET_ADMIN`, and the two connections are numbered independently), nor taken from one. So
//!   [`DataPath::flows`] is empty and [`DataPath::adopt`] takes none; after [`Stance::KnownFlows`], connections end
//!   here in their own time while another path takes the new ones.

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use proxy_rules::{Flow, RuleTable, Snapshot};
use tokio::{
    net::{TcpListener, UdpSocket},
    runtime::{Builder, Handle, Runtime},
    sync::watch,
};

use super::{ApplyError, CounterError, DataPath, Kind, Stance, Unsupported};

mod bind;
pub(crate) mod client_header;
mod count;
mod frontend;
mod plan;
pub(crate) mod socks;
pub(crate) mod step;
mod tasks;
mod tcp;
pub mod through;
mod udp;

use count::{Capacity, Counters};
use frontend::{Frontend, Live};
use plan::{Listen, Plan, Transport};
use tasks::Tasks;
use through::{DOORS, Through};

/// What connections and sessions of all listeners share.
#[derive(Debug, Default)]
struct Shared {
    counters: Counters,
    capacity: Arc<Capacity>,
}

/// One descriptor in so many is for a pipe.
const PIPE_SHARE: u32 = 4;

/// What tailscaled's own forwarding does not do.
const HALF_CLOSE: &str = "without a TUN device connections pass through tailscaled, which ends them whole when one side has \
                          ended its direction: what the other side would still say is lost";

/// Descriptors that the rest of the process needs.
const OTHER_FILES: u32 = 64;

/// The user-space data path.
pub struct UserspacePath {
    /// How many files the process may open.
    files: u32,
    runtime: Option<Runtime>,
    listeners: BTreeMap<Listen, Listener>,
    notes: Vec<String>,
    stance: Stance,
    shared: Arc<Shared>,
    connections: Tasks,
    /// How the tailnet is reached, if not through a device.
    through: Option<Arc<Through>>,
}

/// A frontend in force.
struct Listener {
    live: watch::Sender<Arc<Live>>,
    foreign: bool,
    service: Option<Arc<udp::Service>>,
    /// The tasks that own the listening socket. TCP has none while it takes no new flows.
    tasks: Option<Tasks>,
}

/// A socket that is ready but not served yet.
struct Opened {
    socket: OpenSocket,
    foreign: bool,
    /// Where it is, if it is a door.
    door: Option<SocketAddr>,
}

enum OpenSocket {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl UserspacePath {
    /// A path that carries nothing yet. Raises the process's soft limit of open files to the hard one: a connection
    /// takes two.
    pub fn new() -> io::Result<Self> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        let files = u32::try_from(hard).unwrap_or(u32::MAX);
        tcp::pipe::limit(files / PIPE_SHARE / 2);
        let runtime =
            Builder::new_multi_thread().thread_name("userspace-path").enable_all().build()?;
        Ok(Self {
            files,
            connections: Tasks::new(runtime.handle().clone()),
            runtime: Some(runtime),
            listeners: BTreeMap::new(),
            notes: Vec::new(),
            stance: Stance::All,
            shared: Arc::default(),
            through: None,
        })
    }

    /// The same where there is no TUN device.
    pub fn through(mut self, through: Arc<Through>) -> Self {
        self.through = Some(through);
        self
    }

    fn plan(&self, table: &RuleTable) -> Result<Plan, Unsupported> {
        Plan::new(table, self.through.as_ref().map(|through| through.socks5()))
    }

    /// Where to listen for a frontend: at its address, or behind a door.
    fn place(&self, listen: Listen, frontend: &Frontend) -> Option<Listen> {
        let is_remote = self.through.is_some() && Plan::is_from_tailnet(frontend);
        is_remote.then_some(Listen { address: (DOORS, 0).into(), ..listen })
    }

    fn handle(&self) -> Handle {
        self.connections.spawner().runtime().clone()
    }

    /// Opens a socket and registers it with the runtime: all that can fail about a listener.
    fn open(&self, listen: Listen, frontend: &Frontend) -> io::Result<Opened> {
        let _runtime = self.handle().enter();
        let behind = self.place(listen, frontend);
        let bound = bind::bind(behind.unwrap_or(listen))?;
        let foreign = bound.foreign;
        let door = match behind {
            Some(_) => bound.socket.local_addr()?.as_socket(),
            None => None,
        };
        let socket = match listen.transport {
            Transport::Tcp => OpenSocket::Tcp(TcpListener::from_std(bound.listen()?)?),
            Transport::Udp => OpenSocket::Udp(UdpSocket::from_std(bound.socket.into())?),
        };
        Ok(Opened { socket, foreign, door })
    }

    fn install(&mut self, listen: Listen, frontend: Frontend, opened: Opened) {
        let live = Arc::new(Live::new(listen, frontend, &self.shared.counters));
        let (live, _) = watch::channel(live);
        let mut listener = Listener { live, foreign: opened.foreign, service: None, tasks: None };
        match opened.socket {
            OpenSocket::Tcp(_) if self.stance != Stance::All => {}
            OpenSocket::Tcp(socket) => self.accept(&mut listener, listen, socket, opened.door),
            OpenSocket::Udp(socket) => {
                let tasks = Tasks::new(self.handle());
                let service = Arc::new(udp::Service::new(
                    socket,
                    listener.live.subscribe(),
                    Arc::clone(&self.shared),
                    tasks.spawner().clone(),
                ));
                service.set_accepting(self.stance == Stance::All);
                tasks.spawner().spawn(|stop| Arc::clone(&service).receive(stop));
                listener.service = Some(service);
                listener.tasks = Some(tasks);
            }
        }
        self.listeners.insert(listen, listener);
    }

    fn accept(
        &self,
        listener: &mut Listener,
        listen: Listen,
        socket: TcpListener,
        door: Option<SocketAddr>,
    ) {
        let tasks = Tasks::new(self.handle());
        let through = door.and(self.through.clone());
        if let (Some(through), Some(door)) = (&through, door) {
            through.open(listen.address, door, listener.live.subscribe());
        }
        let context = tcp::Context {
            live: listener.live.subscribe(),
            shared: Arc::clone(&self.shared),
            connections: self.connections.spawner().clone(),
            door: through.map(|through| (through, listen.address)),
        };
        tasks.spawner().spawn(|stop| context.accept(socket, stop));
        listener.tasks = Some(tasks);
    }
}

impl Listener {
    /// Puts other rules in force. Live flows that they do not keep end.
    fn update(&self, listen: Listen, frontend: Frontend, counters: &Counters) {
        if self.live.borrow().is(&frontend) {
            return;
        }
        self.live.send_replace(Arc::new(Live::new(listen, frontend, counters)));
        if let Some(service) = &self.service {
            service.rehome();
        }
    }

    /// Closes the listening socket, and the sessions that reply from it. When the listener is dropped, so is the
    /// sender of its rules, and connections see that theirs is gone.
    fn close(&mut self) {
        self.service = None;
        if self.tasks.take().is_some_and(|tasks| !tasks.end()) {
            tracing::warn!("a listening socket is still open after five seconds");
        }
    }
}

/// Closes a listener, and its door first: nobody is led to a socket that is gone.
fn close(listen: Listen, listener: &mut Listener, through: Option<&Through>) {
    if let Some(through) = through {
        through.close(listen.address, listen.transport == Transport::Tcp);
    }
    listener.close();
}

fn bind_step(listen: Listen) -> impl FnOnce(io::Error) -> ApplyError {
    move |error| ApplyError::step(format!("listening on {listen}"), error)
}

impl DataPath for UserspacePath {
    fn kind(&self) -> Kind {
        Kind::Userspace
    }

    fn supports(&self, table: &RuleTable) -> Result<(), Unsupported> {
        let refused =
            |what| move |error: io::Error| Unsupported::Kernel { what, source: Box::new(error) };
        let plan = self.plan(table)?;
        for address in plan.sources() {
            bind::source(address)
                .map_err(refused(format!("{address} as source: it is not on this host")))?;
        }
        let is_new = |(listen, _): &(&Listen, &Frontend)| !self.listeners.contains_key(listen);
        for (listen, frontend) in plan.frontends.iter().filter(is_new) {
            let place = self.place(*listen, frontend).unwrap_or(*listen);
            bind::bind(place).map_err(refused(format!("listening on {listen}")))?;
        }
        Ok(())
    }

    fn apply(&mut self, table: &RuleTable) -> Result<(), ApplyError> {
        let plan = self.plan(table)?;
        let mut opened = BTreeMap::new();
        let is_new = |(listen, _): &(&Listen, &Frontend)| !self.listeners.contains_key(listen);
        for (listen, frontend) in plan.frontends.iter().filter(is_new) {
            opened.insert(*listen, self.open(*listen, frontend).map_err(bind_step(*listen))?);
        }
        // From here on nothing fails.
        let others = OTHER_FILES + self.files / PIPE_SHARE + plan.frontends.len() as u32;
        self.shared.capacity.set_max(plan.max_flows, self.files.saturating_sub(others));
        self.notes = plan.notes;
        let gone = |listen: &Listen, _: &mut Listener| !plan.frontends.contains_key(listen);
        for (listen, mut listener) in self.listeners.extract_if(.., gone) {
            close(listen, &mut listener, self.through.as_deref());
        }
        for (listen, frontend) in plan.frontends {
            match (self.listeners.get(&listen), opened.remove(&listen)) {
                (Some(listener), _) => listener.update(listen, frontend, &self.shared.counters),
                (None, Some(opened)) => self.install(listen, frontend, opened),
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn counters(&self) -> Result<Snapshot, CounterError> {
        let lives = self.listeners.values().map(|listener| Arc::clone(&listener.live.borrow()));
        let Shared { counters, capacity } = &*self.shared;
        Ok(Snapshot {
            series: lives.flat_map(|live| live.counts()).collect(),
            drops: counters.drops(),
            live_flows: Some(u64::from(capacity.live())),
            max_flows: Some(u64::from(capacity.max())),
        })
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        for (listen, mut listener) in std::mem::take(&mut self.listeners) {
            close(listen, &mut listener, self.through.as_deref());
        }
        self.notes.clear();
        let connections = Tasks::new(self.handle());
        if std::mem::replace(&mut self.connections, connections).end() {
            Ok(())
        } else {
            Err(ApplyError::step("closing connections", io::Error::from(io::ErrorKind::TimedOut)))
        }
    }

    fn flows(&self) -> Result<Vec<Flow>, CounterError> {
        Ok(Vec::new())
    }

    fn adopt(&mut self, _flows: &[Flow]) -> Result<usize, ApplyError> {
        Ok(0)
    }

    /// `KnownFlows` closes the listening sockets and lets live flows go on: how this path drains.
    fn set_stance(&mut self, stance: Stance) -> Result<(), ApplyError> {
        let mut opened = BTreeMap::new();
        if stance == Stance::All {
            for (listen, listener) in &self.listeners {
                if listener.tasks.is_none() {
                    let live = Arc::clone(&listener.live.borrow());
                    let open = self.open(*listen, live.frontend()).map_err(bind_step(*listen))?;
                    opened.insert(*listen, open);
                }
            }
        }
        self.stance = stance;
        let mut listeners = std::mem::take(&mut self.listeners);
        for (listen, listener) in &mut listeners {
            match (&listener.service, opened.remove(listen)) {
                (Some(service), _) => service.set_accepting(stance == Stance::All),
                (None, Some(Opened { socket: OpenSocket::Tcp(socket), door, .. })) => {
                    self.accept(listener, *listen, socket, door);
                }
                (None, _) if stance != Stance::All => {
                    close(*listen, listener, self.through.as_deref());
                }
                (None, _) => {}
            }
        }
        self.listeners = listeners;
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let foreign = self.listeners.iter().filter(|(_, listener)| listener.foreign);
        let note = |(listen, _)| {
            format!(
                "{listen}: the address is not on this host; traffic must be routed here as local"
            )
        };
        let through = self.through.as_ref().map(|_| HALF_CLOSE.to_owned());
        let notes = self.notes.iter().cloned().chain(through).chain(foreign.map(note));
        notes.chain(self.shared.capacity.shortage()).collect()
    }
}

impl Drop for UserspacePath {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(%error, "user-space path");
        }
        // A plain drop would block, which a caller's async context forbids.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
