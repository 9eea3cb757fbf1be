//! What runs beside each other in a pod's process, and how it is connected.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use proxy_rules::{
    config::{self, Document, PathKind},
    validate,
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    config_map::Place,
    doors,
    files::{self, Files, Sources},
    http, installer, link, local, login, names,
    reissue::Reissue,
    run::{Configured, TAILNET_DEVICE},
    secret::StateSecret,
    serve,
    settings::{ConfigFile, Settings},
    state::Pod,
    upstream,
};
use crate::{
    admin,
    config_watch::{self, Event},
    data_path::userspace::through::Through,
    localapi::LocalApi,
    shared::Shared,
    tailscaled::Tailscaled,
};

/// What runs beside each other until the process ends.
pub(super) struct Parts {
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    settings: Arc<Settings>,
    pub(super) api: LocalApi,
    pub(super) tasks: JoinSet<()>,
}

impl Parts {
    pub(super) fn new(
        shared: Arc<Shared>,
        pod: Arc<Pod>,
        settings: Arc<Settings>,
        api: LocalApi,
    ) -> Self {
        Self { shared, pod, settings, api, tasks: JoinSet::new() }
    }

    pub(super) fn spawn(&mut self, part: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(part);
    }

    /// Listens and serves.
    pub(super) async fn serve(&mut self, socket: &Path) -> Result<()> {
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
    pub(super) fn forward(
        &mut self,
        through: Option<Arc<Through>>,
        only: Option<PathKind>,
        (rules, rules_map): (Option<PathBuf>, Option<Place>),
        tailscaled: &Tailscaled,
    ) -> Result<watch::Receiver<Files>> {
        let local = local::find(&self.settings.pod.ips, TAILNET_DEVICE)
            .context("reading this network namespace's addresses")?;
        tracing::info!(device = local.device, addresses = ?local.addresses, "the cluster's side");
        let mut base = upstream::base(TAILNET_DEVICE, local.device.as_deref());
        self.prepare(&base, only);
        upstream::add_targets(&mut base, &self.settings.targets);
        let sources = Sources {
            egress: self.settings.targets.egress_config_dir.clone(),
            ingress: self.settings.targets.ingress_config_file.clone(),
            rules,
            rules_map,
            own_ports: own_ports(&self.settings),
        };
        let documents = watch::Sender::new(base.clone());
        let files = watch::Sender::new(Files::default());
        let told = files.subscribe();
        let wanted = watch::Sender::new(super::resolve::names(&base));
        let found = watch::Sender::default();
        let changes = watch::Sender::default();
        let inputs = installer::Inputs {
            view: Arc::clone(&self.pod.view),
            tailnet: changes.subscribe(),
            document: documents.subscribe(),
            names: found.subscribe(),
            pod: local.addresses,
            confined: through.is_some().then(|| self.settings.ports.clone()),
        };
        let (pod, shared) = (Arc::clone(&self.pod), Arc::clone(&self.shared));
        let (api, settings) = (self.api.clone(), Arc::clone(&self.settings));
        let (changed, kernel_tun) = (changes.subscribe(), through.is_none());
        let serving = serve::Inputs { api, pod, shared, settings, kernel_tun, changes: changed };
        self.spawn(serve::run(serving));
        let pod = Arc::clone(&self.pod);
        self.spawn(names_of(documents.subscribe(), wanted.clone()));
        self.spawn(names::look_up(wanted.subscribe(), found));
        self.spawn(files::follow(base, sources, Arc::clone(&pod), files, documents));
        if let Some(through) = through {
            pod.doors.send_replace(Some(false));
            let shared = Arc::clone(&self.shared);
            let (api, pod) = (self.api.clone(), Arc::clone(&pod));
            self.spawn(doors::keep(api, pod, shared, through, changes.subscribe()));
        }
        let state = tailscaled.state();
        self.spawn(link::follow(self.api.clone(), state, Arc::clone(&pod), kernel_tun, changes));
        self.spawn(installer::run(Arc::clone(&self.shared), inputs, only, pod.installed.clone()));
        Ok(told)
    }

    /// What needs no rule is done while tailscaled starts and logs in.
    fn prepare(&self, base: &Document, only: Option<PathKind>) {
        let interfaces = base.settings.interfaces.clone();
        let settings = config::Settings { interfaces, ..config::Settings::default() };
        match validate::compile(&Document { settings, ..Document::default() }) {
            Ok(mut config) => {
                config.options.data_paths =
                    only.map_or(config.options.data_paths, |only| vec![only]);
                self.shared.engine.prepare(config);
            }
            Err(errors) => tracing::debug!(?errors, "not prepared"),
        }
    }

    /// Counts tailscaled's ends, and ends one that has no state.
    pub(super) fn watch_tailscaled(&mut self, tailscaled: &Tailscaled) {
        let restarter = tailscaled.restarter();
        self.spawn(link::restart_without_state(Arc::clone(&self.pod), restarter));
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
    pub(super) fn log_in(&mut self, tailscaled: &Tailscaled, config: Option<&ConfigFile>) {
        if let Some(config) = config {
            self.spawn(reload(config.path.clone(), self.api.clone()));
            return;
        }
        let when = if self.settings.auth_once { login::When::Asked } else { login::When::Start };
        let patience = self.settings.boot_timeout;
        self.spawn(login::keep(tailscaled.cli(), Arc::clone(&self.pod), when, patience));
    }
}

impl Parts {
    /// Returns when the process is to start anew with another auth key.
    pub(super) fn another_key(
        &self,
        config: Configured,
        secret: Option<&Arc<StateSecret>>,
    ) -> impl Future<Output = ()> + use<> {
        let needed = secret.zip(config.file).map(|(secret, file)| Reissue {
            pod: Arc::clone(&self.pod),
            api: self.api.clone(),
            secret: Arc::clone(secret),
            file,
            capability: config.capability,
        });
        async move {
            match needed {
                Some(reissue) => reissue.needed().await,
                None => std::future::pending().await,
            }
        }
    }
}

fn end(what: &str, outcome: std::io::Result<()>) {
    if let Err(error) = outcome {
        tracing::error!(%error, "{what}");
    }
}

/// Where probes and the operator ask.
fn own_ports(settings: &Settings) -> Vec<u16> {
    let http = &settings.http;
    let listeners = [Some(http.local), http.health_listener, settings.tailscaled.debug];
    listeners.into_iter().flatten().map(|address| address.port()).collect()
}

/// Tells which names of the cluster's DNS the document wants.
async fn names_of(
    mut documents: watch::Receiver<Document>,
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
