//! Whether a server-side apply would change anything.
//!
//! It would if a field that is wanted is not there with that value, or if a field that we own is no longer wanted. The second
//! needs no schema: the paths of the fields that we own are in the object's `managedFields`.

use serde_json::{Map, Value};

/// Whether applying `desired` as `manager` would change `live`, or make the manager own what it does not own yet.
/// `subresource` is empty or `status`: who owns what is kept apart for each.
pub fn needs_write(desired: &Value, live: &Value, manager: &str, subresource: &str) -> bool {
    let Some(owned) = owned(live, manager, subresource) else {
        return true;
    };
    !is_contained(desired, live, false) || !still_wanted(owned, desired, live)
}

/// Whether we have ever applied this object.
pub(super) fn is_applied(live: &Value) -> bool {
    owned(live, super::FIELD_MANAGER, "").is_some()
}

/// The fields that the manager owns by applying them.
fn owned<'a>(live: &'a Value, manager: &str, subresource: &str) -> Option<&'a Map<String, Value>> {
    let text = |entry: &'a Value, key: &str| entry.get(key).and_then(Value::as_str).unwrap_or("");
    live.pointer("/metadata/managedFields")?
        .as_array()?
        .iter()
        .find(|entry| {
            text(entry, "manager") == manager
                && text(entry, "operation") == "Apply"
                && text(entry, "subresource") == subresource
        })?
        .get("fieldsV1")?
        .as_object()
}

/// Whether everything of `wanted` is there. Lists have the same items, but those whose items have a name may have more.
fn is_contained(wanted: &Value, there: &Value, quantities: bool) -> bool {
    match (wanted, there) {
        (Value::Object(wanted), Value::Object(there)) => wanted.iter().all(|(key, value)| {
            let quantities = quantities || key == "requests" || key == "limits";
            match there.get(key) {
                Some(there) => is_contained(value, there, quantities),
                None => is_empty(value),
            }
        }),
        (Value::Array(wanted), Value::Array(there)) => {
            let in_order = || {
                wanted.len() == there.len()
                    && wanted.iter().zip(there).all(|(a, b)| is_contained(a, b, quantities))
            };
            in_order() || are_contained_by_name(wanted, there)
        }
        (Value::String(wanted), Value::String(there)) if quantities => {
            wanted == there || amount(wanted).is_some_and(|wanted| amount(there) == Some(wanted))
        }
        _ => wanted == there,
    }
}

fn are_contained_by_name(wanted: &[Value], there: &[Value]) -> bool {
    let name = |item: &Value| item.get("name").or_else(|| item.get("type")).cloned();
    wanted.iter().all(|wanted| {
        name(wanted).is_some_and(|wanted_name| {
            let same = there.iter().find(|item| name(item).as_ref() == Some(&wanted_name));
            same.is_some_and(|there| is_contained(wanted, there, false))
        })
    })
}

/// The server leaves these out.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        _ => false,
    }
}

/// A quantity in thousandths: the server writes 0.5 as 500m.
fn amount(quantity: &str) -> Option<i128> {
    let end = quantity.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at_checked(end)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let unit: i128 = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        _ => return None,
    };
    let scale = 10_i128.checked_pow(part.len().try_into().ok()?)?;
    let digits: i128 = format!("{whole}{part}").parse().ok()?;
    Some(digits.checked_mul(unit)? / scale)
}

/// Whether every path of `owned` (the notation of `fieldsV1`) is in what is wanted, and a list that is owned as a whole has
/// nothing more than that.
fn still_wanted(owned: &Map<String, Value>, wanted: &Value, live: &Value) -> bool {
    owned.iter().all(|(path, below)| match (at(path, wanted), below.as_object()) {
        (Found::Nothing, _) => false,
        (Found::Value(found), Some(below)) => {
            let there = match at(path, live) {
                Found::Value(there) => there,
                Found::Nothing | Found::Leaf => &Value::Null,
            };
            let more = match (found, there) {
                (Value::Array(wanted), Value::Array(there)) if below.is_empty() => {
                    there.len() > wanted.len()
                }
                _ => false,
            };
            !more && still_wanted(below, found, there)
        }
        (Found::Value(_) | Found::Leaf, _) => true,
    })
}

/// What is at one step of a path.
enum Found<'a> {
    Nothing,
    Value(&'a Value),
    /// Something that has nothing below it.
    Leaf,
}

fn at<'a>(step: &str, wanted: &'a Value) -> Found<'a> {
    let value = |found: Option<&'a Value>| found.map_or(Found::Nothing, Found::Value);
    match step.split_once(':') {
        Some(("f", name)) => value(wanted.get(name).filter(|value| !value.is_null())),
        Some(("k", keys)) => {
            let Ok(keys) = serde_json::from_str::<Map<String, Value>>(keys) else {
                return Found::Nothing;
            };
            // The server fills in keys that have a default.
            let is_it = |item: &&Value| {
                keys.iter().all(|(key, value)| item.get(key).is_none_or(|own| own == value))
                    && keys.keys().any(|key| item.get(key).is_some())
            };
            value(wanted.as_array().and_then(|items| items.iter().find(is_it)))
        }
        Some(("v", item)) => {
            let item: Option<Value> = serde_json::from_str(item).ok();
            let items = wanted.as_array();
            let is_there = items.zip(item).is_some_and(|(items, item)| items.contains(&item));
            if is_there { Found::Leaf } else { Found::Nothing }
        }
        _ => Found::Leaf,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

    use serde_json::json;

    use super::*;

    fn differs(desired: &Value, live: &Value, owned: Value) -> bool {
        let mut live = live.clone();
        live["metadata"]["managedFields"] = json!([
            { "manager": "other", "operation": "Update", "fieldsV1": { "f:spec": { "f:other": {} } } },
            { "manager": "us", "operation": "Apply", "fieldsV1": owned },
            { "manager": "us", "operation": "Apply", "subresource": "status",
              "fieldsV1": { "f:status": { "f:gone": {} } } },
        ]);
        needs_write(desired, &live, "us", "")
    }

    #[test]
    fn what_is_there_with_more_by_others_needs_no_write() {
        let desired = json!({ "metadata": { "labels": { "a": "1" }, "annotations": {} }, "spec": {
            "containers": [{ "name": "x", "image": "i", "env": [{ "name": "E", "value": "1" }] }] } });
        let live = json!({ "metadata": { "labels": { "a": "1", "theirs": "2" } }, "spec": { "replicas": 1,
            "containers": [{ "name": "side" },
                { "name": "x", "image": "i", "policy": "Always", "env": [{ "name": "E", "value": "1" }] }] } });
        let owned = json!({ "f:metadata": { "f:labels": { "f:a": {} } }, "f:spec": { "f:containers": {
            "k:{\"name\":\"x\"}": { ".": {}, "f:name": {}, "f:image": {} } } } });
        assert!(!differs(&desired, &live, owned.clone()));
        // Never applied by us, though it is as we want it.
        assert!(needs_write(&desired, &live, "us", ""));
        let mut changed = live;
        changed["spec"]["containers"][1]["image"] = json!("j");
        assert!(differs(&desired, &changed, owned));
    }

    #[test]
    fn what_we_own_and_no_longer_want_needs_a_write() {
        let env = |names: &[&str]| {
            let all: Vec<_> =
                names.iter().map(|name| json!({ "name": name, "value": "1" })).collect();
            json!({ "spec": { "env": all } })
        };
        let owned = json!({ "f:spec": { "f:env": {
            "k:{\"name\":\"A\"}": { ".": {}, "f:name": {}, "f:value": {} },
            "k:{\"name\":\"B\"}": { ".": {}, "f:name": {}, "f:value": {} } } } });
        assert!(!differs(&env(&["A", "B"]), &env(&["A", "B"]), owned.clone()));
        assert!(differs(&env(&["A"]), &env(&["A", "B"]), owned));
        let owned = json!({ "f:metadata": { "f:labels": { "f:gone": {} } } });
        let live = json!({ "metadata": { "labels": { "gone": "1" } } });
        assert!(differs(&json!({ "metadata": { "labels": {} } }), &live, owned));
        let owned = json!({ "f:metadata": { "f:finalizers": { "v:\"x\"": {} } } });
        let object = json!({ "metadata": { "finalizers": ["x"] } });
        assert!(!differs(&object, &object, owned.clone()));
        assert!(differs(&json!({ "metadata": { "finalizers": [] } }), &object, owned));
    }

    #[test]
    fn a_list_that_is_owned_as_a_whole_has_no_more_than_is_wanted() {
        let ports = |names: &[&str]| {
            let all: Vec<_> = names.iter().map(|name| json!({ "name": name, "port": 1 })).collect();
            json!({ "ports": all })
        };
        let owned = json!({ "f:ports": {} });
        assert!(!differs(&ports(&["a", "b"]), &ports(&["a", "b"]), owned.clone()));
        assert!(differs(&ports(&["a"]), &ports(&["a", "b"]), owned.clone()));
        assert!(differs(&ports(&[]), &ports(&["a"]), owned));
    }

    #[test]
    fn keys_that_the_server_fills_in_are_the_same_item() {
        let owned = json!({ "f:spec": { "f:ports": {
            "k:{\"containerPort\":9002,\"protocol\":\"TCP\"}": { ".": {}, "f:containerPort": {} } } } });
        let port = |number: u16| json!({ "spec": { "ports": [{ "containerPort": number }] } });
        assert!(!differs(&port(9002), &port(9002), owned.clone()));
        assert!(differs(&port(9003), &port(9003), owned));
    }

    #[test]
    fn quantities_are_compared_by_amount_and_lists_of_addresses_by_order() {
        let cpu = |text: &str| json!({ "spec": { "requests": { "cpu": text } } });
        let owned = json!({});
        for (a, b) in [("0.5", "500m"), ("1024Mi", "1Gi"), ("1000m", "1"), ("1.5k", "1500")] {
            assert!(!differs(&cpu(a), &cpu(b), owned.clone()), "{a} {b}");
        }
        assert!(differs(&cpu("1"), &cpu("1m"), owned.clone()));
        let list = |of: &[&str]| json!({ "spec": { "args": of } });
        assert!(differs(&list(&["a", "b"]), &list(&["b", "a"]), owned.clone()));
        assert!(differs(&list(&["a"]), &list(&["a", "b"]), owned));
    }
}
