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
    let warning = link.login_warning.as_deref();
    link.connected
        && !warning.is_some_and(is_unheard)
        && (link.state == Some(State::NeedsLogin) || (warning.is_some() && !link.has_address))
}

/// Whether a login failed before control had a say about the key: it could not be reached or trusted, or it is in trouble itself.
/// Another key would change nothing but who the node is. The words are those of tailscaled's control client (1.102,
/// `control/controlclient/direct.go`); what control says of a key has none of them.
fn is_unheard(warning: &str) -> bool {
    const CALL: &str = "register request: ";
    match warning.split_once(CALL) {
        Some((_, answer)) => !answer.starts_with("http 4"),
        None => ["fetch control key", "getNoiseClient", "getMachinePrivKey", "rate limited"]
            .iter()
            .any(|words| warning.contains(words)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(error: &str) -> Link {
        let login_warning = Some(format!("You are logged out. The last login error was: {error}"));
        Link { connected: true, state: Some(State::NoState), login_warning, ..Link::default() }
    }

    #[test]
    fn a_key_that_control_refuses_is_replaced() {
        for error in ["invalid key: API key does not exist", "register request: http 401: no"] {
            assert!(is_logged_out(&link(error)), "{error}");
        }
        let needs_login = Link { state: Some(State::NeedsLogin), login_warning: None, ..link("") };
        assert!(is_logged_out(&needs_login));
        assert!(!is_logged_out(&Link { has_address: true, ..link("invalid key") }));
    }

    #[test]
    fn a_key_that_control_has_not_judged_is_kept() {
        for error in [
            "fetch control key: Get \"https://c/key?v=142\": x509: certificate signed by unknown authority",
            "fetch control key: 502 Bad Gateway",
            "register request: Post \"https://c/machine/register\": connection refused",
            "register request: http 503: upstream",
            "node registration rate limited; will retry after 5s",
        ] {
            assert!(!is_logged_out(&link(error)), "{error}");
            let asks = Link { state: Some(State::NeedsLogin), ..link(error) };
            assert!(!is_logged_out(&asks), "{error}");
        }
    }
}
