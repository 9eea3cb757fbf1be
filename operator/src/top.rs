//! `sluice-operator top` and `kubectl sluice top`: what proxies carry, live.

mod rates;

use std::{
    io::{IsTerminal as _, Write as _},
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};

use crate::{
    context::own_namespace,
    counters::{self, Reports},
    health, leader,
};

/// What is shown.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The operator's namespace.
    #[arg(short, long, env = "OPERATOR_NAMESPACE", default_value_t = own_namespace())]
    namespace: String,
    /// The address and port of the replica that reconciles, where the API server is not to be asked for it.
    #[arg(long)]
    operator: Option<SocketAddr>,
    /// Seconds between two looks.
    #[arg(short, long, default_value = "2", value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Show it once, and end.
    #[arg(long)]
    once: bool,
    /// One JSON object a line, for each port of each object.
    #[arg(long)]
    json: bool,
}

/// Whom to ask.
enum Source {
    /// The operator itself.
    Address(SocketAddr),
    /// The API server, which passes it on to the operator's pod.
    Cluster(Client),
}

/// Shows it until it is told to stop.
pub async fn run(args: Args, stop: impl Future<Output = ()>) -> Result<()> {
    tokio::select! {
        outcome = show(&args) => outcome,
        () = stop => Ok(()),
    }
}

async fn show(args: &Args) -> Result<()> {
    let source = match args.operator {
        Some(address) => Source::Address(address),
        None => Source::Cluster(Client::try_default().await.context(
            "find the API server: set KUBECONFIG, or name the operator (--operator ADDRESS:PORT)",
        )?),
    };
    let clear = std::io::stdout().is_terminal() && !args.once && !args.json;
    let mut before = ask(&source, &args.namespace).await?;
    let mut since = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_secs(args.interval)).await;
        let now = ask(&source, &args.namespace).await?;
        let rates = rates::rates(&before, &now, since.elapsed().as_secs_f64());
        since = Instant::now();
        let mut text = String::new();
        if args.json {
            for rate in &rates {
                text += &serde_json::to_string(rate)?;
                text.push('\n');
            }
        } else {
            if clear {
                // Home, and clear what follows.
                text.push_str("\x1b[H\x1b[J");
            }
            text += &rates::table(&now, &rates);
        }
        std::io::stdout().write_all(text.as_bytes())?;
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

async fn ask(source: &Source, namespace: &str) -> Result<Reports> {
    let client = match source {
        Source::Address(address) => return Ok(counters::json(*address, health::COUNTERS).await?),
        Source::Cluster(client) => client,
    };
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = leases.get_opt(leader::LEASE).await.context("find out which replica reconciles")?;
    let holder = lease.and_then(|lease| lease.spec?.holder_identity);
    let Some(pod) = holder.as_deref().and_then(leader::pod) else {
        bail!(
            "nobody holds the Lease {} in namespace {namespace}: does the operator run there (--namespace)?",
            leader::LEASE
        );
    };
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:9002/proxy{}", health::COUNTERS);
    let request = hyper::Request::get(&path).body(Vec::new())?;
    client.request(request).await.with_context(|| format!("ask the operator's pod {pod}"))
}
