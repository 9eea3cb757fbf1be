//! The `sluice-operator` program.

use std::{io::Write as _, net::SocketAddr, process::ExitCode, sync::Arc};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use futures::FutureExt as _;
use operator::{
    context::{Context, Settings},
    health,
    leader::{self, Lease, Standing},
    nameserver,
    tailnet_api::{self, Registry},
    telemetry::{self, Logging},
    top,
};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};

/// Connects a Kubernetes cluster and tailnets: makes the proxies that Services, Ingresses and Connectors ask for.
///
/// The control server and the credentials for it are read from the environment, as upstream's operator does:
/// OPERATOR_LOGIN_SERVER, and CLIENT_ID_FILE with CLIENT_SECRET_FILE (an OAuth client), CLIENT_ID (workload identity) or
/// HEADSCALE_API_KEY_FILE.
#[derive(Debug, Parser)]
#[command(name = "sluice-operator", version, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    settings: Settings,
    /// Where /healthz, /readyz, /metrics and /v1/counters are served.
    #[arg(long, env = "OPERATOR_LISTEN", default_value = "[::]:9002")]
    listen: SocketAddr,
    /// info or debug, as JSON, or dev, for people. Anything else is info.
    #[arg(long, env = "OPERATOR_LOGGING", default_value = "info")]
    logging: String,
}

/// What the program is besides the operator.
#[derive(Debug, Subcommand)]
enum Command {
    /// Answers for names of the tailnet, in the pods of a DNSConfig.
    Nameserver(nameserver::Args),
    /// What proxies carry, live.
    Top(top::Args),
}

fn main() -> ExitCode {
    let args = Args::parse();
    telemetry::start(Logging::from(args.logging.as_str()));
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "sluice-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(args: Args) -> Result<()> {
    let told = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = stopped(told).shared();
    match args.command {
        Some(Command::Nameserver(args)) => return nameserver::run(args, stop).await,
        Some(Command::Top(args)) => return top::run(args, stop).await,
        None => {}
    }
    let tailnet = tailnet_api::Settings::from_variables(|name| std::env::var(name).ok())?;
    let registry = Registry::new(tailnet.connect()?);
    let client = kube::Client::try_default().await.context("find the API server")?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("listen at {} (--listen)", args.listen))?;

    if std::env::var("APISERVER_PROXY").is_ok_and(|mode| !matches!(mode.as_str(), "" | "false")) {
        tracing::warn!(
            "APISERVER_PROXY: there is no API server proxy in this process: make a ProxyGroup of type kube-apiserver"
        );
    }
    let name = args.settings.pod_name.clone().unwrap_or_else(|| "operator".to_owned());
    let lease = Lease::new(client.clone(), &args.settings.namespace, &name);
    let standing = Standing::default();
    let context = Arc::new(Context::new(client, args.settings, registry));
    tracing::info!(namespace = %context.settings.namespace, listen = %args.listen, "started");
    let health =
        tokio::spawn(health::serve(listener, Arc::clone(&context), standing.clone(), stop.clone()));
    Box::pin(leader::run(context, lease, standing, stop)).await;
    health.await??;
    tracing::info!("stopped");
    Ok(())
}

/// Until the process is told to end. A second time it ends at once.
async fn stopped((mut terminate, mut interrupt): (Signal, Signal)) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping: what is being reconciled is done");
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        std::process::exit(1);
    });
}
