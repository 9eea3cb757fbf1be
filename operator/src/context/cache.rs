//! What is in the operator's namespace, kept up to date by one watch a kind.
//!
//! A cache lags behind our own writes. That is harmless: objects are applied under names that follow from their parents, and
//! what must not be done twice (a key) is preceded by a read of the API server itself.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{FutureExt as _, StreamExt as _, channel::mpsc};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::{Deployment, StatefulSet},
        core::v1::{ConfigMap, Secret, Service, ServiceAccount},
        discovery::v1::EndpointSlice,
        rbac::v1::{Role, RoleBinding},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Lookup, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::{
    crd::{DnsConfig, ProxyClass},
    label::{self, Labels},
};

/// What is in the operator's namespace and has the label [`label::MANAGED`], all ProxyClasses and DNSConfigs.
pub struct Cache {
    /// Secrets.
    pub secrets: Store<Secret>,
    /// Services.
    pub services: Store<Service>,
    /// StatefulSets.
    pub stateful_sets: Store<StatefulSet>,
    /// ServiceAccounts.
    pub accounts: Store<ServiceAccount>,
    /// Roles.
    pub roles: Store<Role>,
    /// RoleBindings.
    pub bindings: Store<RoleBinding>,
    /// ConfigMaps.
    pub config_maps: Store<ConfigMap>,
    /// Deployments.
    pub deployments: Store<Deployment>,
    /// EndpointSlices, which have the labels of their Services.
    pub slices: Store<EndpointSlice>,
    /// ProxyClasses.
    pub classes: Store<ProxyClass>,
    /// DNSConfigs.
    pub dns_configs: Store<DnsConfig>,
    listeners: Arc<Mutex<Vec<mpsc::UnboundedSender<Trigger>>>>,
    _watches: JoinSet<()>,
}

/// What changed, so that its parents are reconciled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Trigger {
    /// Something that was made for this.
    Child {
        /// The value of [`label::PARENT_KIND`].
        kind: String,
        /// The parent's namespace; to be ignored for what has none.
        namespace: String,
        /// The parent's name.
        name: String,
    },
    /// A ProxyClass.
    Class(String),
    /// Pods behind a Service, or a DNSConfig: names of the tailnet may lead elsewhere.
    Names,
}

/// Spreads changes of one kind.
type Tell<K> = fn(&K) -> Option<Trigger>;

impl Cache {
    /// Starts the watches; they end with the cache.
    pub(super) fn start(client: &Client, namespace: &str) -> Self {
        let listeners = Arc::default();
        let mut start = Start { client, namespace, listeners: &listeners, watches: JoinSet::new() };
        Self {
            secrets: start.children(),
            services: start.children(),
            stateful_sets: start.children(),
            accounts: start.children(),
            roles: start.children(),
            bindings: start.children(),
            config_maps: start.children(),
            deployments: start.children(),
            slices: start.managed(|_| Some(Trigger::Names)),
            dns_configs: start.watch(Api::all(client.clone()), watcher::Config::default(), |_| {
                Some(Trigger::Names)
            }),
            classes: start.watch(
                Api::all(client.clone()),
                watcher::Config::default(),
                |class: &ProxyClass| Some(Trigger::Class(class.name_any())),
            ),
            _watches: start.watches,
            listeners,
        }
    }

    /// Waits until everything has been listed once. Before, what is there is not known.
    pub async fn wait_until_ready(&self) {
        // The writers live as long as the cache: that they were dropped is not an answer.
        let _ = self.secrets.wait_until_ready().await;
        let _ = self.services.wait_until_ready().await;
        let _ = self.stateful_sets.wait_until_ready().await;
        let _ = self.accounts.wait_until_ready().await;
        let _ = self.roles.wait_until_ready().await;
        let _ = self.bindings.wait_until_ready().await;
        let _ = self.config_maps.wait_until_ready().await;
        let _ = self.deployments.wait_until_ready().await;
        let _ = self.slices.wait_until_ready().await;
        let _ = self.classes.wait_until_ready().await;
        let _ = self.dns_configs.wait_until_ready().await;
    }

    /// Whether everything has been listed once.
    pub fn is_ready(&self) -> bool {
        self.wait_until_ready().now_or_never().is_some()
    }

    /// Changes from now on.
    pub fn changes(&self) -> mpsc::UnboundedReceiver<Trigger> {
        let (sender, receiver) = mpsc::unbounded();
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        receiver
    }
}

/// Everything in a store that has these labels, by name.
pub(crate) fn labelled<K>(store: &Store<K>, labels: &Labels) -> Vec<Arc<K>>
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + 'static,
{
    let mut all = store.state_filter(|object| label::has(object.meta().labels.as_ref(), labels));
    all.sort_by_key(|object| object.meta().name.clone());
    all
}

struct Start<'a> {
    client: &'a Client,
    namespace: &'a str,
    listeners: &'a Arc<Mutex<Vec<mpsc::UnboundedSender<Trigger>>>>,
    watches: JoinSet<()>,
}

impl Start<'_> {
    fn children<K>(&mut self) -> Store<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        self.managed(child)
    }

    /// What is the operator's in its namespace.
    fn managed<K>(&mut self, tell: Tell<K>) -> Store<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let config = watcher::Config::default().labels(&format!("{}=true", label::MANAGED));
        self.watch(Api::namespaced(self.client.clone(), self.namespace), config, tell)
    }

    fn watch<K>(&mut self, api: Api<K>, config: watcher::Config, tell: Tell<K>) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let (store, writer) = reflector::store();
        let listeners = Arc::clone(self.listeners);
        let events = reflector::reflector(writer, watcher(api, config).default_backoff());
        self.watches.spawn(events.for_each(move |event| {
            match event {
                Ok(
                    watcher::Event::Apply(object)
                    | watcher::Event::InitApply(object)
                    | watcher::Event::Delete(object),
                ) => {
                    if let Some(trigger) = tell(&object) {
                        let mut listeners =
                            listeners.lock().unwrap_or_else(PoisonError::into_inner);
                        listeners
                            .retain(|listener| listener.unbounded_send(trigger.clone()).is_ok());
                    }
                }
                Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
                Err(error) => {
                    tracing::warn!(kind = %K::kind(&()), %error, "watching goes on later");
                }
            }
            std::future::ready(())
        }));
        store
    }
}

fn child<K: Resource<DynamicType = ()>>(object: &K) -> Option<Trigger> {
    let label = |key: &str| object.labels().get(key).cloned();
    Some(Trigger::Child {
        kind: label(label::PARENT_KIND)?,
        namespace: label(label::PARENT_NAMESPACE).unwrap_or_default(),
        name: label(label::PARENT_NAME)?,
    })
}
