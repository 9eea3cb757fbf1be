//! What tailscaled serves itself, HTTP and HTTPS above all: the file of `TS_SERVE_CONFIG` followed into its serve
//! configuration, the certificates that takes, the Services advertised, and a way to it from the cluster.
//!
//! What is in force is read from tailscaled, not remembered: one that was started anew, or another writer (a person with
//! `tailscale serve`), is noticed and what is wanted put in force again. A file that makes no sense changes nothing.

mod certificates;
mod file;
mod merge;
mod via_cluster;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::{self, Instant},
};

use self::file::{Compiled, Https};
pub use self::{certificates::Certificate, file::NO_HTTPS};
use super::{
    advertise,
    settings::Settings,
    state::{Link, Pod},
};
use crate::{
    config_watch::{self, Event},
    localapi::{ETag, Error, LocalApi, ServeConfig, State},
    shared::Shared,
};

/// How often what is in force is looked at: tailscaled does not tell when somebody changes it.
const POLL: Duration = Duration::from_secs(5);
/// How long until a failed attempt is repeated, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// What tailscaled says when it is not logged in yet.
const NO_NETMAP: &str = "netMap is nil";
/// Attempts in a row at a configuration that somebody else keeps changing.
const ATTEMPTS: usize = 5;

/// What serving needs of the rest of the process.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// tailscaled.
    pub api: LocalApi,
    /// The node.
    pub pod: Arc<Pod>,
    /// Tells whether the process is about to end.
    pub shared: Arc<Shared>,
    /// The pod's settings.
    pub settings: Arc<Settings>,
    /// Whether tailscaled has a TUN device.
    pub kernel_tun: bool,
    /// Counts changes of the tailnet.
    pub changes: watch::Receiver<u64>,
}

/// Serves for as long as the process runs.
pub async fn run(inputs: Inputs) {
    let mut engine = Engine::new(&inputs);
    tokio::join!(
        engine.run(),
        certificates::keep(&inputs),
        advertise::keep(&inputs),
        via_cluster::keep(&inputs),
    );
}

struct Engine {
    api: LocalApi,
    pod: Arc<Pod>,
    changes: watch::Receiver<u64>,
    link: watch::Receiver<Link>,
    file: Option<Watched>,
    https: Https,
    is_running: bool,
    /// Whether another part of this process has entries in the configuration.
    has_doors: bool,
    last: Option<Last>,
}

/// The file of `TS_SERVE_CONFIG`.
struct Watched {
    path: PathBuf,
    events: mpsc::Receiver<Event>,
    /// Kept: a watcher whose asker is gone ends.
    _again: mpsc::Sender<()>,
    /// What it said last, if that made sense.
    text: Option<String>,
    /// Why what it says now is not in force.
    trouble: Option<String>,
}

/// What was wanted when the configuration with this tag was found or made, if anything was. tailscaled may write it
/// differently.
struct Last {
    wanted: Option<ServeConfig>,
    tag: ETag,
}

impl Engine {
    fn new(inputs: &Inputs) -> Self {
        Self {
            api: inputs.api.clone(),
            pod: Arc::clone(&inputs.pod),
            changes: inputs.changes.clone(),
            link: inputs.pod.link.subscribe(),
            file: inputs.settings.serve_config.clone().map(Watched::new),
            https: Https::Unknown,
            is_running: false,
            has_doors: !inputs.kernel_tun,
            last: None,
        }
    }

    async fn run(&mut self) {
        let mut retry = RETRY.0;
        loop {
            let (pause, told) = match self.step().await {
                Ok(told) => {
                    retry = RETRY.0;
                    ((!self.is_idle()).then_some(POLL), told)
                }
                // It said that it runs before it was started anew, and will again.
                Err(Error::Status { text, .. }) if text.contains(NO_NETMAP) => {
                    (Some(RETRY.0), Vec::new())
                }
                Err(error) => {
                    let pause = retry;
                    retry = (retry * 2).min(RETRY.1);
                    let told = format!("what is to be served is not in force: {error}");
                    (Some(pause), vec![told])
                }
            };
            self.tell(&told);
            self.wait(pause).await;
        }
    }

    /// Puts in force what is wanted; what of it cannot be is told.
    async fn step(&mut self) -> Result<Vec<String>, Error> {
        self.https = Https::of(&self.pod.view());
        self.is_running = is_running(&self.link.borrow_and_update());
        let (mut wanted, mut told) = (None, Vec::new());
        if let Some(file) = &mut self.file {
            let compiled = file.compile(&self.https);
            told.extend(file.trouble.clone());
            if let Some(Compiled { config, left_out }) = compiled {
                wanted = Some(config);
                told.extend(without_https(&left_out));
            }
        }
        if !self.is_running {
            // One that is started anew may have forgotten: that is nobody's change.
            self.last = None;
            return Ok(told);
        }
        let has_file = wanted.is_some();
        self.apply(wanted).await?;
        if has_file {
            let endpoint = self.https.endpoint().map(str::to_owned);
            self.pod.https_endpoint.send_if_modified(|told| {
                let changed = *told != endpoint;
                told.clone_from(&endpoint);
                changed
            });
        }
        Ok(told)
    }

    /// Without anything wanted, only learns what is in force.
    async fn apply(&mut self, wanted: Option<ServeConfig>) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let (current, tag) = self.api.serve_config().await?;
            let is_same = |last: &Last| last.tag == tag && last.wanted == wanted;
            if self.last.as_ref().is_some_and(is_same) {
                return Ok(());
            }
            let next = match &wanted {
                Some(wanted) => merge::replace(&current, wanted, self.has_doors),
                None => current.clone(),
            };
            if next == current {
                self.settle(wanted, current, tag);
                return Ok(());
            }
            if self.last.as_ref().is_some_and(|last| last.wanted == wanted) {
                tracing::warn!("somebody else has changed what tailscaled serves: it is put back");
            }
            let between = merge::before(&current, &next);
            match self.api.set_serve_config(between.as_ref().unwrap_or(&next), Some(&tag)).await {
                Ok(()) if between.is_none() => {
                    tracing::info!(
                        ports = ?next.tcp.keys().collect::<Vec<_>>(),
                        services = ?next.services.keys().collect::<Vec<_>>(),
                        "the serve configuration is in force"
                    );
                    let (current, tag) = self.api.serve_config().await?;
                    self.settle(wanted, current, tag);
                    return Ok(());
                }
                Ok(()) | Err(Error::Changed) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Changed)
    }

    fn settle(&mut self, wanted: Option<ServeConfig>, current: ServeConfig, tag: ETag) {
        self.last = Some(Last { wanted, tag });
        self.pod.served.send_if_modified(|served| {
            let changed = served.as_ref() != Some(&current);
            *served = Some(current);
            changed
        });
    }

    /// Each trouble is logged once.
    fn tell(&self, told: &[String]) {
        let text = (!told.is_empty()).then(|| told.join("; "));
        let mut troubles = self.pod.troubles();
        if troubles.serve != text {
            if let Some(text) = &text {
                tracing::error!("{text}");
            } else if self.is_running {
                tracing::info!("everything is served as configured");
            }
            troubles.serve = text;
        }
    }

    /// Whether nothing is ours to keep in force; what somebody else has in force matters at the start only.
    fn is_idle(&self) -> bool {
        self.file.is_none() && self.last.is_some()
    }

    /// Until something has changed that is to be acted on, or for so long.
    async fn wait(&mut self, pause: Option<Duration>) {
        let end = pause.map(|pause| Instant::now() + pause);
        loop {
            let pause = async {
                match end {
                    Some(end) => time::sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            let more = tokio::select! {
                () = next_text(&mut self.file) => return,
                changed = self.link.changed() => {
                    if is_running(&self.link.borrow_and_update()) != self.is_running {
                        return;
                    }
                    changed.is_ok()
                }
                changed = self.changes.changed() => {
                    if Https::of(&self.pod.view()) != self.https {
                        return;
                    }
                    changed.is_ok()
                }
                () = pause => return,
            };
            if !more {
                // Whoever could tell is gone: the process ends.
                return std::future::pending().await;
            }
        }
    }
}

impl Watched {
    fn new(path: PathBuf) -> Self {
        let (sender, events) = mpsc::channel(1);
        let (again, asked) = mpsc::channel(1);
        let watched = path.clone();
        tokio::spawn(async move {
            if let Err(error) = config_watch::watch(watched.clone(), sender, asked).await {
                let path = watched.display();
                tracing::error!(%path, %error, "watching the serve configuration's directory");
            }
        });
        Self { path, events, _again: again, text: None, trouble: None }
    }

    /// What is in force of it: what it says now if that makes sense, else what it said last.
    fn compile(&mut self, https: &Https) -> Option<Compiled> {
        let text = self.text.as_ref()?;
        // It was read without errors when it came.
        file::compile(text, https).ok().flatten()
    }

    fn take(&mut self, event: Event) {
        let trouble = match event {
            // The operator makes it before there is anything to say.
            Event::Content(text) if text.trim().is_empty() => None,
            Event::Content(text) => match file::compile(&text, &Https::Unknown) {
                Ok(_) => {
                    self.text = Some(text);
                    None
                }
                Err(error) => Some(format!("{}: {error}", self.path.display())),
            },
            Event::Unreadable(why) => Some(why),
        };
        let in_force = "; what is served stays as it was";
        self.trouble = trouble.map(|trouble| format!("{trouble}{in_force}"));
    }
}

/// Takes in what the file says next.
async fn next_text(file: &mut Option<Watched>) {
    let Some(file) = file else { return std::future::pending().await };
    match file.events.recv().await {
        Some(event) => file.take(event),
        // It cannot be watched, which is logged.
        None => std::future::pending().await,
    }
}

fn is_running(link: &Link) -> bool {
    link.connected && link.state == Some(State::Running)
}

fn without_https(left_out: &[String]) -> Option<String> {
    if left_out.is_empty() {
        return None;
    }
    let ports = left_out.join(", ");
    Some(format!(
        "HTTPS ({ports}) is not served: the tailnet gives this node no certificates; enable HTTPS in the tailnet's DNS settings"
    ))
}
