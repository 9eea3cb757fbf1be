//! The definitions of the kinds, as files and as rules that all of them keep.
#![cfg(test)]

use std::{fs, path::PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use operator::crd::definitions;
use serde_json::Value;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds")
}

/// Bounds are floating-point numbers, all of them whole.
fn write_whole_numbers_without_fraction(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().unwrap() as i64;
            assert_eq!(Some(whole as f64), number.as_f64());
            *value = whole.into();
        }
        Value::Array(items) => items.iter_mut().for_each(write_whole_numbers_without_fraction),
        Value::Object(all) => all.values_mut().for_each(write_whole_numbers_without_fraction),
        _ => {}
    }
}

#[test]
fn the_files_are_up_to_date() {
    let folder = folder();
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    if update {
        fs::create_dir_all(&folder).unwrap();
    }
    let mut wanted = Vec::new();
    for definition in definitions() {
        let name = format!("tailscale.com_{}.yaml", definition.spec.names.plural);
        let mut value = serde_json::to_value(&definition).unwrap();
        write_whole_numbers_without_fraction(&mut value);
        let text = serde_saphyr::to_string(&value).unwrap();
        let path = folder.join(&name);
        if update {
            fs::write(&path, &text).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == text, "{} is out of date: run `cargo xtask generate`", path.display());
        let read: CustomResourceDefinition = serde_saphyr::from_str(&found).unwrap();
        assert_eq!(read, definition, "{name} does not say what was written");
        wanted.push(name);
    }
    let mut found: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted, "a file of a kind that is gone");
}

/// Every schema of a definition with its path, the outermost first.
fn walk(path: &str, schema: &Value, each: &mut impl FnMut(&str, &Value)) {
    each(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), property, each);
    }
    for (name, sign) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[name].is_object() {
            walk(&format!("{path}{sign}"), &schema[name], each);
        }
    }
}

fn schemas(mut each: impl FnMut(&str, &Value)) {
    let mut count = 0;
    for definition in definitions() {
        for version in serde_json::to_value(&definition.spec.versions).unwrap().as_array().unwrap()
        {
            let schema = &version["schema"]["openAPIV3Schema"];
            walk(&definition.spec.names.kind, schema, &mut |path, schema| {
                count += 1;
                each(path, schema);
            });
        }
    }
    assert!(count > 1000, "only {count} schemas were looked at");
}

#[test]
fn there_are_three_defaults() {
    let mut defaults = Vec::new();
    schemas(|path, schema| {
        if let Some(default) = schema.get("default") {
            defaults.push(format!("{path} = {default}"));
        }
    });
    let pull_secrets: Vec<_> = defaults
        .extract_if(.., |each| each.ends_with(r#".imagePullSecrets[].name = """#))
        .collect();
    assert_eq!(pull_secrets.len(), 3, "{pull_secrets:?}");
    assert_eq!(defaults, ["PeerRelay.spec.replicas = 1", "Recorder.spec.replicas = 1"]);
}

#[test]
fn no_field_is_null_or_unknown_and_each_has_a_type() {
    schemas(|path, schema| {
        let fields = schema.as_object().unwrap();
        for field in ["nullable", "x-kubernetes-preserve-unknown-fields", "title", "$ref"] {
            assert!(!fields.contains_key(field), "{path} has {field}");
        }
        let is_either = schema["x-kubernetes-int-or-string"] == true;
        assert!(is_either != schema["type"].is_string(), "{path} has no type, or two: {schema}");
        if is_either {
            assert!(schema["pattern"].is_string(), "{path} takes any string for a quantity");
        }
        let format = schema["format"].as_str().unwrap_or("int32");
        let formats = ["int32", "int64", "cidr", "date-time"];
        assert!(formats.contains(&format), "{path} has the format {format}");
    });
}

#[test]
fn every_field_is_explained() {
    let mut mute = Vec::new();
    schemas(|path, schema| {
        let is_field = !path.ends_with("[]") && !path.ends_with("{}");
        if is_field && schema["description"].as_str().is_none_or(str::is_empty) {
            mute.push(path.to_owned());
        }
    });
    mute.retain(|path| path.split_once('.').is_none_or(|(_, field)| field != "metadata"));
    assert!(mute.is_empty(), "without description: {mute:?}");
}

#[test]
fn lists_by_key_require_their_keys() {
    let mut count = 0;
    schemas(|path, schema| {
        for key in schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten() {
            let required = schema["items"]["required"].as_array();
            let is_required = required.is_some_and(|all| all.contains(key));
            assert!(is_required, "{path} is a list by {key}, which may be absent");
            count += 1;
        }
    });
    assert!(count > 8);
}

#[test]
fn the_size_stays_below_what_kubectl_can_apply() {
    // `kubectl apply` keeps what it applied in an annotation, and annotations have a limit.
    for definition in definitions() {
        let size = serde_json::to_string(&definition).unwrap().len();
        let limit = 256 * 1024;
        assert!(size < limit, "{} has {size} bytes", definition.spec.names.kind);
    }
}
