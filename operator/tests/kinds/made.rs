//! What the operator has made, as files and by itself.

use std::fmt::Debug;

use k8s_openapi::{ByteString, NamespaceResourceScope};
use kube::{Api, Resource, api::ListParams};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NAMESPACE},
    golden,
};

/// Objects of the operator's namespace that are found by labels, as far as the operator owns them.
pub(crate) struct Made {
    labels: String,
    all: Vec<Value>,
}

impl Made {
    pub(crate) fn with(labels: &str) -> Self {
        Self { labels: labels.to_owned(), all: Vec::new() }
    }

    /// Adds those of a kind, by name.
    pub(crate) async fn add<K>(mut self, cluster: &Cluster) -> Self
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        let found = api.list(&ListParams::default().labels(&self.labels)).await.unwrap();
        for object in found.items {
            let mut part = golden::owned_part(&serde_json::to_value(object).unwrap());
            if part["kind"] == "Secret"
                && let Some(data) = part.get_mut("data").and_then(Value::as_object_mut)
            {
                for value in data.values_mut() {
                    let bytes: ByteString = serde_json::from_value(value.clone()).unwrap();
                    let text = String::from_utf8(bytes.0).unwrap();
                    *value = serde_json::from_str(&text).unwrap_or(json!(text));
                }
            }
            let owners = part.pointer_mut("/metadata/ownerReferences");
            for owner in owners.and_then(Value::as_array_mut).into_iter().flatten() {
                owner["uid"] = json!(format!("UID of {}", owner["name"].as_str().unwrap()));
            }
            self.all.push(part);
        }
        self
    }

    /// Compares them with a file, or writes it.
    pub(crate) fn check(self, file: &str) {
        assert!(!self.all.is_empty(), "nothing has {}", self.labels);
        golden::compare("kinds", file, &self.all, |text| text);
    }
}
