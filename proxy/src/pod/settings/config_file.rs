//! The configuration file that an operator writes for `tailscaled`, in one form for each range of its versions.

use std::{
    io,
    path::{Path, PathBuf},
};

use jsonc_parser::ParseOptions;
use secrecy::SecretString;
use serde_json::Value;

/// A file for this version of `tailscaled`.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// The lowest capability version of a `tailscaled` that understands it.
    pub capability: u32,
    /// Its auth key, or `file:` and the path of one.
    pub auth_key: Option<SecretString>,
}

/// No usable file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// The directory cannot be listed.
    #[error(
        "TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR: listing {}: mount the config Secret there",
        dir.display()
    )]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Every file wants a newer `tailscaled`, or there is none.
    #[error(
        "TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR: no cap-N.hujson with N <= {capability} in {} (it holds {}): \
         use an operator that is not newer than the proxy",
        dir.display(), listed(seen)
    )]
    NoneFits {
        /// The directory.
        dir: PathBuf,
        /// The capability version of `tailscaled`.
        capability: u32,
        /// What the directory holds.
        seen: Vec<String>,
    },
    /// The chosen file cannot be read.
    #[error("reading {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not a document of the only version that there is.
    #[error("{}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, without the content, which holds a key.
        problem: String,
    },
    /// What `tailscale version --json` printed tells no version.
    #[error("`tailscale version --json` printed no capability version (`cap`)")]
    NoCapability,
}

fn listed(seen: &[String]) -> String {
    if seen.is_empty() { "nothing".to_owned() } else { seen.join(", ") }
}

impl ConfigFile {
    /// The file with the highest version that this `tailscaled` understands.
    pub fn choose(dir: &Path, capability: u32) -> Result<Self, ConfigFileError> {
        let directory = |source| ConfigFileError::Directory { dir: dir.to_owned(), source };
        let mut seen = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(directory)? {
            let entry = entry.map_err(directory)?;
            // A mounted Secret is made of links to files; only the directories behind them are none.
            let is_file = entry.file_type().is_ok_and(|kind| !kind.is_dir());
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_file && !name.starts_with("..") {
                seen.push(name);
            }
        }
        seen.sort();
        let fitting = seen.iter().filter_map(|name| {
            let version = version(name)?;
            (version <= capability).then_some((version, name))
        });
        let Some((version, name)) = fitting.max() else {
            let dir = dir.to_owned();
            return Err(ConfigFileError::NoneFits { dir, capability, seen });
        };
        let path = dir.join(name);
        let bytes = std::fs::read(&path)
            .map_err(|source| ConfigFileError::Unreadable { path: path.clone(), source })?;
        match parse(&bytes) {
            Ok(auth_key) => Ok(Self { path, capability: version, auth_key }),
            Err(problem) => Err(ConfigFileError::Invalid { path, problem }),
        }
    }
}

/// The capability version, from what `tailscale version --json` prints.
pub fn capability(printed: &[u8]) -> Result<u32, ConfigFileError> {
    serde_json::from_slice::<Value>(printed)
        .ok()
        .and_then(|value| value.get("cap")?.as_u64())
        .and_then(|cap| u32::try_from(cap).ok())
        .ok_or(ConfigFileError::NoCapability)
}

/// The version in a file's name; the first operators wrote one file, of no version.
fn version(name: &str) -> Option<u32> {
    if name == "tailscaled" {
        return Some(0);
    }
    name.strip_prefix("cap-")?.strip_suffix(".hujson")?.parse().ok()
}

/// The auth key in a document: JSON with comments and trailing commas. What its other fields mean is for `tailscaled` to
/// judge, which knows them all.
fn parse(bytes: &[u8]) -> Result<Option<SecretString>, String> {
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    let value: Value = jsonc_parser::parse_to_serde_value(text, &options)
        .map_err(|error| format!("is not JSON: {} at {}", error.kind(), error.range().start))?;
    let Value::Object(fields) = value else {
        return Err("is not an object: write {\"version\": \"alpha0\", ...}".to_owned());
    };
    // Go takes a field whatever the case of its letters.
    let field = |wanted: &str| {
        let found = fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.and_then(|(_, value)| value.as_str())
    };
    match field("version") {
        Some("alpha0") => {
            Ok(field("authkey").filter(|key| !key.is_empty()).map(SecretString::from))
        }
        Some(other) => Err(format!("version `{other}` is unknown: write alpha0")),
        None => Err("has no version: write \"version\": \"alpha0\"".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        dir
    }

    #[test]
    fn the_highest_version_that_fits_is_chosen() {
        let any = "{\"Version\": \"alpha0\"}";
        let files =
            [("cap-95.hujson", any), ("cap-107.hujson", any), ("tailscaled", any), ("x", any)];
        let dir = directory(&files);
        std::fs::create_dir(dir.path().join("cap-106.hujson")).unwrap();
        for (capability, name) in [
            (142, "cap-107.hujson"),
            (107, "cap-107.hujson"),
            (106, "cap-95.hujson"),
            (94, "tailscaled"),
        ] {
            let chosen = ConfigFile::choose(dir.path(), capability).unwrap();
            assert_eq!(chosen.path.file_name().unwrap(), name);
        }
    }

    #[test]
    fn an_error_says_what_was_seen() {
        let dir = directory(&[("cap-200.hujson", "{}"), ("serve-config", "{}")]);
        let error = ConfigFile::choose(dir.path(), 142).unwrap_err().to_string();
        let place = dir.path().display();
        assert_eq!(
            error,
            format!(
                "TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR: no cap-N.hujson with N <= 142 in {place} (it holds \
                 cap-200.hujson, serve-config): use an operator that is not newer than the proxy"
            )
        );
        let error = ConfigFile::choose(directory(&[]).path(), 142).unwrap_err().to_string();
        assert!(error.contains("(it holds nothing)"), "{error}");
        let missing = ConfigFile::choose(&dir.path().join("none"), 142).unwrap_err();
        assert!(matches!(missing, ConfigFileError::Directory { .. }), "{missing}");
    }

    #[test]
    fn the_key_is_read_and_never_shown() {
        let text = "// ours\n{\"Version\": \"alpha0\", \"AuthKey\": \"tskey-auth-s3cret\",}";
        let dir = directory(&[("cap-106.hujson", text)]);
        let chosen = ConfigFile::choose(dir.path(), 142).unwrap();
        assert_eq!(chosen.auth_key.as_ref().unwrap().expose_secret(), "tskey-auth-s3cret");
        assert!(!format!("{chosen:?}").contains("s3cret"), "{chosen:?}");
    }

    #[test]
    fn a_bad_document_is_refused_without_its_content() {
        for (text, problem) in [
            ("{\"version\": \"alpha0\", \"authkey\": \"s3cret\"", "is not JSON: "),
            ("{\"version\": \"alpha0\" \"authkey\": \"s3cret\"}", "is not JSON: "),
            ("[]", "is not an object"),
            ("", "is not an object"),
            ("{\"authkey\": \"s3cret\"}", "has no version"),
            ("{\"version\": \"beta1\"}", "version `beta1` is unknown"),
        ] {
            let dir = directory(&[("cap-106.hujson", text)]);
            let error = ConfigFile::choose(dir.path(), 142).unwrap_err().to_string();
            assert!(error.contains(problem) && !error.contains("s3cret"), "{text}: {error}");
        }
    }

    #[test]
    fn the_capability_version_is_read() {
        assert_eq!(capability(b"{\"short\": \"1.102.5\", \"cap\": 142}").unwrap(), 142);
        for bad in ["", "{}", "{\"cap\": -1}", "{\"cap\": \"142\"}", "[142]"] {
            assert!(capability(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
