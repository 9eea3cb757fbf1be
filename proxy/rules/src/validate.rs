//! Text to [`Config`], or every error at once: each with its path, what is wrong, and a remedy.
//!
//! Three steps, each over what the one before has repaired: `text` (syntax; the only step that ends early), `shape`
//! (unknown fields, types, bounds: the JSON Schema), `compile` (addresses, families, overlaps, limits). Time grows
//! with the size of the input, whatever is in it.

mod claims;
mod compile;
mod error;
mod leaf;
mod options;
mod shape;
mod text;

pub use error::{ConfigError, Errors, Position};

use crate::config::{Config, Document};

/// The longest input, in bytes.
pub const MAX_BYTES: usize = 32 << 20;
/// The most rules of one table.
pub const MAX_RULES: usize = 65_536;
/// The most backends of one entry.
pub const MAX_BACKENDS: usize = 1024;
/// The most backends of all rules together; an entry's backends count once for each of its rules.
pub const MAX_TOTAL_BACKENDS: usize = 1 << 20;
/// The most ports of a range that are counted each by itself.
pub const MAX_PORTS_COUNTED: u32 = 4096;

/// Reads a rules file, YAML or JSON.
///
/// # Errors
/// Everything that is wrong with it.
pub fn validate(text: &str) -> Result<Config, Errors> {
    let mut report = error::Report::default();
    let config = document(text, &mut report)
        .map(|(document, ill)| compile::compile(&document, &ill, &mut report));
    match config {
        Some(config) if report.is_empty() => Ok(config),
        _ => Err(report.finish()),
    }
}

/// As [`validate`], of a file's bytes.
///
/// # Errors
/// Everything that is wrong with them; first of all that they are no text.
pub fn validate_bytes(bytes: &[u8]) -> Result<Config, Errors> {
    match std::str::from_utf8(bytes) {
        Ok(text) => validate(text),
        Err(error) => {
            let mut report = error::Report::default();
            let place = format!("not UTF-8 from byte {} on", error.valid_up_to() + 1);
            report.add("", place, "save the file as UTF-8");
            Err(report.finish())
        }
    }
}

/// Compiles a document that a program has made.
///
/// # Errors
/// Everything that is wrong with it.
pub fn compile(document: &Document) -> Result<Config, Errors> {
    let mut report = error::Report::default();
    let config = compile::compile(document, &shape::Repaired::new(), &mut report);
    if report.is_empty() { Ok(config) } else { Err(report.finish()) }
}

/// Reads a rules file without compiling it.
///
/// # Errors
/// What is wrong with its syntax and shape.
pub fn parse(text: &str) -> Result<Document, Errors> {
    let mut report = error::Report::default();
    match document(text, &mut report) {
        Some((document, _)) if report.is_empty() => Ok(document),
        _ => Err(report.finish()),
    }
}

/// The document as far as it can be read, and the entries (`ingress[3]`) that were repaired.
fn document(text: &str, report: &mut error::Report) -> Option<(Document, shape::Repaired)> {
    let value = text::read(text, report)?;
    let (value, repaired) = shape::check(value, report);
    match serde_json::from_value(value) {
        Ok(document) => Some((document, repaired)),
        Err(error) => {
            report.add("", error, "see the JSON Schema deploy/schema/proxy-rules.schema.json");
            None
        }
    }
}
