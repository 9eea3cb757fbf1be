//! `tailscaled`, started, watched and ended.
//!
//! It runs in a process group of its own and is started again when it ends: traffic that the data path carries does not need
//! it, and neither does the agent. What it prints goes to our log. Its socket is waited for, not polled.

pub mod init;
mod log;
pub mod login;
mod mask;
pub mod plan;
pub mod said;
pub mod tun;

mod socket;
mod spawn;
mod supervise;

use std::{
    fmt,
    path::PathBuf,
    process::ExitStatus,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time,
};

use self::{log::Relay, spawn::Spawner};
pub use self::{
    login::{Cli, CliError},
    plan::{Netfilter, Options, Plan, Programs},
    said::Said,
    tun::{TunUnavailable, Why},
};

/// A supervised `tailscaled`. When this is dropped it is killed; [`Tailscaled::stop`] lets it end in order.
#[derive(Debug)]
pub struct Tailscaled {
    shared: Arc<Shared>,
    state: watch::Receiver<State>,
    orders: mpsc::Sender<Order>,
}

#[derive(Debug)]
struct Shared {
    plan: Plan,
    spawner: Spawner,
    relay: Relay,
}

/// What the supervisor is told.
#[derive(Debug)]
enum Order {
    Stop { deadline: Duration, done: oneshot::Sender<()> },
    Restart,
}

/// How it is.
#[derive(Clone, Debug)]
pub struct State {
    /// What it does.
    pub phase: Phase,
    /// Its process, while there is one.
    pub pid: Option<u32>,
    /// How often it was started again, after an end that nobody asked for or by [`Restarter::restart`].
    pub restarts: u64,
    /// How it last ended, whether asked to or not.
    pub last_exit: Option<Arc<Exit>>,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The process is there, its socket is not.
    Starting,
    /// The socket takes connections.
    Up,
    /// It ended, and is started again after this long.
    Restarting {
        /// How long the pause is.
        after: Duration,
    },
    /// It was asked to end.
    Stopping,
    /// It ended as asked.
    Stopped,
}

/// An end.
#[derive(Clone, Debug)]
pub struct Exit {
    /// When.
    pub at: Instant,
    /// How the process ended; `None` if it could not be started or waited for.
    pub status: Option<ExitStatus>,
    /// Whether it had to be killed, since it did not end in time.
    pub killed: bool,
    /// What it printed first and last.
    pub said: Said,
}

/// Why a `tailscaled` ended by itself, as far as its output tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It does not understand its arguments; another start will not help.
    Arguments,
    /// It could not make its TUN device; user-space networking would work.
    Tun,
    /// It was killed by a signal.
    Signal(i32),
    /// Something else: see what it said.
    Other,
}

/// It cannot be supervised.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel gives no thread.
    #[error("starting a thread for tailscaled: raise the pod's limit of processes")]
    Thread(#[source] std::io::Error),
    /// Its socket belongs to another one.
    #[error("{}: another tailscaled listens there: stop it, or set TS_SOCKET to another path", socket.display())]
    SocketInUse {
        /// The socket.
        socket: PathBuf,
    },
    /// The socket's directory cannot be used.
    #[error("{}: preparing the directory of tailscaled's socket: set TS_SOCKET to a path that can be written", socket.display())]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// It is not up.
#[derive(Debug, thiserror::Error)]
pub enum NotUp {
    /// It ended, and will end again.
    #[error(
        "tailscaled ended ({exit}): correct TS_TAILSCALED_EXTRA_ARGS and the TS_ variables it is made of"
    )]
    Arguments {
        /// How.
        exit: Arc<Exit>,
    },
    /// It takes too long.
    #[error("tailscaled's socket {} took no connection within {deadline:?}{}", socket.display(), after(last_exit.as_deref()))]
    TimedOut {
        /// The socket.
        socket: PathBuf,
        /// How long was waited.
        deadline: Duration,
        /// How it last ended, if it did.
        last_exit: Option<Arc<Exit>>,
    },
    /// It was stopped meanwhile.
    #[error("tailscaled was stopped")]
    Stopped,
}

fn after(exit: Option<&Exit>) -> String {
    exit.map(|exit| format!("; it last ended: {exit}")).unwrap_or_default()
}

impl Tailscaled {
    /// Starts it. Needs a Tokio runtime; the processes are in the network namespace of the calling thread.
    pub fn start(plan: Plan) -> Result<Self, StartError> {
        socket::prepare(&plan.socket)?;
        let relay = Relay::new(plan.masks.clone()).map_err(StartError::Thread)?;
        let spawner = Spawner::new().map_err(StartError::Thread)?;
        let shared = Arc::new(Shared { plan, spawner, relay });
        let first = State { phase: Phase::Starting, pid: None, restarts: 0, last_exit: None };
        let (publish, state) = watch::channel(first);
        let (orders, received) = mpsc::channel(1);
        tokio::spawn(supervise::supervise(Arc::clone(&shared), publish, received));
        Ok(Self { shared, state, orders })
    }

    /// How it is, and from now on. No change of `restarts` and `last_exit` is lost, however late one looks.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Waits until its socket takes connections. An end is not the end of waiting, unless another start will not help.
    pub async fn up(&self, deadline: Duration) -> Result<(), NotUp> {
        let mut state = self.state.clone();
        let wait = async {
            loop {
                {
                    let now = state.borrow_and_update();
                    match (&now.phase, &now.last_exit) {
                        (Phase::Up, _) => return Ok(()),
                        (Phase::Stopping | Phase::Stopped, _) => return Err(NotUp::Stopped),
                        (_, Some(exit)) if exit.cause() == Cause::Arguments => {
                            return Err(NotUp::Arguments { exit: exit.clone() });
                        }
                        _ => {}
                    }
                }
                if state.changed().await.is_err() {
                    return Err(NotUp::Stopped);
                }
            }
        };
        time::timeout(deadline, wait).await.unwrap_or_else(|_| {
            let last_exit = self.state.borrow().last_exit.clone();
            let socket = self.shared.plan.socket.clone();
            Err(NotUp::TimedOut { socket, deadline, last_exit })
        })
    }

    /// The `tailscale` program for this `tailscaled`.
    pub fn cli(&self) -> Cli {
        Cli::new(Arc::clone(&self.shared))
    }

    /// Asks it to end, kills it and its group when it has not after `deadline`, and waits for that. Returns how it ended.
    pub async fn stop(&self, deadline: Duration) -> Option<Arc<Exit>> {
        let (done, wait) = oneshot::channel();
        if self.orders.send(Order::Stop { deadline, done }).await.is_ok() {
            // An error only says that the supervisor has ended, which was wanted.
            let _ = wait.await;
        }
        self.state.borrow().last_exit.clone()
    }

    /// Lets others have it started anew.
    pub fn restarter(&self) -> Restarter {
        Restarter(self.orders.clone())
    }
}

/// Has a tailscaled started anew.
#[derive(Clone, Debug)]
pub struct Restarter(mpsc::Sender<Order>);

impl Restarter {
    /// Asks it to end and starts another, after a pause that grows with every start as after an end of its own. Without effect
    /// while there is none, for then one is about to be started.
    pub async fn restart(&self) {
        // An error only says that the supervisor has ended: nothing is to be started then.
        let _ = self.0.send(Order::Restart).await;
    }
}

impl Exit {
    /// Why it ended by itself.
    pub fn cause(&self) -> Cause {
        use std::os::unix::process::ExitStatusExt as _;
        let Some(status) = self.status else { return Cause::Other };
        if let Some(signal) = status.signal() {
            return Cause::Signal(signal);
        }
        let said =
            |words: &[&str]| self.said.lines().any(|line| words.iter().any(|w| line.contains(w)));
        // Go's flag package ends a program so; a panic has the same status.
        let usage = [
            "flag provided but not defined",
            "invalid value",
            "flag needs an argument",
            "non-flag arguments",
        ];
        if said(&usage) {
            Cause::Arguments
        } else if said(&["tstun.New", "CreateTUN"]) {
            Cause::Tun
        } else {
            Cause::Other
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(formatter, "{status}")?,
            None => formatter.write_str("not started")?,
        }
        if self.killed {
            formatter.write_str(", killed after its deadline")?;
        }
        if !self.said.is_empty() {
            write!(formatter, "; it printed:\n{}", self.said)?;
        }
        Ok(())
    }
}
