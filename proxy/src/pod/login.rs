//! Keeps the node logged in, without a config file of tailscaled: by `tailscale up`, at the start and whenever the node has
//! lost its login.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time};

use super::state::{Link, Pod};
use crate::{localapi::State, tailscaled::Cli};

/// Between two attempts, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_mins(5));
/// How long a state must last before it is acted on: tailscaled passes through some while it starts.
const SETTLE: Duration = Duration::from_millis(200);

/// When to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At each start (`TS_AUTH_ONCE` is off): what the environment says is put in force.
    Start,
    /// Only when tailscaled asks for it.
    Asked,
}

/// Logs in as often as it takes. `patience` is how long one attempt may take.
pub async fn keep(cli: Cli, pod: Arc<Pod>, when: When, patience: Duration) {
    let mut link = pod.link.subscribe();
    let mut retry = RETRY.0;
    let mut wanted = when == When::Start;
    let mut set = when == When::Asked;
    loop {
        if await_state(&mut link, wanted).await.is_err() {
            return;
        }
        let state = link.borrow().state;
        if !wanted && state == Some(State::Running) {
            // Logged in by an earlier start; what may change without a login is put in force.
            if std::mem::take(&mut set)
                && let Err(error) = cli.set().await
            {
                tracing::error!("{error}");
            }
            retry = RETRY.0;
            if link.wait_for(|link| link.state != Some(State::Running)).await.is_err() {
                return;
            }
            continue;
        }
        match time::timeout(patience, cli.up()).await {
            Ok(Ok(())) => {
                tracing::info!("logged in");
                (wanted, set, retry) = (false, false, RETRY.0);
                continue;
            }
            Ok(Err(error)) => tracing::error!("{error}"),
            Err(_) => tracing::error!(
                ?patience,
                "tailscale up has not ended: is the control server reachable?"
            ),
        }
        // A new attempt at once would be refused again, and the control server would rather not be asked.
        time::sleep(retry).await;
        retry = (retry * 2).min(RETRY.1);
    }
}

/// Waits until tailscaled answers and its state calls for something: for an attempt at once if one is wanted, else a state
/// that lasts and is either `Running` or `NeedsLogin`.
async fn await_state(
    link: &mut watch::Receiver<Link>,
    wanted: bool,
) -> Result<(), watch::error::RecvError> {
    loop {
        let is_due = |link: &Link| {
            let settled = matches!(link.state, Some(State::Running | State::NeedsLogin));
            link.connected && link.state.is_some() && (wanted || settled)
        };
        let state = link.wait_for(is_due).await?.state;
        if wanted || state == Some(State::Running) {
            return Ok(());
        }
        if time::timeout(SETTLE, link.wait_for(|link| link.state != state)).await.is_err() {
            return Ok(());
        }
    }
}
