//! Another auth key: a node whose config file holds one that control refuses asks the operator for another through the state
//! Secret, and starts anew as a new node when the file has it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use secrecy::{ExposeSecret, SecretString};
use tokio::{sync::mpsc, time};

use super::{
    secret::{Key, StateSecret},
    settings::ConfigFile,
    state::{Link, Pod},
};
use crate::{
    config_watch,
    localapi::{LocalApi, State},
};

/// How long a node must be logged out before a key is asked for: a control server that is slow is no reason.
const PATIENCE: Duration = Duration::from_secs(15);

/// What it takes.
#[derive(Debug)]
pub struct Reissue {
    /// The node.
    pub pod: Arc<Pod>,
    /// tailscaled.
    pub api: LocalApi,
    /// Through which is asked.
    pub secret: Arc<StateSecret>,
    /// The config file in use.
    pub file: ConfigFile,
    /// The capability version of tailscaled.
    pub capability: u32,
}

impl Reissue {
    /// Returns when the config file has another key, and the process is to start anew without the node that there was.
    pub async fn needed(self) {
        let mut link = self.pod.link.subscribe();
        loop {
            if link.wait_for(is_logged_out).await.is_err() {
                return std::future::pending().await;
            }
            if time::timeout(PATIENCE, link.wait_for(|link| !is_logged_out(link))).await.is_err() {
                break;
            }
        }
        let failed = self.file.auth_key.clone();
        tracing::error!(
            "control refuses the auth key of the config file: another one is asked for"
        );
        // Nothing is gained by asking control again meanwhile.
        if let Err(error) = self.api.disconnect_control().await {
            tracing::warn!(%error, "leaving the control server alone");
        }
        let text = failed.as_ref().map(|key| key.expose_secret().to_owned()).unwrap_or_default();
        self.secret.want(|desired| desired.set(Key::ReissueAuthKey, text));
        self.another(failed.as_ref()).await;
        tracing::info!("the config file has another auth key: starting anew");
    }

    /// Until the file has a key, and not this one.
    async fn another(&self, failed: Option<&SecretString>) {
        let directory = self.file.path.parent().map(PathBuf::from).unwrap_or_default();
        let (events, mut changes) = mpsc::channel(1);
        let (_again, asked) = mpsc::channel(1);
        let _watcher = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(config_watch::watch(
            self.file.path.clone(),
            events,
            asked,
        )));
        while changes.recv().await.is_some() {
            let key = match ConfigFile::choose(&directory, self.capability) {
                Ok(file) => file.auth_key,
                Err(error) => {
                    tracing::warn!(%error, "waiting for another auth key");
                    continue;
                }
            };
            let old = failed.map(ExposeSecret::expose_secret);
            let is_new = |key: &SecretString| {
                let text = key.expose_secret();
                !text.is_empty() && Some(text) != old
            };
            if key.as_ref().is_some_and(is_new) {
                return;
            }
        }
        // Nobody can tell of a change any more.
        std::future::pending::<()>().await;
    }
}

fn is_logged_out(link: &Link) -> bool {
    link.connected
        && (link.state == Some(State::NeedsLogin)
            || (link.login_warning.is_some() && !link.has_address))
}
