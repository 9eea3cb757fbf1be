//! PeerRelay: devices that relay between devices that cannot reach each other.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// How many relays, and where they are reached.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "PeerRelay",
    plural = "peerrelays",
    shortname = "pr",
    status = "PeerRelayStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A PeerRelay is one or more devices of the tailnet that relay between devices that cannot reach each other.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Status",
        type_ = "string",
        description = "How far the PeerRelay is.",
        json_path = r#".status.conditions[?(@.type == "PeerRelayReady")].reason"#
    ),
    printcolumn(
        name = "Endpoints",
        type_ = "string",
        description = "Where the relays are reached.",
        json_path = ".status.endpoints[*].address"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.aws) || self.aws.elasticIPs.size() >= self.replicas",
    "fieldPath": ".aws.elasticIPs",
    "message": "every replica needs an address of its own: aws.elasticIPs has fewer entries than replicas",
}]))]
pub struct PeerRelaySpec {
    /// ACL tags of the devices; without it the operator's default for proxies. They are bound to the auth key that a
    /// device joins with: a later change does not reach devices that have joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::tags")]
    pub tags: Vec<String>,

    /// Beginning of every device's host name: a hyphen and the replica's number follow. Without it the PeerRelay's
    /// name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::hostname_prefix")]
    pub hostname_prefix: Option<String>,

    /// Name of the ProxyClass that shapes the pods. It has to exist and be ready before the relays are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_class: Option<String>,

    /// How many relays.
    #[serde(default = "schema::one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Name of the Tailnet that the devices join; without it the operator's own. It cannot be changed to another.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self == oldSelf", "message": "tailnet cannot be changed: make a new PeerRelay" },
    ]))]
    pub tailnet: Option<String>,

    /// The Service, of type LoadBalancer, that each relay is reached through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<RelayService>,

    /// For clusters on AWS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws: Option<Aws>,
}

impl Default for PeerRelaySpec {
    fn default() -> Self {
        Self {
            tags: Vec::new(),
            hostname_prefix: None,
            proxy_class: None,
            replicas: schema::one(),
            tailnet: None,
            service: None,
            aws: None,
        }
    }
}

/// Changes to the Services of relays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RelayService {
    /// Annotations that are added to each, such as those of a cloud's load balancer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What AWS needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Aws {
    /// Elastic IPs, the first for the first replica and so on; one for every replica.
    #[serde(rename = "elasticIPs")]
    #[schemars(length(min = 1), extend("x-kubernetes-list-type" = "atomic"))]
    pub elastic_ips: Vec<ElasticIp>,
}

/// An Elastic IP for a Network Load Balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticIp {
    /// Its allocation, such as `eipalloc-0123456789abcdef0`.
    #[serde(rename = "allocationID")]
    #[schemars(regex(pattern = "^eipalloc-[0-9a-f]+$"))]
    pub allocation_id: String,

    /// The public subnet that the load balancer is in, such as `subnet-0123456789abcdef0`.
    #[serde(rename = "subnetID")]
    #[schemars(regex(pattern = "^subnet-[0-9a-f]+$"))]
    pub subnet_id: String,
}

/// What has become of a PeerRelay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PeerRelayStatus {
    /// `PeerRelayReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Where the relays are reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["replica", "address"],
    ))]
    pub endpoints: Vec<RelayEndpoint>,
}

/// Where a relay is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RelayEndpoint {
    /// The number of its replica.
    pub replica: i32,

    /// Its address.
    pub address: String,

    /// Its UDP port.
    pub port: i32,
}
