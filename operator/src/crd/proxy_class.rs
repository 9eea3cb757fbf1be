//! ProxyClass: how the pods of proxies look and behave.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Affinity, LocalObjectReference, PodDNSConfig, PodSecurityContext, Toleration,
        TopologySpreadConstraint,
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{container::Container, data_path::DataPath, embedded, schema};

/// How the pods of proxies look and behave. All of it is optional.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "ProxyClass",
    plural = "proxyclasses",
    status = "ProxyClassStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A ProxyClass shapes the pods of the proxies that name it.",
    printcolumn(
        name = "Status",
        type_ = "string",
        description = "Whether the class can be used.",
        json_path = r#".status.conditions[?(@.type == "ProxyClassReady")].reason"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ProxyClassSpec {
    /// The StatefulSet of the proxies, and its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stateful_set: Option<StatefulSet>,

    /// What the proxies tell about themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,

    /// How the proxies behave in the tailnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tailscale: Option<Tailscale>,

    /// Takes certificates from Let's Encrypt's staging environment: for trials, browsers do not trust them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_lets_encrypt_staging_environment: Option<bool>,

    /// Fixed addresses that peers reach the proxies of a ProxyGroup at, for direct connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub static_endpoints: Option<StaticEndpoints>,

    /// What carries the traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_path: Option<DataPath>,
}

/// Changes to the StatefulSet of proxies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatefulSet {
    /// Labels that are added to the StatefulSet; the operator's own cannot be replaced.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,

    /// Annotations that are added to the StatefulSet; the operator's own cannot be replaced.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,

    /// Its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// Changes to the pods of proxies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// Labels that are added to the pods; the operator's own cannot be replaced.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,

    /// Annotations that are added to the pods; the operator's own cannot be replaced.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,

    /// Which nodes the pods prefer or need, and which pods they want near or far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::embedded::<Affinity>")]
    pub affinity: Option<Affinity>,

    /// The container that carries the traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tailscale_container: Option<ProxyContainer>,

    /// The container that prepares the pod. Cannot have `debug`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tailscale_init_container: Option<ProxyContainer>,

    /// The pods' security context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::embedded::<PodSecurityContext>")]
    pub security_context: Option<PodSecurityContext>,

    /// Secrets, in the operator's namespace, with which images are pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embedded::references")]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// The node that the pods run on, without asking the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,

    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Taints of nodes that the pods bear.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embedded::list::<Toleration>")]
    pub tolerations: Vec<Toleration>,

    /// How the pods spread over zones, nodes and the like.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embedded::list::<TopologySpreadConstraint>")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,

    /// Which pods go first when there is not room for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,

    /// Where the pods' names are resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_policy: Option<DnsPolicy>,

    /// Resolvers, search domains and options, merged with those of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::embedded::<PodDNSConfig>")]
    pub dns_config: Option<PodDNSConfig>,
}

/// Changes to a container of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyContainer {
    /// What every container can have.
    #[serde(flatten)]
    pub container: Container,

    /// For finding faults; not on the init container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug: Option<DebugEndpoints>,
}

/// For finding faults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DebugEndpoints {
    /// Whether tailscaled's debug endpoints are served at the pod's port 9001. Where the whole of `debug` is absent they
    /// are served if metrics are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
}

/// Where a pod's names are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DnsPolicy {
    /// At the cluster's resolver, in the host's network as well.
    ClusterFirstWithHostNet,
    /// At the cluster's resolver.
    ClusterFirst,
    /// As the node does.
    Default,
    /// Only as `dnsConfig` says.
    None,
}

impl DnsPolicy {
    /// As pods spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::ClusterFirstWithHostNet => "ClusterFirstWithHostNet",
            Self::ClusterFirst => "ClusterFirst",
            Self::Default => "Default",
            Self::None => "None",
        }
    }
}

/// What proxies tell about themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!(has(self.serviceMonitor) && self.serviceMonitor.enable && !self.enable)",
    "fieldPath": ".serviceMonitor.enable",
    "message": "serviceMonitor needs metrics: set enable to true as well",
}]))]
pub struct Metrics {
    /// Whether metrics are served at the pod's port 9002, path `/metrics`, with a Service for whoever reads them.
    pub enable: bool,

    /// Has Prometheus read the metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_monitor: Option<ServiceMonitor>,
}

/// A ServiceMonitor of the Prometheus operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMonitor {
    /// Whether it is made. The Prometheus operator's CRDs have to be there, or the class is not ready.
    pub enable: bool,

    /// Labels that are added to it, by which a Prometheus finds it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,
}

/// How proxies behave in the tailnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tailscale {
    /// Whether the proxies use the routes that other devices offer; without it they do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accept_routes: Option<bool>,
}

/// Fixed addresses of proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaticEndpoints {
    /// Through a Service of type NodePort for each replica.
    pub node_port: NodePort,
}

/// Fixed addresses through node ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePort {
    /// The ports that may be used, within the cluster's range of node ports; one for each replica.
    #[schemars(length(min = 1))]
    pub ports: Vec<PortRange>,

    /// Labels of the nodes whose external addresses are used; without it any node's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub selector: BTreeMap<String, String>,
}

/// A port, or a range of ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortRange {
    /// The port, or the first of a range.
    #[schemars(schema_with = "schema::integer")]
    pub port: i64,

    /// The last port of a range, which includes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::integer")]
    pub end_port: Option<i64>,
}

/// Whether a ProxyClass can be used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyClassStatus {
    /// `ProxyClassReady`: whoever uses the class waits until it holds of the class's present generation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
