//! From what is derived of a type to what an API server takes as a kind: structural schemas without null.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

/// Kinds whose schema insists on metadata. An API server does in any case; other readers of a schema may not.
const WITH_METADATA: [&str; 3] = ["PeerRelay", "ProxyGroupPolicy", "Tailnet"];

/// Completes what is derived of a kind.
pub(super) fn complete(definition: &mut CustomResourceDefinition) {
    let names = &mut definition.spec.names;
    let with_metadata = WITH_METADATA.contains(&names.kind.as_str());
    names.list_kind = Some(format!("{}List", names.kind));
    for version in &mut definition.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        if let Some(schema) = schema {
            add_head(schema, with_metadata);
            finish(schema);
        }
    }
}

/// What every object has.
fn add_head(root: &mut JSONSchemaProps, with_metadata: bool) {
    let properties = root.properties.get_or_insert_default();
    for (name, type_, description) in [
        ("apiVersion", "string", Some("Group and version of the kind.")),
        ("kind", "string", Some("The kind.")),
        ("metadata", "object", None),
    ] {
        let description = description.map(str::to_owned);
        let property = JSONSchemaProps { description, ..of_type(type_) };
        properties.insert(name.to_owned(), property);
    }
    if with_metadata {
        root.required.get_or_insert_default().insert(0, "metadata".to_owned());
    }
}

/// Takes away what API servers do not take, or users must not give, all the way down.
fn finish(schema: &mut JSONSchemaProps) {
    // An absent field is absent: nothing of ours tells null apart from it.
    schema.nullable = None;
    schema.title = None;
    // Kubernetes has signed integers only.
    match schema.format.as_deref() {
        Some("uint8" | "uint16") => schema.format = Some("int32".to_owned()),
        Some("uint32" | "uint64") => schema.format = Some("int64".to_owned()),
        _ => {}
    }
    if schema.format.as_deref() == Some("int32") {
        // An API server does not hold numbers to their formats: without bounds it would store what nobody can read.
        schema.minimum.get_or_insert(i32::MIN.into());
        schema.maximum.get_or_insert(i32::MAX.into());
    }
    if schema.x_kubernetes_int_or_string == Some(true) {
        // In the one form that structural schemas may have it; kube's transforms take the types away.
        schema.any_of = Some(["integer", "string"].map(of_type).to_vec());
    }
    for property in schema.properties.iter_mut().flat_map(|all| all.values_mut()) {
        finish(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        finish(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        finish(values);
    }
}

fn of_type(type_: &str) -> JSONSchemaProps {
    JSONSchemaProps { type_: Some(type_.to_owned()), ..JSONSchemaProps::default() }
}
