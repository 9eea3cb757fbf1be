//! How Go writes what is not there: null for an empty list or map, the year 1 for no time.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// What `null` stands for in place of a list, a map or a structure: an empty one.
pub(super) fn nullable<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A map whose values may be `null`: such an entry says nothing, and is left out.
pub(super) fn entries<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Ord + Deserialize<'de>,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let map: Option<BTreeMap<K, Option<V>>> = Option::deserialize(deserializer)?;
    Ok(map.into_iter().flatten().filter_map(|(key, value)| Some((key, value?))).collect())
}

/// A map of lists that may be `null`: such an entry is a name without values, as capabilities are.
pub(super) fn lists<'de, V, D>(deserializer: D) -> Result<BTreeMap<String, Vec<V>>, D::Error>
where
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let map: Option<BTreeMap<String, Option<Vec<V>>>> = Option::deserialize(deserializer)?;
    Ok(map.into_iter().flatten().map(|(key, list)| (key, list.unwrap_or_default())).collect())
}

/// A list whose items may be `null`: those are left out.
pub(super) fn items<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let list: Option<Vec<Option<T>>> = Option::deserialize(deserializer)?;
    Ok(list.into_iter().flatten().flatten().collect())
}

/// Text, of which an empty one means none.
pub(super) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// A time in RFC 3339's form, of which the year 1 means none.
pub(super) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(text(deserializer)?.filter(|time| !time.starts_with("0001-01-01T")))
}

/// Whether there is anything, whatever it is.
pub(super) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Option::<serde::de::IgnoredAny>::deserialize(deserializer).map(|value| value.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Sample {
        #[serde(deserialize_with = "nullable")]
        list: Vec<u8>,
        #[serde(deserialize_with = "entries")]
        map: BTreeMap<u16, u8>,
        #[serde(deserialize_with = "lists")]
        capabilities: BTreeMap<String, Vec<u8>>,
        #[serde(deserialize_with = "items")]
        items: Vec<u8>,
        #[serde(deserialize_with = "time")]
        time: Option<String>,
        #[serde(deserialize_with = "present")]
        present: bool,
    }

    fn sample(json: &str) -> Sample {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn null_is_as_good_as_nothing() {
        let null = r#"{"list":null,"map":null,"capabilities":null,"items":null,"time":null,"present":null}"#;
        assert_eq!(sample(null), Sample::default());
        assert_eq!(sample("{}"), Sample::default());
    }

    #[test]
    fn null_within_says_nothing_either() {
        let read = sample(
            r#"{"map":{"80":null,"443":1},"capabilities":{"a":null},"items":[null,2],"time":"0001-01-01T00:00:00Z","present":{}}"#,
        );
        assert_eq!(read.map, BTreeMap::from([(443, 1)]));
        assert_eq!(read.capabilities, BTreeMap::from([("a".to_owned(), Vec::new())]));
        assert_eq!((read.items, read.time, read.present), (vec![2], None, true));
    }
}
