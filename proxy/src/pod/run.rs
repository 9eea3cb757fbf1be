//! A pod's process: tailscaled, the tailnet, the rules, until told to stop.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use proxy_rules::config::PathKind;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
    time,
};

use super::{
    files::{self, Files, Sources},
    http, installer, link, local, login, names,
    settings::{ConfigFile, Settings},
    state::Pod,
    upstream,
};
use crate::{
    admin, args,
    config_watch::{self, Event},
    data_path::select::Real,
    engine::Engine,
    localapi::{LocalApi, PrefsChange},
    only::Only,
    quiet::quiet,
    shared::Shared,
    status::ConfigStatus,
    tailscaled::{self, Netfilter, Options, Plan, Programs, Tailscaled},
    telemetry::Level,
};

/// The device that tailscaled makes unless it is told otherwise.
const TAILNET_DEVICE: &str = "tailscale0";
/// How long tailscaled may take to end.
const TAILSCALED_STOP: Duration = Duration::from_secs(4);
/// The settings are not valid.
const INVALID: u8 = 3;

/// Runs until told to stop.
pub async fn run(args: args::Pod, level: Level) -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let settings = match Settings::from_env(&|name| std::env::var_os(name), Path::new("/")) {
        Ok(settings) => Arc::new(settings),
        Err(errors) => {
            for error in &errors {
                tracing::error!("{error}");
            }
            return Ok(ExitCode::from(INVALID));
        }
    };
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let pod = Arc::new(Pod::new());
    let kernel_tun = has_tun(&settings, &pod);
    let only = match (args.data_path.only(), kernel_tun) {
        (Some(only), true) => Some(only),
        (None, true) => None,
        (_, false) => Some(PathKind::Userspace),
    };
    let _only = (only != Some(PathKind::Userspace)).then(Only::claim).transpose()?;
    let engine = Engine::start(Box::new(Real::new(args.bpffs.clone())))?;
    let shared = Arc::new(Shared::new(engine, level, ConfigStatus::default()));
    let _ = shared.pod.set(Arc::clone(&pod));

    let plan = plan(&settings, &args, kernel_tun).await?;
    let api = LocalApi::new(&settings.tailscaled.socket);
    let mut parts = Parts::new(Arc::clone(&shared), Arc::clone(&pod), Arc::clone(&settings), api);
    parts.serve(&args.socket).await?;
    let config_file = plan.config.clone();
    let tailscaled = Tailscaled::start(plan.plan).context("starting tailscaled")?;
    parts.forward(kernel_tun, only)?;
    parts.watch_tailscaled(&tailscaled);
    parts.log_in(&tailscaled, config_file.as_ref());

    let ended = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        ended = parts.tasks.join_next() => Some(ended),
    };
    if let Some(ended) = ended {
        // None of them ends as long as the process runs: a panic, most likely.
        tracing::error!(?ended, "a part of the process has ended");
    }
    let drain = Duration::from_secs(args.drain_seconds);
    stop(&shared, &parts.api, &tailscaled, drain, &mut terminate, &mut interrupt).await?;
    let _ = std::fs::remove_file(&args.socket);
    Ok(if ended_by_itself(&parts) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn ended_by_itself(parts: &Parts) -> bool {
    parts.tasks.len() < parts.started
}

/// Whether tailscaled can have a TUN device. If not, though it was wanted, user-space networking is used, and told.
fn has_tun(settings: &Settings, pod: &Pod) -> bool {
    if settings.tailscaled.user_space {
        return false;
    }
    match tailscaled::tun::ensure(&settings.root) {
        Ok(_) => true,
        Err(error) => {
            let reason = error.why.label();
            tracing::error!(reason, "no TUN device, user-space networking is used: {error}");
            pod.troubles().tun = Some(format!("TunUnavailable: {reason}: {error}"));
            false
        }
    }
}

/// How tailscaled is run, and by which config file.
struct Planned {
    plan: Plan,
    config: Option<PathBuf>,
}

async fn plan(settings: &Settings, args: &args::Pod, kernel_tun: bool) -> Result<Planned> {
    let programs =
        Programs { tailscaled: args.tailscaled.clone(), tailscale: args.tailscale.clone() };
    let config = match &settings.tailscaled.config_dir {
        Some(directory) => {
            let version = tailscaled::login::capability_version(&programs.tailscale).await?;
            Some(ConfigFile::choose(directory, version)?)
        }
        None => None,
    };
    let path = config.as_ref().map(|config| config.path.clone());
    let netfilter = if kernel_tun { Netfilter::Off } else { Netfilter::Unchanged };
    let options = Options { programs, config, without_tun: !kernel_tun, netfilter };
    Ok(Planned { plan: Plan::new(settings, options), config: path })
}

/// What runs beside each other until the process ends.
struct Parts {
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    settings: Arc<Settings>,
    api: LocalApi,
    tasks: JoinSet<()>,
    /// How many of them there are.
    started: usize,
}

impl Parts {
    fn new(shared: Arc<Shared>, pod: Arc<Pod>, settings: Arc<Settings>, api: LocalApi) -> Self {
        Self { shared, pod, settings, api, tasks: JoinSet::new(), started: 0 }
    }

    fn spawn(&mut self, part: impl Future<Output = ()> + Send + 'static) {
        self.started += 1;
        self.tasks.spawn(part);
    }

    /// Listens and serves.
    async fn serve(&mut self, socket: &Path) -> Result<()> {
        let address = self.settings.http.local;
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("listening on {address}: set TS_LOCAL_ADDR_PORT to an address of this pod and a free port")
        })?;
        let unix = match admin::listen_unix(socket).await {
            Ok(unix) => Some(unix),
            Err(error) => {
                let socket = socket.display();
                tracing::warn!(%socket, %error, "no Unix socket: `status` and `top` need --admin");
                None
            }
        };
        tracing::info!(address = %listener.local_addr()?, "serving metrics, health and status");
        let app = http::App {
            shared: Arc::clone(&self.shared),
            pod: Arc::clone(&self.pod),
            api: self.api.clone(),
            settings: Arc::clone(&self.settings),
        };
        self.shared.admin_is_up();
        if let Some(address) = self.settings.http.health_listener {
            let listener = TcpListener::bind(address).await.with_context(|| {
                format!("listening on {address}: TS_HEALTHCHECK_ADDR_PORT needs a free port")
            })?;
            let router = http::router(app.clone());
            self.spawn(async move {
                end("the health listener", admin::listen(router, listener, None).await);
            });
        }
        let router = http::router(app);
        self.spawn(async move {
            end("the HTTP interface", admin::listen(router, listener, unix).await);
        });
        Ok(())
    }

    /// From the tailnet, the files and DNS to rules in force.
    fn forward(&mut self, kernel_tun: bool, only: Option<PathKind>) -> Result<()> {
        let local = local::find(&self.settings.pod.ips, TAILNET_DEVICE)
            .context("reading this network namespace's addresses")?;
        tracing::info!(device = local.device, addresses = ?local.addresses, "the cluster's side");
        let mut base = upstream::base(TAILNET_DEVICE, local.device.as_deref());
        upstream::add_targets(&mut base, &self.settings.targets);
        let sources = Sources {
            egress: self.settings.targets.egress_config_dir.clone(),
            ingress: self.settings.targets.ingress_config_file.clone(),
        };
        let documents = watch::Sender::new(base.clone());
        let files = watch::Sender::new(Files::default());
        let wanted = watch::Sender::new(super::resolve::names(&base));
        let found = watch::Sender::default();
        let changes = watch::Sender::default();
        let inputs = installer::Inputs {
            view: Arc::clone(&self.pod.view),
            tailnet: changes.subscribe(),
            document: documents.subscribe(),
            names: found.subscribe(),
            pod: local.addresses,
        };
        let pod = Arc::clone(&self.pod);
        self.spawn(names_of(documents.subscribe(), wanted.clone()));
        self.spawn(names::look_up(wanted.subscribe(), found));
        self.spawn(files::follow(base, sources, Arc::clone(&pod), files, documents));
        self.spawn(link::follow(self.api.clone(), Arc::clone(&pod), kernel_tun, changes));
        self.spawn(installer::run(Arc::clone(&self.shared), inputs, only, pod.installed.clone()));
        Ok(())
    }

    /// Counts tailscaled's ends.
    fn watch_tailscaled(&mut self, tailscaled: &Tailscaled) {
        let (mut state, pod) = (tailscaled.state(), Arc::clone(&self.pod));
        self.spawn(async move {
            loop {
                let restarts = state.borrow_and_update().restarts;
                pod.link.send_if_modified(|link| {
                    std::mem::replace(&mut link.restarts, restarts) != restarts
                });
                if state.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        });
    }

    /// By the config file, which is read again when it changes, or by `tailscale up`.
    fn log_in(&mut self, tailscaled: &Tailscaled, config: Option<&PathBuf>) {
        if let Some(config) = config {
            self.spawn(reload(config.clone(), self.api.clone()));
            return;
        }
        let when = if self.settings.auth_once { login::When::Asked } else { login::When::Start };
        let patience = self.settings.boot_timeout;
        self.spawn(login::keep(tailscaled.cli(), Arc::clone(&self.pod), when, patience));
    }
}

fn end(what: &str, outcome: std::io::Result<()>) {
    if let Err(error) = outcome {
        tracing::error!(%error, "{what}");
    }
}

/// Tells which names of the cluster's DNS the document wants.
async fn names_of(
    mut documents: watch::Receiver<proxy_rules::config::Document>,
    wanted: watch::Sender<std::collections::BTreeSet<String>>,
) {
    loop {
        let names = super::resolve::names(&documents.borrow_and_update());
        wanted.send_if_modified(|wanted| {
            let changed = *wanted != names;
            *wanted = names;
            changed
        });
        if documents.changed().await.is_err() {
            return;
        }
    }
}

/// Has tailscaled read its config file again when that changes.
async fn reload(file: PathBuf, api: LocalApi) {
    let (events, mut changes) = mpsc::channel(1);
    let (_again, asked) = mpsc::channel(1);
    let mut watcher = tokio::spawn(config_watch::watch(file.clone(), events, asked));
    // What it says at first tailscaled has read itself.
    let mut is_first = true;
    loop {
        let event = tokio::select! {
            Some(event) = changes.recv() => event,
            ended = &mut watcher => {
                tracing::error!(?ended, file = %file.display(), "watching tailscaled's config file");
                return;
            }
        };
        match event {
            Event::Content(_) if std::mem::take(&mut is_first) => {}
            Event::Content(_) => match api.reload_config().await {
                Ok(_) => tracing::info!("tailscaled has read its config file again"),
                Err(error) => tracing::error!(%error, "tailscaled's config file"),
            },
            Event::Unreadable(why) => tracing::error!("tailscaled's config file: {why}"),
        }
    }
}

/// Withdraws what is advertised, serves until quiet or the deadline, and ends.
async fn stop(
    shared: &Shared,
    api: &LocalApi,
    tailscaled: &Tailscaled,
    drain: Duration,
    terminate: &mut Signal,
    interrupt: &mut Signal,
) -> Result<()> {
    shared.stop();
    tracing::info!(deadline = ?drain, "draining");
    let drained = async {
        withdraw(api).await;
        quiet(&shared.engine).await;
    };
    tokio::select! {
        () = drained => tracing::info!("quiet"),
        () = time::sleep(drain) => tracing::info!("the deadline has come"),
        _ = terminate.recv() => tracing::warn!("told again: ending at once"),
        _ = interrupt.recv() => tracing::warn!("told again: ending at once"),
    }
    tailscaled.stop(TAILSCALED_STOP).await;
    let removed = shared.engine.end().await?;
    removed.map_err(anyhow::Error::msg).context("removing the data path")
}

/// Has control lead new connections to other hosts of the Services.
async fn withdraw(api: &LocalApi) {
    let none = PrefsChange { advertise_services: Some(Vec::new()), ..PrefsChange::default() };
    let withdrawn = async {
        if api.prefs().await?.advertise_services.is_empty() {
            return Ok(false);
        }
        api.edit_prefs(&none).await.map(|_| true)
    };
    match withdrawn.await {
        Ok(true) => tracing::info!("the Services are withdrawn"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%error, "withdrawing the Services"),
    }
}
