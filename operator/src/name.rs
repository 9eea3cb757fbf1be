//! Names that Kubernetes and the tailnet accept, and how derived names are made.

use std::fmt;

use ring::digest::{SHA256, digest};

/// Room that a generated name leaves in 63 characters for the `controller-revision-hash` of its pods.
const BASE_LIMIT: usize = 52;
/// As many characters tell generated names apart.
const SUFFIX: usize = 5;
/// Kubernetes' own for generated names: no vowels, nothing that looks like something else.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Of a label's value.
const LABEL_VALUE_LIMIT: usize = 63;

/// A name is not one.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NameError {
    /// Not a DNS label.
    #[error(
        "`{0}` is not a DNS label: use 1 to 63 letters, digits and `-`, with a letter or a digit at both ends"
    )]
    Label(String),
    /// Not a full name.
    #[error("`{0}` is not a full DNS name: write it with its domain, such as `db.tail1234.ts.net`")]
    Fqdn(String),
    /// Not a tag.
    #[error(
        "`{0}` is not a tag: write `tag:` and a name of letters, digits and `-` that begins with a letter"
    )]
    Tag(String),
}

/// The name of a node: one DNS label.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hostname(String);

impl Hostname {
    /// As written. Capitals are allowed: the control server makes them small.
    pub fn new(name: &str) -> Result<Self, NameError> {
        is_label(name)
            .then(|| Self(name.to_owned()))
            .ok_or_else(|| NameError::Label(name.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether this is one DNS label.
fn is_label(name: &str) -> bool {
    let ends = [name.chars().next(), name.chars().last()];
    (1..=63).contains(&name.len())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
        && ends.iter().flatten().all(char::is_ascii_alphanumeric)
}

/// A name of a tailnet's DNS, with the dot at its end that the netmap has. Any domain will do: control servers other than
/// Tailscale's have domains of their own.
pub fn fqdn(text: &str) -> Result<String, NameError> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_name = name.contains('.') && name.len() <= 253 && name.split('.').all(is_label);
    is_name.then(|| format!("{name}.")).ok_or_else(|| NameError::Fqdn(text.to_owned()))
}

/// A tag of the tailnet.
pub fn tag(text: &str) -> Result<String, NameError> {
    let error = || NameError::Tag(text.to_owned());
    let name = text.strip_prefix("tag:").ok_or_else(error)?;
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic());
    let goes_on = name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
    (begins && goes_on).then(|| text.to_owned()).ok_or_else(error)
}

/// Tags that are separated by commas, those that are tags and what is wrong with the others.
pub fn tags(text: &str) -> (Vec<String>, Vec<NameError>) {
    let mut errors = Vec::new();
    let parse = |each: &str| tag(each.trim()).map_err(|error| errors.push(error)).ok();
    (text.split(',').filter_map(parse).collect(), errors)
}

/// The name of a proxy's objects: `ts-`, the parent's name as far as there is room, and five characters that follow from the
/// parent's UID, so that whoever makes it twice makes the same.
///
/// ```
/// let name = operator::name::base("web", "1d3f");
/// assert!(name.starts_with("ts-web-") && name.len() == 12);
/// ```
pub fn base(parent: &str, uid: &str) -> String {
    let room = BASE_LIMIT - "ts-".len() - "-".len() - SUFFIX;
    // Names of objects may have dots, names of Services may not.
    let parent: String =
        parent.chars().take(room).map(|letter| if letter == '.' { '-' } else { letter }).collect();
    let digest = digest(&SHA256, uid.as_bytes());
    let letter = |byte: &u8| {
        let place = usize::from(*byte) % ALPHABET.len();
        char::from(ALPHABET.get(place).copied().unwrap_or(b'b'))
    };
    let suffix: String = digest.as_ref().iter().take(SUFFIX).map(letter).collect();
    format!("ts-{parent}-{suffix}")
}

/// A label's value: what is longer than that may be ends with a part of its hash.
pub fn label_value(text: &str) -> String {
    if text.len() <= LABEL_VALUE_LIMIT {
        return text.to_owned();
    }
    let hash = digest(&SHA256, text.as_bytes());
    let number =
        hash.as_ref().iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte));
    let head: String = text.chars().take(54).collect();
    format!("{head}-{number:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostnames_are_single_labels() {
        for good in ["a", "A", "web-1", "x".repeat(63).as_str()] {
            assert_eq!(Hostname::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "a.b", "a_b", "ä", "x".repeat(64).as_str(), "a\n"] {
            assert_eq!(Hostname::new(bad), Err(NameError::Label(bad.to_owned())));
        }
    }

    #[test]
    fn names_of_any_tailnet_have_a_domain() {
        assert_eq!(fqdn("db.tail1.ts.net").unwrap(), "db.tail1.ts.net.");
        assert_eq!(fqdn("db.tail.example.com.").unwrap(), "db.tail.example.com.");
        for bad in ["", ".", "db", "db.", "db..net", "-db.a.net", "d b.a.net", "100.64.0.1/32"] {
            assert_eq!(fqdn(bad), Err(NameError::Fqdn(bad.to_owned())));
        }
    }

    #[test]
    fn every_bad_tag_is_named() {
        let (good, bad) = tags("tag:k8s, tag:Prod-1,tag:1x,k8s,tag:,tag:a b");
        assert_eq!(good, ["tag:k8s", "tag:Prod-1"]);
        let bad: Vec<_> = bad.iter().map(ToString::to_string).collect();
        assert_eq!(bad.len(), 4, "{bad:?}");
        assert!(bad[0].starts_with("`tag:1x` is not a tag"), "{bad:?}");
    }

    #[test]
    fn generated_names_fit_and_follow_from_the_uid() {
        let long = "n".repeat(253);
        let name = base(&long, "u1");
        assert_eq!(name.len(), BASE_LIMIT);
        assert_eq!(name, base(&long, "u1"));
        assert_ne!(name, base(&long, "u2"));
        // A Service's name begins with a letter and has no dots.
        assert!(base("a.b", "u").starts_with("ts-a-b-"));
    }

    #[test]
    fn long_label_values_end_with_a_hash() {
        assert_eq!(label_value(&"a".repeat(63)), "a".repeat(63));
        let long = label_value(&"a".repeat(64));
        // By sha256sum.
        assert_eq!(long, format!("{}-ffe054fe", "a".repeat(54)));
        assert_eq!(long.len(), 63);
    }
}
