//! Tailnet: another tailnet than the operator's own, and what grants access to it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Where the tailnet is controlled and what grants access to it.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "Tailnet",
    plural = "tailnets",
    shortname = "tn",
    status = "TailnetStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A Tailnet is a tailnet beside the operator's own, which other resources can name to have their devices join it.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Status",
        type_ = "string",
        description = "Whether the tailnet can be used.",
        json_path = r#".status.conditions[?(@.type == "TailnetReady")].reason"#
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TailnetSpec {
    /// URL of the control server; without it the operator's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login_url: Option<String>,

    /// What grants access.
    pub credentials: TailnetCredentials,
}

/// What grants access to a tailnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetCredentials {
    /// Name of a Secret in the operator's namespace: `client_id` with `client_secret` is an OAuth client, `client_id`
    /// with `audience` is workload identity.
    pub secret_name: String,
}

/// Whether a Tailnet can be used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetStatus {
    /// `TailnetReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
