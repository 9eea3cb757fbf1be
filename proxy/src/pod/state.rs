//! What the parts of a pod's process know of each other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::{installer::Installed, view::View};
use crate::{
    localapi::State,
    status::{TailnetStatus, TargetStatus},
};

/// The state of a pod.
#[derive(Debug)]
pub struct Pod {
    /// The tailnet.
    pub view: Arc<Mutex<View>>,
    /// tailscaled.
    pub link: watch::Sender<Link>,
    /// The rules in force.
    pub installed: watch::Sender<Installed>,
    /// What is not (yet) as configured, by the part that takes care of it.
    pub troubles: Mutex<Troubles>,
}

/// tailscaled as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// It answers.
    pub connected: bool,
    /// Its state; what it said last, while it does not answer.
    pub state: Option<State>,
    /// How often it ended unexpectedly.
    pub restarts: u64,
    /// This node has an address.
    pub has_address: bool,
    /// tailscaled warns that it is not logged in (any more), whatever its state says.
    pub login_warning: Option<String>,
}

/// What is not as configured.
#[derive(Clone, Debug, Default)]
pub struct Troubles {
    /// Files that say something which cannot be carried out.
    pub files: Vec<String>,
    /// The state Secret.
    pub secret: Option<String>,
    /// No TUN device.
    pub tun: Option<String>,
    /// The served configuration.
    pub serve: Option<String>,
}

impl Pod {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self {
            view: Arc::default(),
            link: watch::Sender::default(),
            installed: watch::Sender::default(),
            troubles: Mutex::default(),
        }
    }

    /// The tailnet as this node sees it.
    pub fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is not as configured.
    pub fn troubles(&self) -> MutexGuard<'_, Troubles> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What readiness waits for besides the data path.
    pub fn latches(&self) -> [(&'static str, bool); 3] {
        let link = self.link.borrow();
        let installed = self.installed.borrow();
        let targets = &installed.targets;
        // One that cannot be reached is told by its own condition, and must not take the others out of service.
        let some = targets.is_empty() || targets.iter().any(|target| target.trouble.is_none());
        [
            ("logged-in", link.is_logged_in()),
            ("rules", installed.generation.is_some() && installed.error.is_none()),
            ("targets", some),
        ]
    }

    /// For `/v1/status`.
    pub fn tailnet(&self) -> TailnetStatus {
        let link = self.link.borrow().clone();
        let troubles = self.troubles().clone();
        let view = self.view();
        TailnetStatus {
            state: link.state.map(|state| state.to_string()),
            connected: link.connected,
            restarts: link.restarts,
            tun: troubles.tun,
            id: view.own.as_ref().map(|own| own.id.clone()),
            name: view.own.as_ref().map(|own| own.name.clone()),
            addresses: view.own.as_ref().map(|own| own.addresses.clone()).unwrap_or_default(),
            peers: view.peers(),
            routes: view.advertised.iter().map(ToString::to_string).collect(),
            services: view.services.iter().cloned().collect(),
            https_endpoint: view.cert_domains.first().cloned(),
            warnings: view.warnings.clone(),
            config_errors: troubles.files.into_iter().chain(troubles.serve).collect(),
            secret_error: troubles.secret,
        }
    }

    /// For `/v1/status`.
    pub fn targets(&self) -> Vec<TargetStatus> {
        let installed = self.installed.borrow();
        let in_force = installed.generation.is_some();
        let status = |target: &super::resolve::Target| TargetStatus {
            rule: target.entry.clone(),
            target: target.target.clone(),
            addresses: target.addresses.clone(),
            installed: in_force && target.trouble.is_none(),
            reason: target.trouble.as_ref().map(|trouble| trouble.reason.to_owned()),
            message: target.trouble.as_ref().map(|trouble| trouble.message.clone()),
        };
        installed.targets.iter().map(status).collect()
    }
}

impl Default for Pod {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// Whether the node takes part in the tailnet, as far as it can tell. While tailscaled is away, it does not; while the
    /// control server is, it does.
    pub fn is_logged_in(&self) -> bool {
        self.connected
            && self.has_address
            && self.state == Some(State::Running)
            && self.login_warning.is_none()
    }
}
