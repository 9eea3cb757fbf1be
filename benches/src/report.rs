//! The run as JSON.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{goals::Goal, machine::Machine};

/// What `--json` writes; every benchmark of the project has this form.
#[derive(Serialize)]
pub struct Report<'a, S> {
    pub benchmark: &'static str,
    pub machine: &'a Machine,
    pub rounds: u32,
    pub round_seconds: f64,
    pub series: &'a [S],
    pub goals: &'a [Goal],
}

impl<S: Serialize> Report<'_, S> {
    /// Writes it.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}
