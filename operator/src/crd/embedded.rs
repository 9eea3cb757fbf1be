//! Types of Kubernetes inside of ours, in full: what k8s-openapi derives, and what its source leaves out of it.
//!
//! k8s-openapi has the names, types and required fields, not how lists are merged and how quantities look. Inside of these
//! types that is the same everywhere: lists are replaced as a whole but for `claims`, and selectors are too.

use k8s_openapi::api::core::v1::LocalObjectReference;
use schemars::{
    JsonSchema, Schema, SchemaGenerator, json_schema,
    transform::{Transform as _, transform_subschemas},
};

/// How a quantity looks: a number with a suffix of powers of 1000 or of 1024, or an exponent.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// A type of Kubernetes.
pub(super) fn embedded<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = T::json_schema(generator);
    complete.transform(&mut schema);
    schema
}

/// A list of some type of Kubernetes. The list is ours: who applies it replaces all of it.
pub(super) fn list<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": (embedded::<T>(generator)) })
}

/// References to Secrets in the operator's namespace.
pub(super) fn references(generator: &mut SchemaGenerator) -> Schema {
    let mut item = LocalObjectReference::json_schema(generator);
    let fields = item.ensure_object();
    // Kubernetes takes a reference without a name, and what has been stored must stay valid.
    fields.remove("required");
    fields.insert("x-kubernetes-map-type".into(), "atomic".into());
    if let Some(name) = fields.get_mut("properties").and_then(|all| all.get_mut("name")) {
        name["default"] = "".into();
    }
    json_schema!({ "type": "array", "items": item })
}

fn complete(schema: &mut Schema) {
    transform_subschemas(&mut complete, schema);
    let fields = schema.ensure_object();
    if fields.contains_key("x-kubernetes-int-or-string") {
        // Derived, it tells at length what the documentation of Kubernetes tells better.
        *schema = json_schema!({ "pattern": QUANTITY, "x-kubernetes-int-or-string": true });
        return;
    }
    let Some(properties) = fields.get_mut("properties").and_then(|all| all.as_object_mut()) else {
        return;
    };
    let selectors = ["matchLabels", "matchFields", "nodeSelectorTerms"];
    let is_selector = selectors.iter().any(|name| properties.contains_key(*name));
    for (name, property) in properties {
        if property.get("type").is_some_and(|of| of == "array") {
            if name == "claims" {
                property["x-kubernetes-list-type"] = "map".into();
                property["x-kubernetes-list-map-keys"] = ["name"].as_slice().into();
            } else {
                property["x-kubernetes-list-type"] = "atomic".into();
            }
        }
    }
    if is_selector {
        fields.insert("x-kubernetes-map-type".into(), "atomic".into());
    }
}
