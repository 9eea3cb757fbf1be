//! What the parts of a pod's process know of each other.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{installer::Installed, serve::Certificate, view::View};
use crate::{
    localapi::{ServeConfig, State},
    status::{CertificateStatus, TailnetStatus, TargetStatus},
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
    /// What tailscaled serves, as far as is known.
    pub served: watch::Sender<Option<ServeConfig>>,
    /// For the state Secret, once the file of `TS_SERVE_CONFIG` is in force: the name that HTTPS is served by, or `no-https`.
    pub https_endpoint: watch::Sender<Option<String>>,
    /// Certificates of what is served, by name.
    pub certificates: Mutex<BTreeMap<String, Certificate>>,
    /// Where there is no TUN device: whether tailscaled leads connections to the rules.
    pub doors: watch::Sender<Option<bool>>,
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
    /// This tailscaled could not read its state: it has none, and refuses to log in for as long as it runs.
    pub without_state: bool,
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
    /// The relay from the cluster to what is served.
    pub via_cluster: Option<String>,
    /// Where there is no TUN device: ports that the tailnet does not reach.
    pub doors: Option<String>,
}

impl Pod {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self {
            view: Arc::default(),
            link: watch::Sender::default(),
            installed: watch::Sender::default(),
            served: watch::Sender::default(),
            https_endpoint: watch::Sender::default(),
            certificates: Mutex::default(),
            doors: watch::Sender::default(),
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

    /// Certificates of what is served.
    pub fn certificates(&self) -> MutexGuard<'_, BTreeMap<String, Certificate>> {
        self.certificates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What readiness waits for besides the data path.
    pub fn latches(&self) -> [(&'static str, bool); 4] {
        let link = self.link.borrow();
        let installed = self.installed.borrow();
        let targets = &installed.targets;
        // Rules from before the login know neither what to protect nor whom to serve.
        let in_force = installed.generation.is_some()
            && installed.error.is_none()
            && installed.own == self.view().addresses();
        // One that cannot be reached is told by its own condition, and must not take the others out of service.
        let some = targets.is_empty() || targets.iter().any(super::resolve::Target::is_served);
        [
            ("logged-in", link.is_logged_in()),
            ("rules", in_force),
            ("targets", some),
            ("doors", self.doors.borrow().unwrap_or(true)),
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
            name_conflict: view.other_name().map(|name| {
                format!(
                    "the name {} belongs to another device, this one is {name}: delete the other, or keep the state of \
                     the pod that had the name",
                    view.hostname
                )
            }),
            addresses: view.addresses(),
            peers: view.peers(),
            routes: view.advertised.iter().map(ToString::to_string).collect(),
            services: view.services.iter().cloned().collect(),
            https_endpoint: view.cert_domains.first().cloned(),
            warnings: view.warnings.clone(),
            config_errors: troubles
                .files
                .into_iter()
                .chain(troubles.serve)
                .chain(troubles.via_cluster)
                .chain(troubles.doors)
                .collect(),
            certificates: self.certificate_status(),
            secret_error: troubles.secret,
        }
    }

    fn certificate_status(&self) -> Vec<CertificateStatus> {
        let status = |(name, certificate): (&String, &Certificate)| CertificateStatus {
            name: name.clone(),
            ready: certificate.is_ready,
            reason: certificate.reason.map(str::to_owned),
            message: certificate.message.clone(),
        };
        self.certificates().iter().map(status).collect()
    }

    /// For `/v1/status`.
    pub fn targets(&self) -> Vec<TargetStatus> {
        let installed = self.installed.borrow();
        let in_force = installed.generation.is_some();
        let status = |target: &super::resolve::Target| TargetStatus {
            rule: target.entry.clone(),
            target: target.target.clone(),
            addresses: target.addresses.clone(),
            installed: in_force && target.is_served(),
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
