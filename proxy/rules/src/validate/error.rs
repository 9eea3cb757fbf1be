//! What is wrong with a rules file.

use std::fmt;

use serde::Serialize;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ConfigError {
    /// Where: `ingress[3].ports[0].port`; empty for the document as a whole.
    pub path: String,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
    /// Where in the text, for errors of syntax.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
}

/// A place in the text, both counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.position, self.path.as_str()) {
            (Some(at), _) => write!(f, "line {}, column {}: ", at.line, at.column)?,
            (None, "") => {}
            (None, path) => write!(f, "{path}: ")?,
        }
        write!(f, "{}: {}", self.problem, self.remedy)
    }
}

/// Everything that is wrong with a rules file, in the order it was found; never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(transparent)]
pub struct Errors(Vec<ConfigError>);

impl Errors {
    /// One by one.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &ConfigError> {
        self.0.iter()
    }

    /// How many.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// One a line.
impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

/// Collects errors.
#[derive(Debug, Default)]
pub(super) struct Report {
    errors: Vec<ConfigError>,
}

impl Report {
    #[expect(clippy::needless_pass_by_value, reason = "callers hand over what they format")]
    pub(super) fn add(
        &mut self,
        path: impl ToString,
        problem: impl ToString,
        remedy: impl ToString,
    ) {
        self.errors.push(ConfigError {
            path: path.to_string(),
            problem: problem.to_string(),
            remedy: remedy.to_string(),
            position: None,
        });
    }

    pub(super) fn add_at(&mut self, position: Position, problem: String, remedy: &str) {
        self.errors.push(ConfigError {
            path: String::new(),
            problem,
            remedy: remedy.to_owned(),
            position: Some(position),
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.errors.iter()
    }

    pub(super) fn finish(self) -> Errors {
        Errors(self.errors)
    }
}

/// Where in the document, from the inside out; becomes text only when there is something to report.
#[derive(Clone, Copy, Debug)]
pub(super) enum Path<'a> {
    /// The document.
    Root,
    /// A field.
    Field(&'a Path<'a>, &'a str),
    /// An element.
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub(super) const fn field(&'a self, name: &'a str) -> Self {
        Self::Field(self, name)
    }

    pub(super) const fn index(&'a self, index: usize) -> Self {
        Self::Index(self, index)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Path::Root, name) => f.write_str(&shown(name)),
            Self::Field(parent, name) => write!(f, "{parent}.{}", shown(name)),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Foreign text as part of a message: one line, bounded, no control characters.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut out: String =
        text.chars().take(LONGEST).flat_map(|c| c.escape_debug().collect::<Vec<_>>()).collect();
    if text.chars().nth(LONGEST).is_some() {
        out.push('…');
    }
    out
}
