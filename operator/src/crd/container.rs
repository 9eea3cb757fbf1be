//! A container of a pod that the operator makes, as users may change it.

use k8s_openapi::api::core::v1::{ResourceRequirements, SecurityContext};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::embedded;

/// Changes to a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Environment variables that are added; one of the operator's own with the same name is replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<Env>,

    /// The image, with its tag or digest, in place of the operator's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,

    /// When the image is pulled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,

    /// CPU, memory and other resources that the container asks for and is limited to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::embedded::<ResourceRequirements>")]
    pub resources: Option<ResourceRequirements>,

    /// The container's security context, in place of the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::embedded::<SecurityContext>")]
    pub security_context: Option<SecurityContext>,
}

/// An environment variable. Only a plain value: what a Secret or a ConfigMap holds cannot be taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Env {
    /// Its name.
    #[schemars(regex(pattern = "^[-._a-zA-Z][-._a-zA-Z0-9]*$"))]
    pub name: String,

    /// Its value; without it empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// At every start.
    Always,
    /// It has to be on the node.
    Never,
    /// If it is not on the node.
    IfNotPresent,
}

impl PullPolicy {
    /// As pods spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::Never => "Never",
            Self::IfNotPresent => "IfNotPresent",
        }
    }
}
