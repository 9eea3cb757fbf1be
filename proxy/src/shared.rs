//! What the loop and the HTTP interface share.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use prometheus_client::metrics::histogram::Histogram;

use crate::{engine::Engine, pod::state::Pod, status::ConfigStatus, telemetry::Level};

/// The process's state.
#[derive(Debug)]
pub struct Shared {
    /// The data paths.
    pub engine: Engine,
    /// How long applies took.
    pub apply_seconds: Histogram,
    /// The log's level.
    pub level: Level,
    /// The node, of a proxy on a tailnet.
    pub pod: OnceLock<Arc<Pod>>,
    config: Mutex<ConfigStatus>,
    admin: AtomicBool,
    stopping: AtomicBool,
}

impl Shared {
    /// Nothing is ready yet.
    pub fn new(engine: Engine, level: Level, config: ConfigStatus) -> Self {
        Self {
            engine,
            apply_seconds: crate::metrics::apply_seconds(),
            level,
            pod: OnceLock::new(),
            config: Mutex::new(config),
            admin: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        }
    }

    /// The rules file as last seen.
    pub fn config(&self) -> ConfigStatus {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes what is known of the rules file.
    pub fn update_config(&self, change: impl FnOnce(&mut ConfigStatus)) {
        change(&mut self.config.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The HTTP interface listens.
    pub fn admin_is_up(&self) {
        self.admin.store(true, Ordering::Relaxed);
    }

    /// The process is about to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether it is.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// What readiness waits for. A bad file does not make a process unready that carries an earlier table.
    pub fn latches(&self) -> BTreeMap<String, bool> {
        let state = self.engine.state();
        let config = self.config();
        let latches = [
            ("config", state.table.is_some() || config.generation.is_some()),
            ("data-path", state.kind.is_some() && state.error.is_none() && state.trouble.is_none()),
            ("admin", self.admin.load(Ordering::Relaxed)),
            ("running", !self.is_stopping()),
        ];
        let pod = self.pod.get().map(|pod| pod.latches()).into_iter().flatten();
        latches.into_iter().chain(pod).map(|(name, open)| (name.to_owned(), open)).collect()
    }

    /// Whether all of them are open.
    pub fn is_ready(&self) -> bool {
        self.latches().values().all(|open| *open)
    }
}
