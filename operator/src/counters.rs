//! What the proxies have carried, and how: read from each proxy, summed by what it was made for.
//!
//! Only the replica that reconciles reads and tells, so that nothing is told twice. It reads when somebody asks, and once a
//! minute for what objects say of themselves; without proxies it does nothing. It asks the API server only when that changes
//! something.

mod proxy;
mod read;
mod report;
mod sums;
mod tell;
mod text;

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use futures::{Future, StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher,
    },
};
use tokio::{task::JoinHandle, time::Instant};

pub(crate) use self::read::json;
use self::{proxy::Proxy, sums::Sums, tell::Told};
pub use self::{
    report::{PodReport, Port, Report, Reports, Target},
    sums::Parent,
};
use crate::{context::Context, label};

/// How often objects are told of their traffic.
pub const INTERVAL: Duration = Duration::from_mins(1);

/// Who asks again so soon gets the same answer.
const FRESH: Duration = Duration::from_secs(1);

/// Proxies that are read at once.
const AT_ONCE: usize = 32;

/// What the proxies have carried since this replica reconciles.
#[derive(Default)]
pub struct Counters {
    /// While this replica reconciles.
    pods: std::sync::Mutex<Option<Store<Pod>>>,
    /// Held while proxies are read: of those who ask meanwhile each gets the answer.
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    sums: Sums,
    read: Option<Instant>,
    told: Told,
}

impl Counters {
    /// What all proxies have carried; `None` where another replica reconciles.
    pub async fn reports(&self, context: &Context) -> Option<Reports> {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let mut state = self.state.lock().await;
        Some(read_all(&mut state, &pods, context).await)
    }

    /// The same, as Prometheus reads it.
    pub async fn metrics(&self, context: &Context) -> String {
        self.reports(context).await.map_or_else(String::new, |reports| text::metrics(&reports))
    }

    /// Tells objects of their traffic, so often, until it is told to stop.
    pub async fn run(
        &self,
        context: Arc<Context>,
        interval: Duration,
        stop: impl Future<Output = ()> + Send,
    ) {
        // What another replica has told meanwhile is not known here.
        *self.state.lock().await = State::default();
        let (pods, watch) = watch(&context.client, &context.settings.namespace);
        let _turn = Turn::begin(self, pods.clone(), tokio::spawn(watch));
        let telling = async {
            let _ = pods.wait_until_ready().await;
            loop {
                let mut state = self.state.lock().await;
                let reports = read_all(&mut state, &pods, &context).await;
                state.told.tell(&context, &reports).await;
                drop(state);
                tokio::time::sleep(interval).await;
            }
        };
        tokio::select! {
            () = telling => {}
            () = stop => {}
        }
    }

    fn set_pods(&self, pods: Option<Store<Pod>>) {
        *self.pods.lock().unwrap_or_else(PoisonError::into_inner) = pods;
    }
}

/// While this replica reconciles. It may end in the middle of anything.
struct Turn<'a> {
    counters: &'a Counters,
    watch: JoinHandle<()>,
}

impl<'a> Turn<'a> {
    fn begin(counters: &'a Counters, pods: Store<Pod>, watch: JoinHandle<()>) -> Self {
        counters.set_pods(Some(pods));
        Self { counters, watch }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.watch.abort();
        self.counters.set_pods(None);
    }
}

async fn read_all(state: &mut State, pods: &Store<Pod>, context: &Context) -> Reports {
    if state.read.is_none_or(|read| read.elapsed() >= FRESH) {
        let proxies = pods.state().into_iter().filter_map(|pod| Proxy::of(&pod));
        let readings: Vec<_> = stream::iter(proxies)
            .map(async |proxy| {
                let outcome = read::status(proxy.address).await;
                (proxy, outcome)
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        state.sums.take(readings, |parent| is_there(context, parent));
        state.read = Some(Instant::now());
    }
    state.sums.reports()
}

/// While there is a StatefulSet, pods that are gone come back, and sums go on.
fn is_there(context: &Context, parent: &Parent) -> bool {
    let sets = context.cache.stateful_sets.state();
    sets.iter().any(|set| Parent::of(set.as_ref()).as_ref() == Some(parent))
}

/// The pods of all proxies: no more of them than is needed.
fn watch(client: &Client, namespace: &str) -> (Store<Pod>, impl Future<Output = ()> + use<>) {
    let (store, writer) = reflector::store();
    let config = watcher::Config::default().labels(&format!("{}=true", label::MANAGED));
    let changes = watcher(Api::<Pod>::namespaced(client.clone(), namespace), config)
        .default_backoff()
        .modify(|pod| {
            pod.metadata.managed_fields = None;
            pod.metadata.annotations = None;
            pod.spec = None;
            let status = pod.status.take().unwrap_or_default();
            pod.status = Some(PodStatus {
                phase: status.phase,
                pod_ip: status.pod_ip,
                ..PodStatus::default()
            });
        });
    let all = reflector::reflector(writer, changes).for_each(|event| {
        if let Err(error) = event {
            tracing::warn!(%error, "watching pods of proxies goes on later");
        }
        std::future::ready(())
    });
    (store, all)
}
