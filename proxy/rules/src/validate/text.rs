//! Syntax: text to a tree, bounded in size and depth.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

use super::{
    MAX_BYTES,
    error::{Position, Report},
};

/// Reads JSON if the text begins like a JSON object, else YAML.
pub(super) fn read(text: &str, report: &mut Report) -> Option<Value> {
    if text.len() > MAX_BYTES {
        let problem = format!("{} bytes are more than {MAX_BYTES}", text.len());
        report.add("", problem, "split the rules between proxies");
        return None;
    }
    let result = if text.trim_start().starts_with('{') { json(text) } else { yaml(text) };
    result.map_err(|(position, problem)| report.add_at(position, problem, "mend the syntax")).ok()
}

type Fault = (Position, String);

fn json(text: &str) -> Result<Value, Fault> {
    let fault = |error: serde_json::Error| {
        let at = Position { line: error.line(), column: error.column() };
        let message = error.to_string();
        // The message repeats the position at its end.
        let end = message.rfind(" at line ").unwrap_or(message.len());
        (at, message.chars().take(message.get(..end).map_or(0, |m| m.chars().count())).collect())
    };
    serde_json::from_str::<Tree>(text).map(|tree| tree.0).map_err(fault)
}

fn yaml(text: &str) -> Result<Value, Fault> {
    // Depth, aliases and anchors keep the defaults, which stop expansion bombs; the rest is bounded by the size of
    // the text, and 65 536 rules need more nodes than the default allows.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 16_000_000,
            max_nodes: 8_000_000,
            max_total_scalar_bytes: MAX_BYTES,
        },
        emit_comments: false,
        strict_booleans: true,
    };
    serde_saphyr::from_str_with_options::<Tree>(text, options).map(|tree| tree.0).map_err(|error| {
        let error = error.without_snippet();
        let at = error.location().map_or(Position { line: 1, column: 1 }, |location| Position {
            line: usize::try_from(location.line()).unwrap_or(usize::MAX),
            column: usize::try_from(location.column()).unwrap_or(usize::MAX),
        });
        let message = error.to_string();
        let first_line = message.lines().next().unwrap_or_default();
        (at, super::error::shown(first_line))
    })
}

/// Any tree. Unlike `Value`'s own, it refuses a field that is given twice, in JSON too.
struct Tree(Value);

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(Tree(value)) = access.next_element()? {
            list.push(value);
        }
        Ok(Tree(Value::Array(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut map = Map::new();
        while let Some((key, Tree(value))) = access.next_entry::<String, Tree>()? {
            if map.contains_key(&key) {
                let key = super::error::shown(&key);
                return Err(A::Error::custom(format_args!("field `{key}` is given twice")));
            }
            map.insert(key, value);
        }
        Ok(Tree(Value::Object(map)))
    }
}
