//! The data paths' own thread: everything that talks to the kernel happens here, one command at a time, so that a
//! slow apply never holds up health or signals.

use std::{
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use proxy_rules::{RuleTable, Snapshot, config::Config};
use tokio::sync::{oneshot, watch};

use crate::data_path::{
    CounterError, DataPath, Kind,
    select::{self, Factory, Refusal},
};

mod change;
mod listen;

/// How often paths do their regular work.
const TICK: Duration = Duration::from_secs(1);
/// How long until a better path is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_mins(5));

/// What is in force, for status and metrics.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The table in force.
    pub table: Option<Arc<RuleTable>>,
    /// The path that carries it.
    pub kind: Option<Kind>,
    /// The paths wanted, in order.
    pub wanted: Vec<Kind>,
    /// Whether an operator's command, not the configuration, says which path.
    pub forced: bool,
    /// Why better paths are not in use.
    pub refusals: Vec<Refusal>,
    /// Why the latest table is not in force.
    pub error: Option<String>,
    /// What keeps the path from carrying all of the table that is in force: a device that has gone.
    pub trouble: Option<String>,
    /// What the path carries differently than the rules say.
    pub notes: Vec<String>,
    /// Paths that still carry flows from before a switch.
    pub draining: Vec<Kind>,
    /// Switches so far.
    pub switches: u64,
}

/// What the thread can be told.
enum Command {
    /// Do what can be done before there is a table.
    Prepare(Box<Config>),
    Apply(Box<Config>, oneshot::Sender<Applied>),
    Counters(oneshot::Sender<Result<Snapshot, CounterError>>),
    /// Use this path only; `None` = those of the configuration.
    Force(Option<Kind>, oneshot::Sender<Applied>),
    /// The kernel has told of a change around the path.
    Look,
    /// Remove everything and end.
    End(oneshot::Sender<Result<(), String>>),
}

/// How an apply ended: how long it took, or why the table before it is still in force.
pub type Applied = Result<Duration, String>;

/// The thread is gone: it panicked, or it was told to end.
#[derive(Debug, thiserror::Error)]
#[error("the data path's thread has ended")]
pub struct Ended;

/// A handle of the thread.
#[derive(Clone, Debug)]
pub struct Engine {
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<Arc<State>>,
    /// Gone when the last handle is.
    _alive: Arc<()>,
}

impl Engine {
    /// Starts the thread in the network namespace of the caller.
    pub fn start(factory: Box<dyn Factory>) -> std::io::Result<Self> {
        let (commands, receiver) = mpsc::channel();
        let (sender, state) = watch::channel(Arc::default());
        let worker = Worker::new(factory, sender);
        let alive = Arc::default();
        listen::start(commands.clone(), &alive);
        thread::Builder::new().name("data-path".into()).spawn(move || worker.run(&receiver))?;
        Ok(Self { commands, state, _alive: alive })
    }

    /// What is in force.
    pub fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.borrow())
    }

    /// Changes of what is in force.
    pub fn changes(&self) -> watch::Receiver<Arc<State>> {
        self.state.clone()
    }

    /// Has the path that is likely to be used do ahead what needs no rule. A failure is told by the first apply, which meets it
    /// again.
    pub fn prepare(&self, config: Config) {
        // An error says that the thread has ended, which the first apply tells.
        let _ = self.commands.send(Command::Prepare(Box::new(config)));
    }

    /// Puts a configuration in force.
    pub async fn apply(&self, config: Config) -> Result<Applied, Ended> {
        self.ask(|reply| Command::Apply(Box::new(config), reply)).await
    }

    /// Reads the counters, those of paths that are gone included.
    pub async fn counters(&self) -> Result<Result<Snapshot, CounterError>, Ended> {
        self.ask(Command::Counters).await
    }

    /// Uses this path and no other; `None` = those of the configuration again.
    pub async fn force(&self, kind: Option<Kind>) -> Result<Applied, Ended> {
        self.ask(|reply| Command::Force(kind, reply)).await
    }

    /// Removes everything and ends the thread.
    pub async fn end(&self) -> Result<Result<(), String>, Ended> {
        self.ask(Command::End).await
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Ended> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| Ended)?;
        answer.await.map_err(|_| Ended)
    }
}

/// A path that keeps flows from before a switch.
struct Draining {
    path: Box<dyn DataPath>,
    until: Instant,
}

struct Worker {
    factory: Box<dyn Factory>,
    report: watch::Sender<Arc<State>>,
    state: State,
    current: Option<Box<dyn DataPath>>,
    /// One that is ready for its first table.
    prepared: Option<Box<dyn DataPath>>,
    draining: Vec<Draining>,
    /// Counts of paths that are gone.
    base: Snapshot,
    /// The latest configuration, in force or not.
    config: Option<Config>,
    forced: Option<Kind>,
    retry_at: Instant,
    retry_after: Duration,
}

impl Worker {
    fn new(factory: Box<dyn Factory>, report: watch::Sender<Arc<State>>) -> Self {
        Self {
            factory,
            report,
            state: State::default(),
            current: None,
            prepared: None,
            draining: Vec::new(),
            base: Snapshot::default(),
            config: None,
            forced: None,
            retry_at: Instant::now(),
            retry_after: RETRY.0,
        }
    }

    fn run(mut self, commands: &mpsc::Receiver<Command>) {
        let mut next = Instant::now() + TICK;
        loop {
            match commands.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Command::Prepare(config)) => self.prepare(&config),
                Ok(Command::Apply(config, reply)) => {
                    self.config = Some(*config);
                    self.retry_after = RETRY.0;
                    let applied = self.put_in_force();
                    let _ = reply.send(applied);
                }
                Ok(Command::Counters(reply)) => {
                    let _ = reply.send(self.counters());
                }
                Ok(Command::Look) => self.look(),
                Ok(Command::Force(kind, reply)) => {
                    let before = std::mem::replace(&mut self.forced, kind);
                    let applied = self.put_in_force();
                    if applied.is_err() {
                        // The command is refused; what was wanted before it is wanted still.
                        self.forced = before;
                        let _ = self.put_in_force();
                    }
                    let _ = reply.send(applied);
                }
                Ok(Command::End(reply)) => {
                    let _ = reply.send(self.end());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= next {
                self.tick();
                next = Instant::now() + TICK;
            }
        }
    }

    /// The paths to try, best first.
    fn order(&self) -> Vec<Kind> {
        match (self.forced, &self.config) {
            (Some(kind), _) => vec![kind],
            (None, Some(config)) => select::kinds(&config.options.data_paths),
            (None, None) => Vec::new(),
        }
    }

    fn counters(&self) -> Result<Snapshot, CounterError> {
        let mut sum = self.base.clone();
        let mut draining = 0;
        for old in &self.draining {
            sum = sum.plus(&old.path.counters()?);
            draining += sum.live_flows.unwrap_or(0);
        }
        if let Some(path) = &self.current {
            sum = sum.plus(&path.counters()?);
            sum.live_flows = sum.live_flows.map(|live| live + draining);
        }
        Ok(sum)
    }

    /// An error is told by the regular work, which meets it again.
    fn look(&mut self) {
        let old = self.draining.iter_mut().map(|old| &mut old.path);
        for path in self.current.iter_mut().chain(old) {
            if let Err(error) = path.look() {
                tracing::debug!(data_path = %path.kind(), %error, "looking at what changed");
            }
        }
    }

    fn tick(&mut self) {
        let kept = self.current.as_mut().map(|path| path.maintain());
        let trouble = kept.and_then(Result::err).map(|error| select::chain(&error));
        if trouble != self.state.trouble {
            if let Some(error) = &trouble {
                tracing::warn!(%error, "the data path does not carry everything");
            } else {
                tracing::info!("the data path carries everything again");
            }
            self.state.trouble = trouble;
            self.publish();
        }
        for old in &mut self.draining {
            // Its live flows are counted by ageing them.
            if let Err(error) = old.path.maintain() {
                let error = select::chain(&error);
                tracing::warn!(data_path = %old.path.kind(), %error, "maintaining a draining path");
            }
        }
        self.drain();
        let wanted = self.order();
        let settled = self.state.error.is_none() && self.state.kind == wanted.first().copied();
        if self.config.is_some() && !settled && Instant::now() >= self.retry_at {
            self.retry_after = (self.retry_after * 2).min(RETRY.1);
            let _ = self.put_in_force();
        }
    }

    /// Removes old paths that are quiet or have had their time.
    fn drain(&mut self) {
        if self.draining.is_empty() {
            return;
        }
        for mut old in std::mem::take(&mut self.draining) {
            let live = old.path.counters().ok().and_then(|snapshot| snapshot.live_flows);
            if live != Some(0) && Instant::now() < old.until {
                self.draining.push(old);
            } else {
                self.retire(old.path.as_mut());
            }
        }
        self.publish();
    }

    /// Removes everything.
    fn end(&mut self) -> Result<(), String> {
        let mut errors = Vec::new();
        let draining = std::mem::take(&mut self.draining).into_iter().map(|old| old.path);
        for mut path in draining.chain(self.current.take()).chain(self.prepared.take()) {
            if let Err(error) = path.remove() {
                errors.push(format!("{}: {}", path.kind(), select::chain(&error)));
            }
        }
        self.state.kind = None;
        self.state.table = None;
        self.publish();
        if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
    }

    /// Tells everyone what is in force.
    fn publish(&mut self) {
        self.state.kind = self.current.as_ref().map(|path| path.kind());
        self.state.notes = self.current.as_ref().map_or_else(Vec::new, |path| path.notes());
        self.state.draining = self.draining.iter().map(|old| old.path.kind()).collect();
        self.report.send_replace(Arc::new(self.state.clone()));
    }
}
