//! What every reconciliation may use.

mod backoff;
mod cache;
mod cluster_domain;
mod counts;
mod egress_ports;
mod events;
mod node_ports;
mod reissues;
mod settings;
mod tasks;

use kube::Client;

pub(crate) use self::cache::labelled;
pub use self::{
    backoff::Backoffs,
    cache::{Cache, Trigger},
    cluster_domain::cluster_domain,
    counts::Counts,
    egress_ports::{Assigned, EgressPorts},
    events::{Events, Kind},
    node_ports::NodePorts,
    reissues::Reissues,
    settings::{Settings, own_namespace},
    tasks::{BoxedTask, Tasks},
};
use crate::{apply::Applier, counters::Counters, tailnet_api::Registry};

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
            client,
            settings,
            tailnets,
        }
    }
}
