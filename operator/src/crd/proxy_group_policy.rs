//! ProxyGroupPolicy: which ProxyGroups a namespace may use.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// The ProxyGroups that may be used. Where several policies are in a namespace, what one allows is allowed.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "ProxyGroupPolicy",
    plural = "proxygrouppolicies",
    shortname = "pgp",
    namespaced,
    status = "ProxyGroupPolicyStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A ProxyGroupPolicy says which ProxyGroups the Services and Ingresses of its namespace may name. Without one in the namespace they may name any.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ProxyGroupPolicySpec {
    /// ProxyGroups that may offer Services and Ingresses of the namespace to the tailnet; none if absent or empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<String>,

    /// ProxyGroups that Services of the namespace may reach the tailnet by; none if absent or empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<String>,
}

/// What has become of a ProxyGroupPolicy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyGroupPolicyStatus {
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
