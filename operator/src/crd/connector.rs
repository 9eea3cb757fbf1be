//! Connector: devices that route subnets, are an exit node, or carry the traffic of apps.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{data_path::DataPathStatus, schema};

/// What a Connector is to do. It is a subnet router, an exit node or both, or else an app connector.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "Connector",
    plural = "connectors",
    shortname = "cn",
    status = "ConnectorStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A Connector is one or more devices of the tailnet that give it access to networks: as subnet routers, as exit nodes or as app connectors.",
    printcolumn(
        name = "SubnetRoutes",
        type_ = "string",
        description = "The routes to subnets that are offered to the tailnet.",
        json_path = ".status.subnetRoutes"
    ),
    printcolumn(
        name = "IsExitNode",
        type_ = "string",
        description = "Whether the devices are exit nodes.",
        json_path = ".status.isExitNode"
    ),
    printcolumn(
        name = "IsAppConnector",
        type_ = "string",
        description = "Whether the devices are app connectors.",
        json_path = ".status.isAppConnector"
    ),
    printcolumn(
        name = "DataPath",
        type_ = "string",
        description = "What carries the traffic.",
        json_path = ".status.dataPath.mode"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        description = "How far the Connector is.",
        json_path = r#".status.conditions[?(@.type == "ConnectorReady")].reason"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.subnetRouter) || (has(self.exitNode) && self.exitNode) || has(self.appConnector)",
        "message": "a Connector has to be at least one of subnetRouter, exitNode and appConnector",
    },
    {
        "rule": "!(has(self.appConnector) && (has(self.subnetRouter) || (has(self.exitNode) && self.exitNode)))",
        "fieldPath": ".appConnector",
        "message": "appConnector excludes subnetRouter and exitNode: make a Connector of its own for it",
    },
    {
        "rule": "!(has(self.hostname) && has(self.replicas) && self.replicas > 1)",
        "fieldPath": ".hostname",
        "message": "hostname names one device: use hostnamePrefix where replicas is more than 1",
    },
    {
        "rule": "!(has(self.hostname) && has(self.hostnamePrefix))",
        "fieldPath": ".hostnamePrefix",
        "message": "hostname and hostnamePrefix exclude each other",
    },
]))]
pub struct ConnectorSpec {
    /// ACL tags of the devices, such as `tag:k8s`; without it the operator's default for proxies. They are bound to the
    /// auth key that a device joins with: a later change does not reach devices that have joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::tags")]
    pub tags: Vec<String>,

    /// The device's host name, 2 to 63 characters; without it the Connector's name with `-connector` behind it. Only
    /// for a single device, and not together with `hostnamePrefix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$"))]
    pub hostname: Option<String>,

    /// Beginning of every device's host name: a hyphen and the replica's number follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::hostname_prefix")]
    pub hostname_prefix: Option<String>,

    /// Name of the ProxyClass that shapes the pods. It has to exist and be ready before the devices are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_class: Option<String>,

    /// Routes to subnets that the devices offer to the tailnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet_router: Option<SubnetRouter>,

    /// Makes the devices app connectors, which carry the traffic of apps that the tailnet's policy names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_connector: Option<AppConnector>,

    /// Makes the devices exit nodes: whoever chooses one reaches the internet through it. Without it they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_node: Option<bool>,

    /// How many devices; without it one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,

    /// Name of the Tailnet that the devices join; without it the operator's own. It cannot be changed to another.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self == oldSelf", "message": "tailnet cannot be changed: make a new Connector" },
    ]))]
    pub tailnet: Option<String>,
}

/// Routes to subnets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubnetRouter {
    /// Prefixes such as `10.40.0.0/14`, without host bits, that the devices offer to the tailnet. A site's IPv4 prefix
    /// is offered as its 4via6 prefix, of 96 bits or more.
    #[schemars(schema_with = "schema::routes")]
    pub advertise_routes: Vec<String>,
}

/// What an app connector offers beside the apps that the tailnet's policy names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppConnector {
    /// Prefixes that are offered from the start, so that an app's known addresses need not be learned by look-ups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::routes")]
    pub routes: Vec<String>,
}

/// What has become of a Connector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectorStatus {
    /// `ConnectorReady`, and what else is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// The offered routes, joined by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet_routes: Option<String>,

    /// Whether the devices are exit nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_exit_node: Option<bool>,

    /// Whether the devices are app connectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_app_connector: Option<bool>,

    /// The addresses of the first device.
    #[serde(rename = "tailnetIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub tailnet_ips: Vec<String>,

    /// The full name of the first device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,

    /// Every device that has joined, in the order of the replicas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<ConnectorDevice>,

    /// What carries the traffic, and how much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_path: Option<DataPathStatus>,
}

/// A device of a Connector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectorDevice {
    /// Its full name in the tailnet, without a dot at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,

    /// Its addresses in the tailnet.
    #[serde(rename = "tailnetIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub tailnet_ips: Vec<String>,
}
