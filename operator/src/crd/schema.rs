//! Schemas of fields that several kinds have.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema as _, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// One word, or several joined by commas, colons or underscores.
const REASON: &str = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";

/// A name, with a DNS name and a slash before it if it is not one of ours.
const CONDITION_TYPE: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";

/// The default that schemas give to replicas.
pub(super) const fn one() -> i32 {
    1
}

/// ACL tags.
pub(super) fn tags(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": { "type": "string", "pattern": "^tag:[a-zA-Z][a-zA-Z0-9-]*$" },
    })
}

/// The beginning of host names.
pub(super) fn hostname_prefix(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,61}$" })
}

/// Prefixes, at least one.
pub(super) fn routes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "items": { "type": "string", "format": "cidr" },
    })
}

/// Labels: their values are checked by the schema, their keys by the operator.
pub(super) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "type": "string",
            "maxLength": 63,
            "pattern": "^(([a-zA-Z0-9][-._a-zA-Z0-9]*)?[a-zA-Z0-9])?$",
        },
    })
}

/// A number without bounds of its own.
pub(super) fn integer(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer" })
}

/// Conditions, one of each type.
pub(super) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let mut condition = Condition::json_schema(generator);
    // As Kubernetes has it of its own kinds; what is derived has names and types only.
    for (field, bounds) in [
        ("message", json!({ "maxLength": 32768 })),
        ("observedGeneration", json!({ "minimum": 0 })),
        ("reason", json!({ "minLength": 1, "maxLength": 1024, "pattern": REASON })),
        ("status", json!({ "enum": ["True", "False", "Unknown"] })),
        ("type", json!({ "maxLength": 316, "pattern": CONDITION_TYPE })),
    ] {
        let property = condition.pointer_mut(&format!("/properties/{field}"));
        if let (Some(Value::Object(property)), Value::Object(bounds)) = (property, bounds) {
            property.extend(bounds);
        }
    }
    json_schema!({
        "type": "array",
        "items": condition,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}
