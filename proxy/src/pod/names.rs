//! Names of the cluster's DNS: each is looked up again when its time to live has passed, and keeps its last addresses while
//! no server answers.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    time::Duration,
};

use hickory_resolver::{
    TokioResolver,
    config::{LookupIpStrategy, ResolveHosts},
    net::NetError,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{self, Instant},
};

/// How often a name is looked up at most and at least, whatever its time to live.
const TTL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(10));
/// How long until a lookup that failed is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Addresses by name; the text says why a name has none.
pub type Names = HashMap<String, Result<Vec<IpAddr>, String>>;

/// Looks the wanted names up, as long as somebody wants to know.
pub async fn look_up(mut wanted: watch::Receiver<BTreeSet<String>>, found: watch::Sender<Names>) {
    let mut lookups = HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let names = wanted.borrow_and_update().clone();
        lookups.retain(|name, task: &mut tokio::task::AbortHandle| {
            let keep = names.contains(name);
            if !keep {
                task.abort();
            }
            keep
        });
        found.send_if_modified(|found| {
            let before = found.len();
            found.retain(|name, _| names.contains(name));
            found.len() != before
        });
        for name in names {
            let start = || tasks.spawn(follow(name.clone(), found.clone()));
            lookups.entry(name.clone()).or_insert_with(start);
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = found.closed() => return,
        }
    }
}

/// Follows one name for ever.
async fn follow(name: String, found: watch::Sender<Names>) {
    let mut retry = RETRY.0;
    loop {
        let next = match ask(&name).await {
            Ok((addresses, until)) => {
                retry = RETRY.0;
                let is_new = store(&found, &name, Ok(addresses.clone()));
                if is_new {
                    tracing::info!(name, ?addresses, "looked up");
                }
                let left = until.saturating_duration_since(Instant::now());
                left.clamp(TTL.0, TTL.1)
            }
            Err(failure) => {
                // Nobody answering does not mean that the backends are gone; the name's being gone does.
                let known = matches!(found.borrow().get(&name), Some(Ok(_)));
                if failure.is_certain || !known {
                    store(&found, &name, Err(failure.text.clone()));
                }
                tracing::warn!(name, error = failure.text, "looking up");
                let wait = retry;
                retry = (retry * 2).min(RETRY.1);
                wait
            }
        };
        time::sleep(next).await;
    }
}

/// Whether it is new.
fn store(found: &watch::Sender<Names>, name: &str, outcome: Result<Vec<IpAddr>, String>) -> bool {
    found.send_if_modified(|found| found.insert(name.to_owned(), outcome.clone()) != Some(outcome))
}

struct Failure {
    text: String,
    /// A server has said that there is no such name or no address of it.
    is_certain: bool,
}

/// The addresses of both families, sorted, and how long they are good. The configuration is read anew each time: it is a
/// short file, and tailscaled may replace it while the pod runs.
async fn ask(name: &str) -> Result<(Vec<IpAddr>, Instant), Failure> {
    let failure = |error: NetError| Failure {
        is_certain: error.is_no_records_found(),
        text: format!("looking up {name}: {error}"),
    };
    let mut builder = TokioResolver::builder_tokio().map_err(failure)?;
    let options = builder.options_mut();
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.use_hosts_file = ResolveHosts::Always;
    options.cache_size = 0;
    let found = builder.build().map_err(failure)?.lookup_ip(name).await.map_err(failure)?;
    let addresses: BTreeSet<IpAddr> = found.iter().collect();
    Ok((addresses.into_iter().collect(), Instant::from_std(found.valid_until())))
}
