//! Recorder: devices that keep recordings of sessions.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Affinity, LocalObjectReference, PodSecurityContext, Toleration},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{container::Container, embedded, schema};

/// What the recorders are and where recordings are kept.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "Recorder",
    plural = "recorders",
    shortname = "rec",
    status = "RecorderStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A Recorder is one or more devices of the tailnet that keep recordings of SSH and Kubernetes sessions.",
    printcolumn(
        name = "Status",
        type_ = "string",
        description = "How far the Recorder is.",
        json_path = r#".status.conditions[?(@.type == "RecorderReady")].reason"#
    ),
    printcolumn(
        name = "URL",
        type_ = "string",
        description = "Where recordings are watched.",
        json_path = r#".status.devices[?(@.url != "")].url"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!(self.replicas > 1 && (!has(self.storage) || !has(self.storage.s3)))",
    "fieldPath": ".replicas",
    "message": "replicas share no disk: set storage.s3 where replicas is more than 1",
}]))]
pub struct RecorderSpec {
    /// The StatefulSet of the recorders, and its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stateful_set: Option<StatefulSet>,

    /// ACL tags of the devices; without it `tag:k8s`. They are bound to the auth key that a device joins with: a later
    /// change does not reach devices that have joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::tags")]
    pub tags: Vec<String>,

    /// Serves a page where recordings are watched. It has to be on where there is no `storage.s3`.
    #[serde(rename = "enableUI", skip_serializing_if = "Option::is_none")]
    pub enable_ui: Option<bool>,

    /// Where recordings are kept; without it in the pod, until it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,

    /// How many recorders.
    #[serde(default = "schema::one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Name of the Tailnet that the devices join; without it the operator's own. It cannot be changed to another.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self == oldSelf", "message": "tailnet cannot be changed: make a new Recorder" },
    ]))]
    pub tailnet: Option<String>,
}

impl Default for RecorderSpec {
    fn default() -> Self {
        Self {
            stateful_set: None,
            tags: Vec::new(),
            enable_ui: None,
            storage: None,
            replicas: schema::one(),
            tailnet: None,
        }
    }
}

/// Changes to the StatefulSet of recorders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatefulSet {
    /// Labels that are added to the StatefulSet; the operator's own cannot be replaced.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Annotations that are added to the StatefulSet; the operator's own cannot be replaced.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,

    /// Its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// Changes to the pods of recorders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// Labels that are added to the pods; the operator's own cannot be replaced.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Annotations that are added to the pods; the operator's own cannot be replaced.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,

    /// Which nodes the pods prefer or need, and which pods they want near or far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::embedded::<Affinity>")]
    pub affinity: Option<Affinity>,

    /// The container that records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,

    /// The pods' security context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::embedded::<PodSecurityContext>")]
    pub security_context: Option<PodSecurityContext>,

    /// Secrets, in the operator's namespace, with which images are pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embedded::references")]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Taints of nodes that the pods bear.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embedded::list::<Toleration>")]
    pub tolerations: Vec<Toleration>,

    /// The ServiceAccount of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccount>,
}

/// Changes to the ServiceAccount of recorders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccount {
    /// Its name; without it the Recorder's. One that something else has made is not taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z0-9]([a-z0-9-.]{0,61}[a-z0-9])?$"), length(max = 253))]
    pub name: Option<String>,

    /// Annotations that are added to it, such as a cloud's role.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Where recordings are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// In a bucket of an S3-compatible service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3>,
}

/// A bucket of an S3-compatible service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3 {
    /// Where the service is, such as `s3.us-east-1.amazonaws.com`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,

    /// The bucket. It has to exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,

    /// What grants access; without it the environment of the pod does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<S3Credentials>,
}

/// What grants access to a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3Credentials {
    /// A Secret in the operator's namespace, with the keys `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<S3Secret>,
}

/// A Secret by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3Secret {
    /// The Secret's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What has become of a Recorder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecorderStatus {
    /// `RecorderReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Every device that has joined, in the order of the replicas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["hostname"]))]
    pub devices: Vec<RecorderDevice>,
}

/// A device of a Recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecorderDevice {
    /// Its host name.
    pub hostname: String,

    /// Its addresses in the tailnet.
    #[serde(rename = "tailnetIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub tailnet_ips: Vec<String>,

    /// Where recordings are watched, if they can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}
