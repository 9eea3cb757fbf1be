//! Why a reconciliation failed, what that is called in a log or a metric, and when to try again.

use std::time::Duration;

use crate::tailnet_api::{self, RegistryError, Retry};

/// Why a reconciliation failed. No text holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server.
    #[error("{attempt}: {}", told(.source))]
    Kubernetes {
        /// What was to be done.
        attempt: String,
        /// What came of it.
        source: Box<kube::Error>,
    },
    /// An object has no JSON form.
    #[error("{attempt}: {source}")]
    Json {
        /// What was to be done.
        attempt: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The control server.
    #[error(transparent)]
    Tailnet(#[from] tailnet_api::Error),
    /// Which control server.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A ProxyClass that is not there.
    #[error("ProxyClass `{0}` does not exist: create it, or name another one")]
    ClassMissing(String),
    /// Keys that did not serve were made anew too often.
    #[error("auth keys of {parent} were made anew too often: the next one in {} seconds", wait.as_secs())]
    TooManyKeys {
        /// Whose keys.
        parent: String,
        /// How long until the next one.
        wait: Duration,
    },
    /// An object without what every object has.
    #[error("{0} has no {1}: the API server gives every object one")]
    Incomplete(String, &'static str),
}

impl Error {
    /// A short name, for logs and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Kubernetes { .. } if self.is_conflict() => "Conflict",
            Self::Kubernetes { .. } => "KubernetesApi",
            Self::Json { .. } | Self::Incomplete(..) => "BadObject",
            Self::Tailnet(error) => error.reason(),
            Self::Registry(RegistryError::Unknown(_)) => "TailnetUnknown",
            Self::Registry(RegistryError::NotReady(_)) => "TailnetNotReady",
            Self::ClassMissing(_) => "ProxyClassMissing",
            Self::TooManyKeys { .. } => "TooManyKeys",
        }
    }

    /// When to try again. What is put right without a change of anything that we watch is tried again and again.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Tailnet(error) => error.retry(),
            // The class is watched.
            Self::ClassMissing(_) => Retry::OnChange,
            Self::TooManyKeys { wait, .. } => Retry::After(*wait),
            _ => Retry::Backoff,
        }
    }

    /// Whether somebody changed an object meanwhile: it is read and decided again, and nobody needs to know.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Kubernetes { source, .. }
            if matches!(&**source, kube::Error::Api(status) if status.code == 409))
    }
}

/// What the API server said, without what kube adds for developers.
fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// Adds what was to be done to an error.
pub trait ResultExt<T> {
    /// `doing` is in the form of `apply Secret a/b`.
    fn doing(self, attempt: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> ResultExt<T> for Result<T, kube::Error> {
    fn doing(self, attempt: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Kubernetes { attempt: attempt(), source: Box::new(source) })
    }
}

impl<T> ResultExt<T> for Result<T, serde_json::Error> {
    fn doing(self, attempt: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Json { attempt: attempt(), source })
    }
}
