//! Shape: an interpreter of the part of JSON Schema that [`schema`] uses. Reports every deviation and repairs it, so
//! that the typed document can always be read: unknown fields go, unusable values become neutral (empty text, an
//! object of defaults) or go where the field has a default. Later steps take empty text as "already reported".

use std::{collections::HashSet, sync::LazyLock};

use serde_json::{Map, Value};

use super::error::{Path, Report, shown};
use crate::config::schema;

static SCHEMA: LazyLock<Value> = LazyLock::new(|| schema().to_value());

/// The entries that had errors, as `ingress[3]`.
pub(super) type Repaired = HashSet<String>;

/// Checks the document against the schema and repairs it.
pub(super) fn check(mut value: Value, report: &mut Report) -> (Value, Repaired) {
    if !conforms(&SCHEMA, &mut value, &Path::Root, report) {
        value = Value::Object(Map::new());
    }
    let entry = |path: &str| path.split_inclusive(']').next().map(str::to_owned);
    let repaired = report.iter().filter_map(|error| entry(&error.path)).collect();
    (value, repaired)
}

/// Whether the value can be used (perhaps after repairs inside it). Whatever is wrong is reported here.
fn conforms(schema: &Value, value: &mut Value, path: &Path<'_>, report: &mut Report) -> bool {
    if let Some(branches) = schema.get("anyOf").and_then(Value::as_array) {
        return match branches.iter().find(|branch| accepts(branch, value)) {
            Some(branch) => conforms(branch, value, path, report),
            None => mismatch(schema, value, path, report),
        };
    }
    if !accepts(schema, value) {
        return mismatch(schema, value, path, report);
    }
    if let Some(words) = words(schema) {
        return is_word(&words, value, path, report);
    }
    match value {
        Value::Object(map) => {
            fields(schema, map, path, report);
            true
        }
        Value::Array(list) => elements(schema, list, path, report),
        Value::String(text) => length(schema, text, path, report),
        Value::Number(_) => bounds(schema, value, path, report),
        Value::Null | Value::Bool(_) => true,
    }
}

fn fields(schema: &Value, map: &mut Map<String, Value>, path: &Path<'_>, report: &mut Report) {
    let none = Map::new();
    let known = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    for name in required.filter_map(Value::as_str).filter(|name| !map.contains_key(*name)) {
        let what = known.get(name).map_or_else(String::new, describe);
        report.add(path.field(name), "missing field", format!("add it ({what})"));
    }
    map.retain(|name, value| {
        let path = path.field(name);
        let Some(schema) = known.get(name) else {
            let remedy = match nearest(name, known.keys().map(String::as_str)) {
                Some(nearest) => format!("did you mean `{nearest}`?"),
                None => format!("known fields are {}", list(known.keys().map(String::as_str))),
            };
            report.add(path, "unknown field", remedy);
            return false;
        };
        if value.is_null() && accepts(schema, value) {
            return false;
        }
        conforms(schema, value, &path, report) || neutral(schema).map(|v| *value = v).is_some()
    });
}

fn elements(schema: &Value, list: &mut Vec<Value>, path: &Path<'_>, report: &mut Report) -> bool {
    let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
    if (list.len() as u64) < least {
        report.add(path, "empty list", format!("give at least {least}"));
        return false;
    }
    let Some(items) = schema.get("items") else { return true };
    let mut index = 0;
    list.retain_mut(|value| {
        let path = path.index(index);
        index += 1;
        // Elements keep their places, or the paths of later errors would be wrong.
        conforms(items, value, &path, report) || neutral(items).map(|v| *value = v).is_some()
    });
    true
}

fn length(schema: &Value, text: &str, path: &Path<'_>, report: &mut Report) -> bool {
    let bound = |name| schema.get(name).and_then(Value::as_u64);
    let length = text.chars().count() as u64;
    if bound("minLength").is_some_and(|least| length < least) {
        report.add(path, "empty text", "give a value");
        return false;
    }
    if let Some(most) = bound("maxLength").filter(|most| length > *most) {
        report.add(path, format!("{length} characters"), format!("use at most {most}"));
        return false;
    }
    true
}

fn bounds(schema: &Value, value: &Value, path: &Path<'_>, report: &mut Report) -> bool {
    let bound = |name| schema.get(name).and_then(Value::as_f64);
    let (least, most) = (bound("minimum"), bound("maximum"));
    let number = value.as_f64().unwrap_or(f64::NAN);
    if least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most) {
        return true;
    }
    report.add(path, format!("{value} is out of range"), format!("use {}", describe(schema)));
    false
}

fn is_word(words: &[&str], value: &Value, path: &Path<'_>, report: &mut Report) -> bool {
    let text = value.as_str().unwrap_or_default();
    if words.contains(&text) {
        return true;
    }
    let choices = list(words.iter().copied());
    let remedy = match nearest(text, words.iter().copied()) {
        Some(nearest) if words.len() > 1 => format!("did you mean `{nearest}`? one of {choices}"),
        _ => format!("use {choices}"),
    };
    report.add(path, format!("`{}` is not known here", shown(text)), remedy);
    false
}

fn mismatch(schema: &Value, value: &Value, path: &Path<'_>, report: &mut Report) -> bool {
    let remedy = match value {
        Value::Number(number) if accepts(schema, &Value::String(String::new())) => {
            format!("write it in quotes: \"{number}\"")
        }
        _ => format!("use {}", describe(schema)),
    };
    report.add(path, format!("{} does not fit here", kind(value)), remedy);
    false
}

/// Whether the JSON type is one that the schema takes.
fn accepts(schema: &Value, value: &Value) -> bool {
    if let Some(branches) = schema.get("anyOf").and_then(Value::as_array) {
        return branches.iter().any(|branch| accepts(branch, value));
    }
    let takes = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    match schema.get("type") {
        Some(Value::String(name)) => takes(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(takes),
        // Words: schemars writes `oneOf` of constants where variants have descriptions.
        _ => value.is_string(),
    }
}

/// The words that the schema allows, if it is a choice of words.
fn words(schema: &Value) -> Option<Vec<&str>> {
    if let Some(word) = schema.get("const") {
        return Some(vec![word.as_str()?]);
    }
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        return words.iter().map(Value::as_str).collect();
    }
    let choices = schema.get("oneOf").and_then(Value::as_array)?;
    Some(choices.iter().filter_map(words).flatten().collect())
}

/// What stands for an unusable value; `None` = leave the field out.
fn neutral(schema: &Value) -> Option<Value> {
    let text = Value::String(String::new());
    if words(schema).is_some() {
        None
    } else if schema.get("anyOf").is_some() {
        // A port: empty text. (A list of paths is left out: its words are not free text.)
        let free = |branch: &Value| accepts(branch, &text) && words(branch).is_none();
        let branches = schema.get("anyOf").and_then(Value::as_array)?;
        branches.iter().any(|b| free(b) || neutral(b) == Some(text.clone())).then_some(text)
    } else if accepts(schema, &text) {
        Some(text)
    } else {
        let object = Value::Object(Map::new());
        accepts(schema, &object).then_some(object)
    }
}

fn describe(schema: &Value) -> String {
    if let Some(branches) = schema.get("anyOf").and_then(Value::as_array) {
        let null = Value::Null;
        let branches = branches.iter().filter(|branch| !accepts(branch, &null));
        return branches.map(describe).collect::<Vec<_>>().join(" or ");
    }
    if let Some(words) = words(schema) {
        return list(words.into_iter());
    }
    let name = match schema.get("type") {
        Some(Value::Array(names)) => names.first().and_then(Value::as_str),
        other => other.and_then(Value::as_str),
    };
    match (name, schema.get("minimum"), schema.get("maximum")) {
        (Some("integer"), Some(least), Some(most)) => {
            let whole = |bound: &Value| bound.as_f64().unwrap_or_default();
            format!("a number from {} to {}", whole(least), whole(most))
        }
        (Some("integer"), ..) => "a number".to_owned(),
        (Some("boolean"), ..) => "true or false".to_owned(),
        (Some("array"), ..) => "a list".to_owned(),
        (Some("object"), ..) => "fields with values".to_owned(),
        (Some("string"), ..) if schema.get("pattern").is_some() => "\"first-last\"".to_owned(),
        _ => "text".to_owned(),
    }
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "an empty value",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn list<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// The known name that was probably meant.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const LONGEST: usize = 64; // the comparison is quadratic in length
    const LIKELY: f64 = 0.8;
    if name.len() > LONGEST {
        return None;
    }
    let lower = name.to_lowercase();
    let likeness = |known: &str| {
        let known = known.to_lowercase();
        // Jaro-Winkler sees no likeness in a short word with two letters swapped.
        match strsim::damerau_levenshtein(&lower, &known) {
            0 | 1 => 1.0,
            _ => strsim::jaro_winkler(&lower, &known),
        }
    };
    known
        .map(|known| (likeness(known), known))
        .filter(|(likeness, _)| *likeness >= LIKELY)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}
