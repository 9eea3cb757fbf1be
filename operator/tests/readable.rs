//! Whatever a schema lets through, our type reads, and says again when it is written. An object that cannot be read would
//! hide all others of its kind from a watch; a field that is not said again would be lost when the object is written back.
#![cfg(test)]

use operator::crd::{
    Connector, DnsConfig, PeerRelay, ProxyClass, ProxyGroup, ProxyGroupPolicy, Recorder, Tailnet,
    definitions,
};
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

/// What a user writes, and what is written of it in turn.
type Pair = (Value, Value);

fn same(value: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Pair> {
    value.prop_map(|value| (value.clone(), value)).boxed()
}

/// Values that a schema lets through. Patterns and formats of text are left out: no type of ours reads them.
fn values(schema: &Value) -> BoxedStrategy<Pair> {
    if schema["x-kubernetes-int-or-string"] == true {
        let number = any::<i64>().prop_map(|number| (json!(number), json!(number.to_string())));
        return prop_oneof![number, same(Just(json!("1.5Gi")))].boxed();
    }
    if let Some(words) = schema["enum"].as_array() {
        return same(select(words.clone()));
    }
    let bound = |name: &str, default: i64| schema[name].as_f64().map_or(default, |at| at as i64);
    match schema["type"].as_str().unwrap() {
        "boolean" => same(any::<bool>().prop_map(Value::from)),
        "integer" => {
            let range = bound("minimum", i64::MIN)..=bound("maximum", i64::MAX);
            let ends = [*range.start(), *range.end()];
            same(prop_oneof![range, select(ends.to_vec())].prop_map(Value::from))
        }
        "string" if schema["format"] == "date-time" => same(Just(json!("2026-01-01T00:00:00Z"))),
        "string" => same(".{0,3}".prop_map(Value::from)),
        "array" => vec(values(&schema["items"]), bound("minItems", 0) as usize..3)
            .prop_map(|pairs| {
                let (written, read): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
                (written.into(), read.into())
            })
            .boxed(),
        "object" if schema["additionalProperties"].is_object() => {
            btree_map("[a-z]{1,3}", values(&schema["additionalProperties"]), 0..3)
                .prop_map(|pairs| pairs.into_iter().map(|(name, pair)| (name, Some(pair))))
                .prop_map(|fields| object(fields.collect(), &Map::new()))
                .boxed()
        }
        "object" => fields(schema),
        other => panic!("a type that was not thought of: {other}"),
    }
}

/// Objects with the required fields, and some of the others.
fn fields(schema: &Value) -> BoxedStrategy<Pair> {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let mut defaults = Map::new();
    let mut all = Just(Vec::new()).boxed();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let name = name.clone();
        defaults.extend(property.get("default").map(|default| (name.clone(), default.clone())));
        let value = if required.contains(&json!(name)) {
            values(property).prop_map(Some).boxed()
        } else {
            option::of(values(property)).boxed()
        };
        all = (all, value)
            .prop_map(move |(mut fields, value): (Vec<_>, _)| {
                fields.push((name.clone(), value));
                fields
            })
            .boxed();
    }
    all.prop_map(move |fields| object(fields, &defaults)).boxed()
}

fn object(fields: Vec<(String, Option<Pair>)>, defaults: &Map<String, Value>) -> Pair {
    let (mut written, mut read) = (Map::new(), defaults.clone());
    for (name, pair) in fields {
        if let Some(pair) = pair {
            written.insert(name.clone(), pair.0);
            read.insert(name, pair.1);
        }
    }
    (written.into(), read.into())
}

/// Without lists and maps that are empty: absent, they mean the same.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (name, without_empty(value)));
            let is_empty = |value: &Value| *value == json!([]) || *value == json!({});
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        value => value,
    }
}

fn check<K: Serialize + DeserializeOwned>(kind: &str) {
    let definition =
        definitions().into_iter().find(|each| each.spec.names.kind == kind).unwrap().spec;
    let schema = definition.versions.into_iter().next().unwrap().schema.unwrap();
    let mut schema = serde_json::to_value(schema.open_api_v3_schema).unwrap();
    let properties = schema["properties"].as_object_mut().unwrap();
    for head in ["apiVersion", "kind", "metadata"] {
        properties.remove(head).unwrap();
    }
    schema["required"] = json!(["spec"]);
    let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
    let test = |(mut written, mut wanted): Pair| {
        for value in [&mut written, &mut wanted] {
            value["apiVersion"] = json!("tailscale.com/v1alpha1");
            value["kind"] = json!(kind);
            value["metadata"] = json!({ "name": "a" });
        }
        let read: K = serde_json::from_value(written)
            .map_err(|error| TestCaseError::fail(format!("{kind} is not read: {error}")))?;
        let again = serde_json::to_value(read).unwrap();
        prop_assert_eq!(without_empty(again), without_empty(wanted));
        Ok(())
    };
    TestRunner::new(config).run(&values(&schema), test).unwrap();
}

#[test]
fn what_a_schema_lets_through_is_read_and_said_again() {
    check::<Connector>("Connector");
    check::<DnsConfig>("DNSConfig");
    check::<PeerRelay>("PeerRelay");
    check::<ProxyClass>("ProxyClass");
    check::<ProxyGroup>("ProxyGroup");
    check::<ProxyGroupPolicy>("ProxyGroupPolicy");
    check::<Recorder>("Recorder");
    check::<Tailnet>("Tailnet");
}
