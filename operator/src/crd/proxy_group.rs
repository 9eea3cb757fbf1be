//! ProxyGroup: interchangeable proxies that share the work.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{data_path::DataPathStatus, schema};

/// What the proxies are for, and how many.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "ProxyGroup",
    plural = "proxygroups",
    shortname = "pg",
    status = "ProxyGroupStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A ProxyGroup is a set of interchangeable proxies. Services and Ingresses that name it share them.",
    printcolumn(
        name = "Status",
        type_ = "string",
        description = "How far the ProxyGroup is.",
        json_path = r#".status.conditions[?(@.type == "ProxyGroupReady")].reason"#
    ),
    printcolumn(
        name = "URL",
        type_ = "string",
        description = "Where a kube-apiserver ProxyGroup is reached.",
        json_path = ".status.url"
    ),
    printcolumn(
        name = "Type",
        type_ = "string",
        description = "What the proxies are for.",
        json_path = ".spec.type"
    ),
    printcolumn(
        name = "DataPath",
        type_ = "string",
        description = "What carries the traffic.",
        json_path = ".status.dataPath.mode"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ProxyGroupSpec {
    /// What the proxies are for. It cannot be changed.
    #[serde(rename = "type")]
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self == oldSelf", "message": "type cannot be changed: make a new ProxyGroup" },
    ]))]
    pub type_: ProxyGroupType,

    /// ACL tags of the devices, such as `tag:k8s`; without it the operator's default for proxies. They are bound to the
    /// auth key that a device joins with: a later change does not reach devices that have joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::tags")]
    pub tags: Vec<String>,

    /// How many proxies; without it two.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,

    /// Beginning of every device's host name: a hyphen and the replica's number follow. Without it the ProxyGroup's
    /// name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::hostname_prefix")]
    pub hostname_prefix: Option<String>,

    /// Name of the ProxyClass that shapes the pods; without it the operator's default class, if it has one. It has to
    /// exist and be ready before the proxies are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_class: Option<String>,

    /// For the type `kube-apiserver`; without effect on the others.
    #[serde(rename = "kubeAPIServer", skip_serializing_if = "Option::is_none")]
    pub kube_api_server: Option<KubeApiServer>,

    /// Name of the Tailnet that the devices join; without it the operator's own. It cannot be changed to another.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self == oldSelf", "message": "tailnet cannot be changed: make a new ProxyGroup" },
    ]))]
    pub tailnet: Option<String>,
}

/// What the proxies of a ProxyGroup are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyGroupType {
    /// Pods reach services of the tailnet.
    #[default]
    Egress,
    /// The tailnet reaches Services and Ingresses of the cluster.
    Ingress,
    /// The tailnet reaches the API server of the cluster.
    KubeApiserver,
}

impl ProxyGroupType {
    /// As manifests spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Egress => "egress",
            Self::Ingress => "ingress",
            Self::KubeApiserver => "kube-apiserver",
        }
    }
}

/// How the API server is offered to the tailnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeApiServer {
    /// Who says who a caller is; without it `auth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<KubeApiServerMode>,

    /// The name in the tailnet that the API server is reached by; without it the ProxyGroup's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"))]
    pub hostname: Option<String>,
}

/// Who says who a caller of the API server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KubeApiServerMode {
    /// The tailnet: the proxies impersonate the caller as user and groups.
    #[default]
    Auth,
    /// The caller's own credentials.
    Noauth,
}

/// What has become of a ProxyGroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyGroupStatus {
    /// `ProxyGroupReady` and `ProxyGroupAvailable`; `KubeAPIServerProxyValid` and `KubeAPIServerProxyConfigured` of the
    /// type `kube-apiserver`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Every device that has joined, in the order of the replicas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["hostname"]))]
    pub devices: Vec<ProxyGroupDevice>,

    /// Where the API server is reached; of the type `kube-apiserver` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,

    /// What carries the traffic, and how much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_path: Option<DataPathStatus>,
}

/// A device of a ProxyGroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyGroupDevice {
    /// Its host name: the first label of its name in the tailnet.
    pub hostname: String,

    /// Its addresses in the tailnet.
    #[serde(rename = "tailnetIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub tailnet_ips: Vec<String>,

    /// Fixed addresses with ports that peers reach it at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub static_endpoints: Vec<String>,
}
