//! The end of a pod's process: what is advertised is withdrawn, and flows may go on until they are quiet or time is up.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::{signal::unix::Signal, time};

use super::doors;
use crate::{
    localapi::{Error, LocalApi, PrefsChange},
    quiet::quiet,
    shared::Shared,
    tailscaled::Tailscaled,
};

/// How long tailscaled may take to end.
const TAILSCALED_STOP: Duration = Duration::from_secs(4);

/// How long control may take to choose another host of a Service.
const FAILOVER: Duration = Duration::from_secs(15);
/// How often is looked whether it has.
const LOOK: Duration = Duration::from_millis(50);
/// How long until every client has been told.
const HEARSAY: Duration = Duration::from_secs(1);

/// Withdraws what is advertised, serves until quiet or the deadline, and ends.
pub(super) async fn stop(
    shared: &Shared,
    api: &LocalApi,
    tailscaled: &Tailscaled,
    drain: Duration,
    terminate: &mut Signal,
    interrupt: &mut Signal,
) -> Result<()> {
    shared.stop();
    tracing::info!(deadline = ?drain, "draining");
    let drained = async {
        let withdrawn = withdraw(api).await;
        if !withdrawn.is_empty() {
            moved(shared, &withdrawn).await;
        }
        quiet(&shared.engine).await;
    };
    tokio::select! {
        () = drained => tracing::info!("quiet"),
        () = time::sleep(drain) => tracing::info!("the deadline has come"),
        _ = terminate.recv() => tracing::warn!("told again: ending at once"),
        _ = interrupt.recv() => tracing::warn!("told again: ending at once"),
    }
    // Until here the tailnet was served, as on the other data paths.
    if let Some(pod) = shared.pod.get() {
        doors::withdraw(pod, api).await;
    }
    tailscaled.stop(TAILSCALED_STOP).await;
    let removed = shared.engine.end().await?;
    removed.map_err(anyhow::Error::msg).context("removing the data path")
}

/// Has control lead new connections to other hosts of the Services; which there were.
async fn withdraw(api: &LocalApi) -> Vec<String> {
    let none = PrefsChange { advertise_services: Some(Vec::new()), ..PrefsChange::default() };
    let withdrawn = async {
        let services = api.prefs().await?.advertise_services;
        if !services.is_empty() {
            api.edit_prefs(&none).await?;
            tracing::info!(?services, "withdrawn");
        }
        Ok::<_, Error>(services)
    };
    withdrawn.await.unwrap_or_else(|error| {
        tracing::warn!(%error, "withdrawing the Services");
        Vec::new()
    })
}

/// Until other hosts have the Services' addresses and clients have heard of it. tailscaled serves on meanwhile: its
/// connections are not among the data path's flows.
async fn moved(shared: &Shared, services: &[String]) {
    let Some(pod) = shared.pod.get() else { return };
    let elsewhere = async {
        while !pod.view().is_hosted_elsewhere(services) {
            time::sleep(LOOK).await;
        }
    };
    if time::timeout(FAILOVER, elsewhere).await.is_ok() {
        time::sleep(HEARSAY).await;
    } else {
        tracing::warn!("no other host serves the Services");
    }
}
