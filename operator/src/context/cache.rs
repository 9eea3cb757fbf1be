//! What is in the operator's namespace, and what users have elsewhere, kept up to date by one watch a kind.
//!
//! A cache lags behind our own writes. That is harmless: objects are applied under names that follow from their parents, and
//! what must not be done twice (a key) is preceded by a read of the API server itself.

mod strip;
mod trigger;

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{FutureExt as _, StreamExt as _, channel::mpsc};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::{Deployment, StatefulSet},
        core::v1::{ConfigMap, Node, Pod, Secret, Service, ServiceAccount},
        discovery::v1::EndpointSlice,
        networking::v1::Ingress,
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

pub(crate) use self::strip::SERVICE_NAME;
pub use self::trigger::Trigger;
use self::trigger::{Tell, child};
use crate::{
    crd::{DnsConfig, ProxyClass, ProxyGroup, ProxyGroupPolicy},
    label::{self, Labels, ParentKind},
};

/// What is in the operator's namespace and has the label [`label::MANAGED`]; what is in no namespace; and of what users have
/// everywhere the part that others depend on.
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
    /// Pods of ProxyGroups, without who owns which of their fields.
    pub pods: Store<Pod>,
    /// ProxyClasses.
    pub classes: Store<ProxyClass>,
    /// DNSConfigs.
    pub dns_configs: Store<DnsConfig>,
    /// ProxyGroups.
    pub groups: Store<ProxyGroup>,
    /// ProxyGroupPolicies of all namespaces.
    pub policies: Store<ProxyGroupPolicy>,
    /// The API server's own policies, whoever made them.
    pub admission: Store<ValidatingAdmissionPolicy>,
    /// Where these count.
    pub admission_bindings: Store<ValidatingAdmissionPolicyBinding>,
    /// Nodes, with their labels and addresses only.
    pub nodes: Store<Node>,
    /// Services of all namespaces: what leads to them, and what they ask of ProxyGroups.
    pub backends: Store<Service>,
    /// Ingresses of all namespaces: what they ask of ProxyGroups.
    pub ingresses: Store<Ingress>,
    /// Endpoints of all namespaces: which Services have some that are ready.
    pub endpoints: Store<EndpointSlice>,
    listeners: Arc<Mutex<Vec<mpsc::UnboundedSender<Trigger>>>>,
    _watches: JoinSet<()>,
}

impl Cache {
    /// Starts the watches; they end with the cache.
    pub(super) fn start(client: &Client, namespace: &str) -> Self {
        let listeners = Arc::default();
        let mut start = Start { client, namespace, listeners: &listeners, watches: JoinSet::new() };
        Self {
            secrets: start.watch(start.own(), managed(&[]), trigger::secret, |_| {}),
            services: start.children(),
            stateful_sets: start.children(),
            accounts: start.children(),
            roles: start.children(),
            bindings: start.children(),
            config_maps: start.children(),
            deployments: start.children(),
            slices: start.watch(start.own(), managed(&[]), trigger::slice, |_| {}),
            policies: start.watch(
                Api::all(client.clone()),
                watcher::Config::default(),
                trigger::policy,
                |_| {},
            ),
            admission: start.watch(
                Api::all(client.clone()),
                watcher::Config::default(),
                trigger::restricted,
                |_| {},
            ),
            admission_bindings: start.watch(
                Api::all(client.clone()),
                watcher::Config::default(),
                trigger::restricted,
                |_| {},
            ),
            dns_configs: start.watch(
                Api::all(client.clone()),
                watcher::Config::default(),
                |_: &DnsConfig| vec![Trigger::Names],
                |_| {},
            ),
            pods: start.watch(
                start.own(),
                managed(&[(label::PARENT_KIND, ParentKind::ProxyGroup.label())]),
                trigger::pod,
                |pod: &mut Pod| pod.metadata.managed_fields = None,
            ),
            classes: start.watch(
                Api::all(client.clone()),
                watcher::Config::default(),
                |class: &ProxyClass| vec![Trigger::Class(class.name_any())],
                |_| {},
            ),
            groups: start.watch(
                Api::all(client.clone()),
                watcher::Config::default(),
                |group: &ProxyGroup| vec![Trigger::Group(group.name_any())],
                |_| {},
            ),
            nodes: start.watch(
                Api::all(client.clone()),
                watcher::Config::default(),
                |_: &Node| vec![Trigger::Node],
                strip::node,
            ),
            backends: start.watch(
                Api::all(client.clone()),
                watcher::Config::default(),
                trigger::service,
                strip::service,
            ),
            ingresses: start.watch(
                Api::all(client.clone()),
                watcher::Config::default(),
                trigger::ingress,
                strip::ingress,
            ),
            endpoints: start.watch(
                Api::all(client.clone()),
                watcher::Config::default(),
                trigger::endpoints,
                strip::endpoints,
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
        let _ = self.pods.wait_until_ready().await;
        let _ = self.classes.wait_until_ready().await;
        let _ = self.dns_configs.wait_until_ready().await;
        let _ = self.policies.wait_until_ready().await;
        let _ = self.groups.wait_until_ready().await;
        let _ = self.nodes.wait_until_ready().await;
        let _ = self.backends.wait_until_ready().await;
        let _ = self.ingresses.wait_until_ready().await;
        let _ = self.endpoints.wait_until_ready().await;
    }

    /// Waits until the API server's own policies have been listed once; older ones than 1.30 have none.
    pub async fn wait_for_admission(&self) {
        let _ = self.admission.wait_until_ready().await;
        let _ = self.admission_bindings.wait_until_ready().await;
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
        self.watch(self.own(), managed(&[]), child, |_| {})
    }

    fn own<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// `slim` takes away what nobody needs.
    fn watch<K>(
        &mut self,
        api: Api<K>,
        config: watcher::Config,
        tell: Tell<K>,
        slim: fn(&mut K),
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let (store, writer) = reflector::store();
        let listeners = Arc::clone(self.listeners);
        let events =
            reflector::reflector(writer, watcher(api, config).default_backoff().modify(slim));
        // What was listed is in the store once all of it is.
        let mut listed = Vec::new();
        self.watches.spawn(events.for_each(move |event| {
            let told = match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::Delete(object)) => tell(&object),
                Ok(watcher::Event::InitApply(object)) => {
                    listed.extend(tell(&object));
                    Vec::new()
                }
                Ok(watcher::Event::InitDone) => std::mem::take(&mut listed),
                Ok(watcher::Event::Init) => Vec::new(),
                Err(error) => {
                    tracing::warn!(kind = %K::kind(&()), %error, "watching goes on later");
                    Vec::new()
                }
            };
            for trigger in told {
                let mut listeners = listeners.lock().unwrap_or_else(PoisonError::into_inner);
                listeners.retain(|listener| listener.unbounded_send(trigger.clone()).is_ok());
            }
            std::future::ready(())
        }));
        store
    }
}

/// What is the operator's, with these labels besides.
fn managed(more: &[(&str, &str)]) -> watcher::Config {
    let all = more.iter().copied().chain([(label::MANAGED, "true")]);
    watcher::Config::default().labels(&label::selector(&label::labels(all)))
}
