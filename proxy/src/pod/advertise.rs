//! Offers the Services of the serve configuration to the tailnet (`TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT`), as long as
//! the process is not about to end.

use std::{collections::BTreeSet, time::Duration};

use tokio::time;

use super::serve::Inputs;
use crate::{
    localapi::{Error, LocalApi, PrefsChange, State},
    shared::Shared,
};

/// How long until a failed attempt is repeated, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Keeps the Services of what is served advertised. Others that the config file names are left alone.
pub(super) async fn keep(inputs: &Inputs) {
    if !inputs.settings.auto_advertise {
        return;
    }
    let (mut served, mut link) = (inputs.pod.served.subscribe(), inputs.pod.link.subscribe());
    let mut changes = inputs.changes.clone();
    // Without a config file, what is advertised at the start comes from an earlier run of this.
    let is_alone = inputs.settings.tailscaled.config_dir.is_none();
    let mut ours = None;
    let mut retry = RETRY.0;
    loop {
        let wanted: Option<BTreeSet<String>> = served
            .borrow_and_update()
            .as_ref()
            .map(|config| config.services.keys().cloned().collect());
        let link_now = link.borrow_and_update().clone();
        let can = link_now.connected && link_now.state == Some(State::Running);
        let told = inputs.pod.view().services.clone();
        let mut pause = None;
        if let Some(wanted) = wanted.filter(|_| can && !inputs.shared.is_stopping()) {
            let before = ours.get_or_insert_with(|| {
                let is_left = is_alone && !wanted.is_empty();
                if is_left { told.clone() } else { BTreeSet::new() }
            });
            let is_due = !wanted.is_subset(&told) || !before.is_subset(&wanted);
            match if is_due { advertise(inputs, before, &wanted).await } else { Ok(()) } {
                Ok(()) => (ours, retry) = (Some(wanted), RETRY.0),
                Err(error) => {
                    tracing::warn!(%error, "advertising the Services of the serve configuration");
                    pause = Some(retry);
                    retry = (retry * 2).min(RETRY.1);
                }
            }
        }
        let again = async {
            match pause {
                Some(pause) => time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = served.changed() => if changed.is_err() { return },
            changed = link.changed() => if changed.is_err() { return },
            changed = changes.changed() => if changed.is_err() { return },
            () = again => {}
        }
    }
}

async fn advertise(
    inputs: &Inputs,
    ours: &BTreeSet<String>,
    wanted: &BTreeSet<String>,
) -> Result<(), Error> {
    let Inputs { api, shared, .. } = inputs;
    let advertised: BTreeSet<_> = api.prefs().await?.advertise_services.into_iter().collect();
    let next: BTreeSet<_> = advertised.difference(ours).chain(wanted).cloned().collect();
    if next != advertised {
        set(api, &next).await?;
        tracing::info!(services = ?next, "advertised");
        withdraw_if_stopping(api, shared).await?;
    }
    Ok(())
}

/// Whoever withdraws at the end may have done so just before.
async fn withdraw_if_stopping(api: &LocalApi, shared: &Shared) -> Result<(), Error> {
    if shared.is_stopping() { set(api, &BTreeSet::new()).await } else { Ok(()) }
}

async fn set(api: &LocalApi, services: &BTreeSet<String>) -> Result<(), Error> {
    let advertise_services = Some(services.iter().cloned().collect());
    api.edit_prefs(&PrefsChange { advertise_services, ..PrefsChange::default() }).await.map(drop)
}
