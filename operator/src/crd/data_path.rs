//! What carries the traffic: as a ProxyClass asks for it, and as proxies report it. Sluice's own, and optional everywhere.

pub use proxy_rules::config::Xdp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How proxies of a class carry traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataPath {
    /// What carries the traffic; without it `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,

    /// Whether XDP programs are attached beside those on TC; without it `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xdp: Option<Xdp>,

    /// Where traffic to a Service is sent; without it `endpoints`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backends: Option<Backends>,

    /// Whether TCP connections to a Service begin with a PROXY protocol header that names the client. They are then
    /// carried in user space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<bool>,

    /// Capacity of the flow table of each address family, in flows; without it 262144.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 16_777_216))]
    pub max_flows: Option<i32>,
}

/// What carries the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The best that works where the pod runs: eBPF, else nftables, else user space.
    #[default]
    Auto,
    /// eBPF programs or nothing.
    Ebpf,
    /// The kernel's nftables or nothing.
    Nftables,
    /// Sockets of the proxy.
    Userspace,
}

/// Where traffic to a Service is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Backends {
    /// To the ready endpoints.
    #[default]
    Endpoints,
    /// To the cluster IP: the cluster's own load balancing chooses.
    #[serde(rename = "clusterIP")]
    ClusterIp,
}

/// What carries the traffic, as the proxies have installed it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataPathStatus {
    /// `ebpf`, `nftables` or `userspace`; `mixed` where replicas differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,

    /// Why this one, and why those before it were refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,

    /// Content hash of the rules that every replica has installed; absent while they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,

    /// Traffic by port, summed over the replicas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<PortTraffic>,

    /// Where traffic goes, and whether it can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["target"]))]
    pub targets: Vec<TargetStatus>,
}

/// The traffic of a port since its proxies started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortTraffic {
    /// Name of the port, or of the rule that serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,

    /// `tcp`, `udp` or `icmp`.
    pub protocol: String,

    /// The port; 0 where the protocol has none or every port is meant.
    pub port: u16,

    /// Packets towards the target.
    pub packets: u64,

    /// Bytes towards the target, as lengths of IP packets.
    pub bytes: u64,

    /// Packets of the replies.
    pub reply_packets: u64,

    /// Bytes of the replies, as lengths of IP packets.
    pub reply_bytes: u64,

    /// Flows begun.
    pub flows: u64,
}

/// A target of traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// The target, as configured.
    pub target: String,

    /// Whether traffic can reach it.
    pub ready: bool,

    /// Why, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,

    /// Why, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
