//! What every reconciliation may use.

mod backoff;
mod batches;
mod cache;
mod cluster_domain;
mod counts;
mod egress_ports;
mod events;
mod identity;
mod known;
mod node_ports;
mod reissues;
mod settings;
mod swept;
mod tasks;
mod waiting;

use kube::Client;

pub(crate) use self::cache::{SERVICE_NAME, labelled};
pub use self::{
    backoff::Backoffs,
    batches::Batches,
    cache::{Cache, Trigger},
    cluster_domain::cluster_domain,
    counts::Counts,
    egress_ports::{Assigned, EgressPorts},
    events::{Events, Kind},
    identity::Identity,
    known::Known,
    node_ports::NodePorts,
    reissues::Reissues,
    settings::{Settings, own_namespace},
    swept::Swept,
    tasks::{BoxedTask, Tasks},
    waiting::Waiting,
};
use crate::{
    apply::Applier,
    build::ingress_config::File,
    counters::Counters,
    tailnet_api::{Registry, ServiceName},
};

/// A change of a file in an ingress ProxyGroup's ConfigMap: the entry of a Tailscale Service, or that it has none.
pub type Entry = (File, ServiceName, Option<serde_json::Value>);
/// A change of what a ProxyGroup's replicas offer: a Tailscale Service, and the Secrets with the configurations of those
/// that offer it.
pub type Offer = (ServiceName, std::collections::BTreeSet<String>);

/// What every reconciliation may use. One for all controllers.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The operator's settings.
    pub settings: Settings,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
    /// The control servers.
    pub tailnets: Registry,
    /// What is in the operator's namespace, kept up to date.
    pub cache: Cache,
    /// Tells users.
    pub events: Events,
    /// When to try again what failed.
    pub backoffs: Backoffs,
    /// How often what was reconciled.
    pub counts: Counts,
    /// What proxies have carried.
    pub counters: Counters,
    /// The cluster's range of node ports.
    pub node_ports: NodePorts,
    /// How often keys may be made anew.
    pub reissues: Reissues,
    /// Which ports of ProxyGroups' pods are whose.
    pub egress_ports: EgressPorts,
    /// What goes on beside reconciliations.
    pub tasks: Tasks,
    /// Writes what belongs to proxies.
    pub applier: Applier,
    /// Who the operator is for others of its kind.
    pub identity: Identity,
    /// Tailscale Services, as they were seen last.
    pub known: Known,
    /// Who waits for a name that another has.
    pub waiting: Waiting,
    /// ConfigMaps that hold nothing which nobody wants.
    pub swept: Swept,
    /// Writes of ingress ProxyGroups' ConfigMaps.
    pub entries: Batches<Entry>,
    /// Writes of ProxyGroups' configurations.
    pub offers: Batches<Offer>,
}

impl Context {
    /// Needs a runtime: what the cache watches is watched by tasks of it, which end with the context.
    pub fn new(client: Client, settings: Settings, tailnets: Registry) -> Self {
        Self {
            cluster_domain: cluster_domain(&settings.namespace),
            cache: Cache::start(&client, &settings.namespace),
            events: Events::new(client.clone()),
            backoffs: Backoffs::default(),
            counts: Counts::default(),
            counters: Counters::default(),
            node_ports: NodePorts::new(client.clone(), &settings.namespace),
            reissues: Reissues::default(),
            egress_ports: EgressPorts::default(),
            tasks: Tasks::default(),
            applier: Applier::new(client.clone(), settings.namespace.as_str()),
            identity: Identity::new(client.clone(), &settings),
            known: Known::default(),
            waiting: Waiting::default(),
            swept: Swept::default(),
            entries: Batches::default(),
            offers: Batches::default(),
            client,
            settings,
            tailnets,
        }
    }
}
