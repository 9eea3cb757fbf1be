//! Kubernetes' rules for labels and annotations. <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>

use std::collections::BTreeMap;

/// Of the name of a key, and of a label's value.
const PART_LIMIT: usize = 63;
/// Of the prefix of a key.
const PREFIX_LIMIT: usize = 253;
/// Of all annotations of an object, keys and values, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Adds what is wrong with labels.
pub(super) fn labels(field: &str, labels: &BTreeMap<String, String>, wrong: &mut Vec<String>) {
    for (key, value) in labels {
        if !is_key(key) {
            wrong.push(format!("{field}: {}", bad_key(key)));
        }
        if !value.is_empty() && !is_part(value) {
            wrong.push(format!(
                "{field}[{key}]: `{value}` is not a label's value, use up to 63 letters, digits, `-`, `_` and `.` with a letter or a digit at both ends"
            ));
        }
    }
}

/// Adds what is wrong with annotations.
pub(in crate::controller) fn annotations(
    field: &str,
    all: &BTreeMap<String, String>,
    wrong: &mut Vec<String>,
) {
    // Their prefixes may have capitals.
    for key in all.keys().filter(|key| !is_key(&key.to_ascii_lowercase())) {
        wrong.push(format!("{field}: {}", bad_key(key)));
    }
    let size: usize = all.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > ANNOTATIONS_LIMIT {
        wrong.push(format!("{field}: {size} bytes, shorten them to {ANNOTATIONS_LIMIT}"));
    }
}

fn bad_key(key: &str) -> String {
    format!(
        "`{key}` is not a key, use up to 63 letters, digits, `-`, `_` and `.` with a letter or a digit at both ends, and a DNS name and `/` before it if you like"
    )
}

fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_part(name),
        None => is_part(key),
    }
}

fn is_part(text: &str) -> bool {
    let inside = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
    text.len() <= PART_LIMIT && text.bytes().all(inside) && ends_well(text)
}

fn is_subdomain(text: &str) -> bool {
    let inside =
        |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    let is_label = |label: &str| label.bytes().all(inside) && ends_well(label);
    text.len() <= PREFIX_LIMIT && text.split('.').all(is_label)
}

fn ends_well(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    ends.into_iter().all(|end| end.is_some_and(|letter| letter.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(key: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn keys_and_values_are_as_kubernetes_takes_them() {
        let long = "x".repeat(63);
        let prefix = "p".repeat(253);
        let mut wrong = Vec::new();
        for (key, value) in [
            ("a", ""),
            ("A_b.c-1", "V_1.x-y"),
            ("example.com/a", "1"),
            (&long, &long),
            (&format!("{prefix}/a"), "1"),
        ] {
            labels("f", &of(key, value), &mut wrong);
            annotations("f", &of(key, "any thing"), &mut wrong);
        }
        annotations("f", &of("Example.com/a", ""), &mut wrong);
        assert_eq!(wrong, Vec::<String>::new());
        let (long, prefix) = (format!("{long}x"), format!("{prefix}p/a"));
        for key in ["", "-a", "a.", "a b", "/a", "a/", "a/b/c", "a..b/c", "-a.b/c", &long, &prefix]
        {
            let mut wrong = Vec::new();
            labels("f", &of(key, ""), &mut wrong);
            annotations("f", &of(key, ""), &mut wrong);
            assert_eq!(wrong.len(), 2, "{key}: {wrong:?}");
        }
        for value in ["-a", "a_", "a b", "a/b", &long] {
            let mut wrong = Vec::new();
            labels("f", &of("k", value), &mut wrong);
            assert!(wrong[0].starts_with(&format!("f[k]: `{value}`")), "{wrong:?}");
        }
        let mut wrong = Vec::new();
        labels("f", &of("Example.com/a", ""), &mut wrong);
        annotations("g", &of("a", &"v".repeat(ANNOTATIONS_LIMIT)), &mut wrong);
        assert!(wrong[0].starts_with("f: `Example.com/a`") && wrong[1].starts_with("g: 262145"));
    }
}
