//! A pod's process: tailscaled, the tailnet, the rules, until told to stop.

use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use proxy_rules::config::PathKind;
use secrecy::ExposeSecret;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    config_map::Place,
    parts::Parts,
    report,
    secret::{self, Desired, StateSecret},
    settings::{Auth, ConfigFile, Settings},
    state::Pod,
    stop::stop,
    without_tun,
};
use crate::{
    args,
    data_path::{select::Real, userspace::through::Through},
    engine::Engine,
    localapi::LocalApi,
    only::Only,
    shared::Shared,
    status::ConfigStatus,
    tailscaled::{self, Netfilter, Options, Plan, Programs, Tailscaled},
    telemetry::Level,
};

/// The device that tailscaled makes unless it is told otherwise.
pub(super) const TAILNET_DEVICE: &str = "tailscale0";
/// By what tailscaled makes its own rules, if it makes any.
const FIREWALL_MODE: &str = "TS_DEBUG_FIREWALL_MODE";
/// How long the first look at the state Secret may hold up the start.
const OPENED: Duration = Duration::from_secs(2);
/// How long tailscaled may take to write all of its state.
const CONSISTENT: Duration = Duration::from_secs(3);
/// The settings are not valid.
const INVALID: u8 = 3;

/// Runs until told to stop.
pub async fn run(args: args::Pod, level: Level) -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut settings = match Settings::from_env(&|name| std::env::var_os(name), Path::new("/")) {
        Ok(settings) => settings,
        Err(errors) => {
            for error in &errors {
                tracing::error!("{error}");
            }
            return Ok(ExitCode::from(INVALID));
        }
    };
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let pod = Arc::new(Pod::new());
    let kernel_tun = has_tun(&settings, &pod);
    let only = match (args.data_path.only(), kernel_tun) {
        (Some(only), true) => Some(only),
        (None, true) => None,
        (_, false) => Some(PathKind::Userspace),
    };
    let _only = (only != Some(PathKind::Userspace)).then(Only::claim).transpose()?;
    let through = if kernel_tun { None } else { Some(Arc::new(without_tun::through(&settings)?)) };
    let mut paths = Real::new(args.bpffs.clone());
    paths.through.clone_from(&through);
    let engine = Engine::start(Box::new(paths))?;
    let shared = Arc::new(Shared::new(engine, level, ConfigStatus::default()));
    let _ = shared.pod.set(Arc::clone(&pod));

    let config = config(&settings, &args).await?;
    let map = config_map(&settings, &args)?;
    let secret = state_secret(&mut settings, &config, &pod).await?;
    let settings = Arc::new(settings);
    let plan = plan(&settings, &config, through.as_deref());
    let api = LocalApi::new(&settings.tailscaled.socket);
    let mut parts = Parts::new(Arc::clone(&shared), Arc::clone(&pod), Arc::clone(&settings), api);
    parts.serve(&args.socket).await?;
    let tailscaled = Tailscaled::start(plan).context("starting tailscaled")?;
    let files = parts.forward(through, only, (args.config.clone(), map), &tailscaled)?;
    parts.watch_tailscaled(&tailscaled);
    parts.log_in(&tailscaled, config.file.as_ref());
    if let Some(secret) = &secret {
        let place = settings.pod.clone();
        parts.spawn(report::report(Arc::clone(&pod), Arc::clone(secret), place, files));
    }
    let another_key = parts.another_key(config, secret.as_ref());

    let end = tokio::select! {
        _ = terminate.recv() => End::Told,
        _ = interrupt.recv() => End::Told,
        () = another_key => End::AnotherNode,
        ended = parts.tasks.join_next() => {
            // None of them ends as long as the process runs: a panic, most likely.
            tracing::error!(?ended, "a part of the process has ended");
            End::Broken
        }
    };
    let drain = match end {
        End::AnotherNode => Duration::ZERO,
        End::Told | End::Broken => Duration::from_secs(args.drain_seconds),
    };
    if let (Some(secret), true) = (&secret, end != End::AnotherNode)
        && !secret.consistent(CONSISTENT).await
    {
        tracing::warn!("tailscaled has not written all of its state");
    }
    stop(&shared, &parts.api, &tailscaled, drain, &mut terminate, &mut interrupt).await?;
    if let (Some(secret), End::AnotherNode) = (&secret, end) {
        secret.forget_node().await?;
    }
    let _ = std::fs::remove_file(&args.socket);
    Ok(if end == End::Broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Why the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// By a signal.
    Told,
    /// To start anew as another node.
    AnotherNode,
    /// By a fault of its own.
    Broken,
}

/// tailscaled's config file, if it has one, and its version.
pub(super) struct Configured {
    programs: Programs,
    pub(super) capability: u32,
    pub(super) file: Option<ConfigFile>,
}

async fn config(settings: &Settings, args: &args::Pod) -> Result<Configured> {
    let programs =
        Programs { tailscaled: args.tailscaled.clone(), tailscale: args.tailscale.clone() };
    let capability = tailscaled::login::capability_version(&programs.tailscale).await?;
    let directory = settings.tailscaled.config_dir.as_ref();
    let file = directory.map(|directory| ConfigFile::choose(directory, capability)).transpose()?;
    Ok(Configured { programs, capability, file })
}

/// The ConfigMap of the rules, if there is one.
fn config_map(settings: &Settings, args: &args::Pod) -> Result<Option<Place>> {
    let Some(name) = args.config_map.clone() else { return Ok(None) };
    let kube = settings.kube.as_ref().context(
        "SLUICE_CONFIG_MAP needs a service account: set automountServiceAccountToken, or SLUICE_CONFIG for a mounted file",
    )?;
    let (client, namespace) = secret::client(kube)?;
    Ok(Some(Place { client, namespace, name }))
}

/// The state Secret, where there is one. An auth key in it is used if there is no other credential.
async fn state_secret(
    settings: &mut Settings,
    config: &Configured,
    pod: &Pod,
) -> Result<Option<Arc<StateSecret>>> {
    let Some(kube) = &settings.kube else { return Ok(None) };
    let Some(name) = &kube.secret else { return Ok(None) };
    let (client, namespace) = secret::client(kube)?;
    let key = config.file.as_ref().and_then(|file| file.auth_key.as_ref());
    let key = key.map(ExposeSecret::expose_secret);
    let desired = Desired::at_start(settings.pod.uid.as_deref(), config.capability, key);
    let secret = StateSecret::start(client, namespace, name.clone(), desired);
    // Only a key that must come from there is worth waiting for: with its state in hand a node needs no API server.
    let wants_key = matches!(settings.auth, Auth::None) && config.file.is_none();
    let patience = if wants_key { settings.boot_timeout } else { OPENED };
    if let Some(opened) = secret.opened(patience).await {
        if let Some(unusable) = opened.unusable() {
            tracing::error!("{unusable}");
            pod.troubles().secret = Some(unusable.to_string());
        }
        if let (true, Some(key)) = (wants_key, opened.auth_key) {
            tracing::info!("the auth key of the state Secret is used");
            settings.auth = Auth::Key(key);
        }
        // tailscaled's store makes all of an empty Secret's data at once, and would undo what is written meanwhile.
        secret.says(1, OPENED).await;
    } else {
        tracing::warn!(?patience, "the API server has not answered: going on without");
    }
    Ok(Some(Arc::new(secret)))
}

/// Whether tailscaled can have a TUN device. If not, though it was wanted, user-space networking is used, and told.
fn has_tun(settings: &Settings, pod: &Pod) -> bool {
    if settings.tailscaled.user_space {
        return false;
    }
    match tailscaled::tun::ensure(&settings.root) {
        Ok(_) => true,
        Err(error) => {
            let reason = error.why.label();
            tracing::error!(reason, "no TUN device, user-space networking is used: {error}");
            pod.troubles().tun = Some(format!("TunUnavailable: {reason}: {error}"));
            false
        }
    }
}

fn plan(settings: &Settings, config: &Configured, through: Option<&Through>) -> Plan {
    let netfilter = if through.is_none() { Netfilter::Off } else { Netfilter::Unchanged };
    let options = Options {
        programs: config.programs.clone(),
        config: config.file.clone(),
        without_tun: through.is_some(),
        netfilter,
        socks5: through.map(Through::socks5),
    };
    let mut plan = Plan::new(settings, options);
    if netfilter == Netfilter::Off && std::env::var_os(FIREWALL_MODE).is_none() {
        // Else it runs iptables to see what that can do, and makes its tables by it, at each start.
        plan.env.push((FIREWALL_MODE.to_owned(), "nftables".to_owned()));
    }
    plan
}
