//! Schemas of fields that several kinds have.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// The default that schemas give to replicas.
pub(super) const fn one() -> i32 {
    1
}

/// A type of Kubernetes, in full.
pub(super) fn embedded<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    T::json_schema(generator)
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
    json_schema!({
        "type": "array",
        "items": (Condition::json_schema(generator)),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}
