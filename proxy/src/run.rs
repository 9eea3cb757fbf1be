//! `run`: configuration -> rule table -> data path -> report, until told to stop.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use proxy_rules::{
    config::{Config, PathKind},
    validate,
};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    time,
};

use crate::{
    admin,
    args::Run,
    config_watch::{self, Event},
    data_path::select::Real,
    engine::Engine,
    only::{Only, OnlyError},
    quiet::quiet,
    shared::Shared,
    status::ConfigStatus,
    telemetry::Level,
};

/// Until a valid configuration says otherwise.
const DRAIN: Duration = Duration::from_secs(30);

/// The loop's own state.
struct Loop {
    shared: Arc<Shared>,
    args: Run,
    drain: Duration,
    /// Held from the first configuration on that wants one of the kernel's paths.
    only: Option<Only>,
    /// The admin address of the first configuration.
    admin: Option<std::net::SocketAddr>,
}

/// Runs until told to stop.
pub async fn run(args: Run, level: Level) -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let engine = Engine::start(Box::new(Real::new(args.bpffs.clone())))?;
    let file = args.config.display().to_string();
    let config = ConfigStatus { file, ..ConfigStatus::default() };
    let shared = Arc::new(Shared::new(engine, level, config));
    let (events, mut changes) = mpsc::channel(1);
    let (again, reload) = mpsc::channel(1);
    let mut watcher = tokio::spawn(config_watch::watch(args.config.clone(), events, reload));
    let mut this =
        Loop { shared: Arc::clone(&shared), args, drain: DRAIN, only: None, admin: None };

    // The first reading decides where the interface listens.
    let first = changes.recv().await;
    if let Some(Event::Content(text)) = &first
        && let Ok(config) = validate::validate(text)
    {
        this.claim(&config)?;
    }
    let admin = this.serve(first.as_ref()).await?;
    if let Some(event) = first {
        this.change(event).await?;
    }
    let mut admin = tokio::spawn(admin);
    loop {
        tokio::select! {
            Some(event) = changes.recv() => this.change(event).await?,
            _ = hangup.recv() => {
                // Full means that a reading is due anyway.
                let _ = again.try_send(());
            }
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            ended = &mut watcher => {
                ended?.context("watching the rules file")?;
                anyhow::bail!("watching the rules file has ended");
            }
            ended = &mut admin => {
                ended?.context("serving the admin interface")?;
                anyhow::bail!("the admin interface has ended");
            }
        }
    }
    this.stop(&mut terminate, &mut interrupt).await
}

impl Loop {
    /// Listens; the returned future serves.
    async fn serve(
        &self,
        first: Option<&Event>,
    ) -> Result<impl Future<Output = std::io::Result<()>> + use<>> {
        let configured = match first {
            Some(Event::Content(text)) => validate::validate(text).ok().map(|c| c.options.admin),
            _ => None,
        };
        let fallback = std::net::SocketAddr::from(([127, 0, 0, 1], 9464));
        let address = self.args.admin.or(configured).unwrap_or(fallback);
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("listening on {address}: use --admin"))?;
        let unix = match admin::listen_unix(&self.args.socket).await {
            Ok(unix) => Some(unix),
            Err(error) => {
                let socket = self.args.socket.display();
                tracing::warn!(%socket, %error, "no Unix socket: `status` and `top` need --admin");
                None
            }
        };
        tracing::info!(address = %listener.local_addr()?, "serving metrics and status");
        self.shared.admin_is_up();
        Ok(admin::serve(Arc::clone(&self.shared), listener, unix))
    }

    /// A bad file changes nothing but what is reported.
    async fn change(&mut self, event: Event) -> Result<()> {
        let text = match event {
            Event::Content(text) => text,
            Event::Unreadable(why) => {
                tracing::error!("rules file: {why}: the table in force stays");
                self.shared.update_config(|config| {
                    config.errors = vec![why];
                    config.error_count = 1;
                });
                return Ok(());
            }
        };
        match validate::validate(&text) {
            Ok(config) => {
                if let Err(error) = self.claim(&config) {
                    tracing::error!("{error}: the table in force stays");
                    self.shared.update_config(|status| {
                        status.errors = vec![error.to_string()];
                        status.error_count = 1;
                    });
                    return Ok(());
                }
                self.apply(config).await
            }
            Err(errors) => {
                let count = errors.len();
                tracing::error!(count, "rules file is not valid: the table in force stays");
                for error in errors.iter().take(ConfigStatus::LISTED) {
                    tracing::error!("rules file: {error}");
                }
                self.shared.update_config(|config| config.set_errors(errors.iter()));
                Ok(())
            }
        }
    }

    /// Makes sure that no other agent works in this network namespace, if the kernel's paths are wanted.
    fn claim(&mut self, config: &Config) -> Result<(), OnlyError> {
        let wanted = match self.args.data_path.only() {
            Some(only) => vec![only],
            None => config.options.data_paths.clone(),
        };
        if self.only.is_none() && wanted.iter().any(|kind| *kind != PathKind::Userspace) {
            self.only = Some(Only::claim()?);
        }
        Ok(())
    }

    async fn apply(&mut self, mut config: Config) -> Result<()> {
        self.drain = config.options.drain;
        let admin = config.options.admin;
        if *self.admin.get_or_insert(admin) != admin && self.args.admin.is_none() {
            tracing::warn!(%admin, "settings.adminAddress: used from the next start of the process on");
        }
        if let Some(only) = self.args.data_path.only() {
            config.options.data_paths = vec![only];
        }
        let generation = config.table.generation().to_owned();
        self.shared.update_config(|status| {
            status.errors.clear();
            status.error_count = 0;
            status.generation = Some(generation);
        });
        // Why not, if so, is logged and reported by the engine.
        if let Ok(elapsed) = self.shared.engine.apply(config).await? {
            self.shared.apply_seconds.observe(elapsed.as_secs_f64());
        }
        Ok(())
    }

    /// Not ready at once, serving until quiet or the deadline, then gone without a trace.
    async fn stop(&self, terminate: &mut Signal, interrupt: &mut Signal) -> Result<ExitCode> {
        self.shared.stop();
        tracing::info!(deadline = ?self.drain, "draining");
        tokio::select! {
            () = quiet(&self.shared.engine) => tracing::info!("quiet"),
            () = time::sleep(self.drain) => tracing::info!("the deadline has come"),
            _ = terminate.recv() => tracing::warn!("told again: ending at once"),
            _ = interrupt.recv() => tracing::warn!("told again: ending at once"),
        }
        let removed = self.shared.engine.end().await?;
        // Nothing depends on it: the next start removes a socket that nobody listens on.
        let _ = std::fs::remove_file(&self.args.socket);
        removed.map_err(anyhow::Error::msg).context("removing the data path")?;
        Ok(ExitCode::SUCCESS)
    }
}
