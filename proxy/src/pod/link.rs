//! Follows tailscaled's bus into the [`super::view::View`], for as long as the process runs: a tailscaled that ends or is started anew is
//! met again, and what it said last holds until then.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time};

use super::{
    state::{Link, Pod},
    view::Changed,
};
use crate::{
    localapi::{Bus, Error, LocalApi, NetfilterMode, Notify, PrefsChange, Watch},
    tailscaled::{self, Phase, Restarter},
};

/// How long until tailscaled is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The warning of tailscaled that means "not logged in", whatever the state is.
const LOGIN_STATE: &str = "login-state";
/// Its warning that it has no state, since that could not be read when it started (`ipn.StateStoreHealth`, 1.102).
const STATE_STORE: &str = "state-store-health";

/// Follows the bus until `changes` has no receiver. `tailscaled` tells when there is one.
pub async fn follow(
    api: LocalApi,
    mut tailscaled: watch::Receiver<tailscaled::State>,
    pod: Arc<Pod>,
    kernel_tun: bool,
    changes: watch::Sender<u64>,
) {
    let mut retry = RETRY.0;
    while !changes.is_closed() {
        if tailscaled.wait_for(|state| state.phase == Phase::Up).await.is_err() {
            return;
        }
        match connect(&api, kernel_tun).await {
            Ok(bus) => {
                retry = RETRY.0;
                pod.link.send_modify(|link| {
                    // Another process than the one before, perhaps: it tells of itself next.
                    (link.connected, link.without_state) = (true, false);
                });
                let ended = read(bus, &api, &pod, &changes).await;
                pod.link.send_modify(|link| link.connected = false);
                match ended {
                    Ok(()) => tracing::warn!("tailscaled has closed its bus"),
                    Err(error) => tracing::warn!(%error, "tailscaled's bus"),
                }
            }
            Err(error) => {
                tracing::debug!(%error, "tailscaled does not answer");
                time::sleep(retry).await;
                retry = (retry * 2).min(RETRY.1);
            }
        }
    }
}

async fn connect(api: &LocalApi, kernel_tun: bool) -> Result<Bus, Error> {
    let mask = Watch::INITIAL_STATUS
        | Watch::INITIAL_STATE
        | Watch::INITIAL_PREFS
        | Watch::INITIAL_HEALTH
        | Watch::PEER_CHANGES
        | Watch::NO_NETMAP;
    let bus = api.watch(mask).await?;
    // What is forwarded, and what is protected, is in our rules: tailscaled's own would forward and masquerade besides.
    if kernel_tun && api.prefs().await?.netfilter_mode != NetfilterMode::Off {
        let off = Some(NetfilterMode::Off);
        api.edit_prefs(&PrefsChange { netfilter_mode: off, ..PrefsChange::default() }).await?;
        tracing::info!("tailscaled's netfilter rules are off: the data path's take their place");
    }
    Ok(bus)
}

async fn read(
    mut bus: Bus,
    api: &LocalApi,
    pod: &Pod,
    changes: &watch::Sender<u64>,
) -> Result<(), Error> {
    while let Some(notify) = bus.next().await? {
        if let Some(error) = &notify.error {
            tracing::error!("tailscaled: {error}");
        }
        let mut changed = take_in(pod, &notify);
        if changed.dns {
            match api.dns_config().await {
                Ok(dns) => changed.rules |= pod.view().set_dns(&dns),
                // Not before there is a map of the network; the next notice asks again.
                Err(Error::Status { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if changed.rules {
            changes.send_modify(|count| *count += 1);
        }
    }
    Ok(())
}

fn take_in(pod: &Pod, notify: &Notify) -> Changed {
    let mut view = pod.view();
    let changed = view.apply(notify);
    let (state, has_address) = (view.state, view.own.is_some());
    let warning = view.warnings.get(LOGIN_STATE).cloned();
    let without_state = view.warnings.contains_key(STATE_STORE);
    drop(view);
    pod.link.send_if_modified(|link| {
        let before = link.clone();
        link.state = state;
        link.has_address = has_address;
        link.login_warning = warning;
        // The warnings of another process are not this one's.
        link.without_state |= without_state && notify.health.is_some();
        if link.state != before.state {
            let state = state.map(|state| state.to_string());
            tracing::info!(state, "tailscaled");
        }
        *link != before
    });
    changed
}

/// Has a tailscaled that could not read its state started anew, until one can: it goes on without, and refuses to log in. An API
/// server that has just started answers "forbidden" for a moment, and that is enough.
pub async fn restart_without_state(pod: Arc<Pod>, restarter: Restarter) {
    let mut link = pod.link.subscribe();
    loop {
        let Ok(restarts) = link
            .wait_for(|link| link.connected && link.without_state)
            .await
            .map(|link| link.restarts)
        else {
            return;
        };
        tracing::error!(
            "tailscaled could not read its state and cannot log in: it is started anew"
        );
        restarter.restart().await;
        let is_another = |link: &Link| link.restarts != restarts && !link.without_state;
        if link.wait_for(is_another).await.is_err() {
            return;
        }
    }
}
