//! Secrets in text that others wrote.

use std::{borrow::Cow, fmt, sync::Arc};

use secrecy::{ExposeSecret as _, SecretString};

/// Prefixes of keys that say of themselves that they are keys: Tailscale's and Headscale's.
const PREFIXES: [&str; 2] = ["tskey-", "hskey-"];

/// What is shown instead.
const SHOWN: &str = "[REDACTED]";

/// A shorter secret is no secret, and would blot out words.
const SHORTEST: usize = 8;

/// Secrets that must not be printed. Keys that can be told from other words by their form are known without being added.
#[derive(Clone, Default)]
pub(super) struct Masks(Arc<[SecretString]>);

impl Masks {
    /// With these; a value `file:` and a path is none.
    pub(super) fn new<'a>(secrets: impl IntoIterator<Item = &'a SecretString>) -> Self {
        let mut list: Vec<_> = secrets
            .into_iter()
            .filter(|secret| {
                let text = secret.expose_secret();
                text.len() >= SHORTEST && !text.starts_with("file:")
            })
            .cloned()
            .collect();
        // One may be the beginning of another.
        list.sort_by_key(|secret| std::cmp::Reverse(secret.expose_secret().len()));
        Self(list.into())
    }

    /// The text without secrets.
    pub(super) fn apply<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut masked = Cow::Borrowed(text);
        for secret in &*self.0 {
            if masked.contains(secret.expose_secret()) {
                masked = Cow::Owned(masked.replace(secret.expose_secret(), SHOWN));
            }
        }
        for prefix in PREFIXES {
            if masked.contains(prefix) {
                masked = Cow::Owned(without_keys(&masked, prefix));
            }
        }
        masked
    }
}

/// The text with each word that begins like this cut off behind its beginning.
fn without_keys(text: &str, prefix: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(prefix) {
        shown.extend([before, prefix, SHOWN]);
        let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
        rest = end.and_then(|end| after.get(end..)).unwrap_or_default();
    }
    shown + rest
}

impl fmt::Debug for Masks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Masks({} secrets)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_masked_by_form_and_by_value() {
        let secrets = ["0123456789abcdef", "0123456789", "file:/run/key", "short"];
        let secrets = secrets.map(|secret| SecretString::from(secret.to_owned()));
        let masks = Masks::new(&secrets);
        for (text, masked) in [
            ("plain", "plain"),
            ("key tskey-auth-kX_1-9z. done", "key tskey-[REDACTED]. done"),
            ("tskey-a,tskey-b", "tskey-[REDACTED],tskey-[REDACTED]"),
            ("tskey-", "tskey-[REDACTED]"),
            ("x=hskey-auth-1\"", "x=hskey-[REDACTED]\""),
            ("0123456789abcdef 0123456789", "[REDACTED] [REDACTED]"),
            ("file:/run/key is short", "file:/run/key is short"),
        ] {
            assert_eq!(masks.apply(text), masked);
        }
        assert_eq!(format!("{masks:?}"), "Masks(2 secrets)");
    }
}
