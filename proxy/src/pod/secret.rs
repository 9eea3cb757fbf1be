//! The state Secret: what the operator is told, and what `tailscaled` keeps.
//!
//! Whoever has something to tell says what the Secret is to say and goes on. One task makes it so, with one request for
//! everything that differs, and tries again for as long as the API server is down, slow or refuses. Nothing waits for it, and
//! it never ends the process: traffic does not need the API server.

mod cluster;
mod content;
mod desired;
#[cfg(test)]
mod tests;
mod write;

use std::{
    error::Error as _,
    fmt,
    time::{Duration, SystemTime},
};

use kube::Client;
use secrecy::SecretString;
use tokio::{sync::watch, time};
use tokio_util::task::AbortOnDropHandle;

use self::write::Store;
pub use self::{
    cluster::{Access, ClusterError, client},
    content::is_consistent,
    desired::{Desired, Key, device_ips},
};

/// How often is looked whether `tailscaled` has written all of its state.
const CONSISTENCY: Duration = Duration::from_millis(500);

/// The state Secret of this pod. When this is dropped nothing more is written.
pub struct StateSecret {
    store: Store,
    desired: watch::Sender<Revised>,
    status: watch::Receiver<SecretStatus>,
    opened: watch::Receiver<Option<Opened>>,
    _task: AbortOnDropHandle<()>,
}

/// What is wanted, and how often it was changed.
#[derive(Clone, Debug, Default)]
struct Revised {
    revision: u64,
    desired: Desired,
}

/// How it is with the Secret.
#[derive(Clone, Debug, Default)]
pub struct SecretStatus {
    /// What we may do, once the API server has told.
    pub access: Option<Access>,
    /// Whether it exists, as far as is known.
    pub exists: Option<bool>,
    /// Why it does not say what is wanted; `None` if it does, or was not tried yet.
    pub failure: Option<Failure>,
    /// How often it was written.
    pub writes: u64,
    /// What of [`StateSecret::want`] it says.
    revision: u64,
}

/// A failure that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The latest reason, and what would help.
    pub message: String,
    /// When the first of these attempts failed.
    pub since: SystemTime,
    /// How many attempts have failed one after another.
    pub attempts: u64,
}

/// What was there before we wrote.
#[derive(Clone, Debug)]
pub struct Opened {
    /// What we may do.
    pub access: Access,
    /// Whether it existed.
    pub exists: bool,
    /// The auth key that a user put there (`authkey`).
    pub auth_key: Option<SecretString>,
}

/// Why the pod cannot work with its Secret, whatever happens later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// `tailscaled` cannot keep its state.
    Missing(Vec<&'static str>),
    /// It is not there and may not be made.
    Absent,
    /// There is an auth key that could not be removed after it was used.
    AuthKeyStays,
}

impl fmt::Display for Unusable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(verbs) => {
                let verbs = verbs.join(", ");
                write!(formatter, "the state Secret may not be used: grant the service account {verbs} on it")
            }
            Self::Absent => formatter.write_str(
                "the state Secret does not exist and may not be created: create it, grant the service account create on \
                 Secrets, or set TS_KUBE_SECRET to nothing",
            ),
            Self::AuthKeyStays => formatter.write_str(
                "the state Secret holds an authkey that could not be removed after use: grant the service account patch on it",
            ),
        }
    }
}

/// One attempt failed. No message holds a value of the Secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The role does not allow it, as the API server told beforehand.
    #[error("state Secret {secret}: grant the service account `{verb}` on it")]
    Forbidden {
        /// The verb that is missing.
        verb: &'static str,
        /// `namespace/name`.
        secret: String,
    },
    /// The API server refused.
    #[error(
        "{action} state Secret {secret}: refused: {message}: grant the service account get, update and patch on it"
    )]
    Denied {
        /// What was tried.
        action: &'static str,
        /// `namespace/name`.
        secret: String,
        /// What the API server says.
        message: String,
    },
    /// The API server answered with an error.
    #[error("{action} state Secret {secret}: the API server answered {code}: {message}")]
    Answer {
        /// What was tried.
        action: &'static str,
        /// `namespace/name`.
        secret: String,
        /// The HTTP status.
        code: u16,
        /// What the API server says.
        message: String,
    },
    /// No answer.
    #[error("{action} state Secret {secret}: no answer of the API server's: {}", chain(source))]
    Unreachable {
        /// What was tried.
        action: &'static str,
        /// `namespace/name`.
        secret: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// No answer in time.
    #[error("{action} state Secret {secret}: no answer of the API server's within {after:?}")]
    TimedOut {
        /// What was tried.
        action: &'static str,
        /// `namespace/name`.
        secret: String,
        /// How long was waited.
        after: Duration,
    },
}

/// An error and what lies behind it: "service error" alone says nothing.
fn chain(error: &kube::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = error.source();
    }
    text
}

impl StateSecret {
    /// Begins with what is wanted at the start ([`Desired::at_start`]), in the background.
    pub fn start(client: Client, namespace: String, name: String, desired: Desired) -> Self {
        let store = Store { client, namespace, name };
        let (desired, wanted) = watch::channel(Revised { revision: 1, desired });
        let (status_out, status) = watch::channel(SecretStatus::default());
        let (opened_out, opened) = watch::channel(None);
        let task = tokio::spawn(write::run(store.clone(), wanted, status_out, opened_out));
        Self { store, desired, status, opened, _task: AbortOnDropHandle::new(task) }
    }

    /// Changes what is wanted. Returns at once; the number is for [`Self::says`]. What changes nothing is no revision.
    pub fn want(&self, change: impl FnOnce(&mut Desired)) -> u64 {
        self.desired.send_if_modified(|revised| {
            let before = revised.desired.clone();
            change(&mut revised.desired);
            let changed = revised.desired != before;
            revised.revision += u64::from(changed);
            changed
        });
        self.desired.borrow().revision
    }

    /// Waits until the Secret says what was wanted then; `false` if it does not within the time.
    pub async fn says(&self, revision: u64, deadline: Duration) -> bool {
        let mut status = self.status.clone();
        let wait = status.wait_for(|status| status.revision >= revision);
        time::timeout(deadline, wait).await.is_ok_and(|status| status.is_ok())
    }

    /// How it is.
    pub fn status(&self) -> watch::Receiver<SecretStatus> {
        self.status.clone()
    }

    /// Waits for the first look at the Secret; `None` if there was none within the time.
    pub async fn opened(&self, deadline: Duration) -> Option<Opened> {
        let mut opened = self.opened.clone();
        let wait = opened.wait_for(Option::is_some);
        time::timeout(deadline, wait).await.ok()?.ok()?.clone()
    }

    /// Waits until `tailscaled`'s state is whole, before that is ended; `false` if it is not within the time. A Secret that is
    /// not there is whole; one that cannot be read is not waited for.
    pub async fn consistent(&self, deadline: Duration) -> bool {
        let wait = async {
            loop {
                match self.store.read().await {
                    Ok(Some(data)) if !is_consistent(&data) => time::sleep(CONSISTENCY).await,
                    Ok(_) => return true,
                    Err(error) => {
                        tracing::warn!("looking whether tailscaled's state is whole: {error}");
                        return false;
                    }
                }
            }
        };
        time::timeout(deadline, wait).await.unwrap_or(false)
    }

    /// Makes the next log-in a new node's: removes the node's identity, and the request for an auth key. For the time after
    /// `tailscaled` has ended, which would write it again. Nothing of it is wanted any more.
    pub async fn forget_node(&self) -> Result<(), SecretError> {
        self.want(|desired| {
            for key in [Key::DeviceId, Key::DeviceFqdn, Key::DeviceIps, Key::ReissueAuthKey] {
                desired.remove(key);
            }
        });
        let data = self.store.read().await?.unwrap_or_default();
        let keys = content::identity(&data);
        if !keys.is_empty() {
            self.store.patch(keys.iter().map(|key| (key.as_str(), None))).await?;
        }
        Ok(())
    }
}

impl Opened {
    /// What speaks against going on, as upstream judges it at the start.
    pub fn unusable(&self) -> Option<Unusable> {
        let missing: Vec<_> =
            self.access.missing().into_iter().filter(|verb| *verb != "patch").collect();
        if !missing.is_empty() {
            Some(Unusable::Missing(missing))
        } else if !self.exists && !self.access.create {
            Some(Unusable::Absent)
        } else if self.auth_key.is_some() && !self.access.patch {
            Some(Unusable::AuthKeyStays)
        } else {
            None
        }
    }
}

impl fmt::Debug for StateSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{}/{}", self.store.namespace, self.store.name);
        formatter.debug_struct("StateSecret").field("name", &name).finish_non_exhaustive()
    }
}
