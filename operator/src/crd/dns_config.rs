//! DNSConfig: a nameserver by which pods resolve names of the tailnet.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Affinity, LocalObjectReference, Toleration},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{embedded, schema};

/// The nameserver.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "DNSConfig",
    root = "DnsConfig",
    plural = "dnsconfigs",
    shortname = "dc",
    status = "DnsConfigStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A DNSConfig is a nameserver by which pods resolve the names that egress Services and Ingresses have in the tailnet. There is to be one in a cluster.",
    printcolumn(
        name = "NameserverIP",
        type_ = "string",
        description = "Where the cluster's resolver forwards questions to.",
        json_path = ".status.nameserver.ip"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct DnsConfigSpec {
    /// The nameserver; `{}` for one as the operator makes it.
    pub nameserver: Nameserver,
}

/// Changes to the nameserver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Nameserver {
    /// The image, in place of the operator's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<NameserverImage>,

    /// The Service that it is reached through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<NameserverService>,

    /// The pods that it runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<NameserverPod>,

    /// How many pods; without it one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
}

/// An image in two parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameserverImage {
    /// The repository; without it the operator's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,

    /// The tag; without it the operator's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Changes to the Service of the nameserver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameserverService {
    /// The cluster IP; without it the cluster chooses one. A later change has no effect: a Service keeps its address.
    #[serde(rename = "clusterIP", skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<String>,
}

/// Changes to the pods of the nameserver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameserverPod {
    /// Taints of nodes that the pods bear.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embedded::list::<Toleration>")]
    pub tolerations: Vec<Toleration>,

    /// Which nodes the pods prefer or need, and which pods they want near or far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::embedded::<Affinity>")]
    pub affinity: Option<Affinity>,

    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Secrets, in the operator's namespace, with which images are pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embedded::references")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
}

/// What has become of a DNSConfig.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DnsConfigStatus {
    /// `NameserverReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// The nameserver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nameserver: Option<NameserverStatus>,
}

/// Where the nameserver is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameserverStatus {
    /// Its cluster IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
}
