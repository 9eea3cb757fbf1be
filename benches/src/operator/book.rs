//! What was measured.

use comfy_table::{Table, presets};
use serde::Serialize;

use super::contestant::Contestant;
use crate::stats;

/// One turn of a contestant.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub contestant: Contestant,
    /// From its start until every status is right.
    pub seconds: f64,
    /// What it asked the API server until it had settled; watches that go on are not in it.
    pub requests: usize,
    /// Those of them that came after every status was right.
    pub trailing: usize,
    /// The most frequent.
    pub by_kind: Vec<(String, usize)>,
    /// What it asked in the idle time, but for its lease.
    pub idle_requests: usize,
    pub idle_kinds: Vec<(String, usize)>,
    /// Until it had settled.
    pub cpu_seconds: f64,
    pub idle_cpu_seconds: f64,
    /// The most that was resident at once.
    pub peak_megabytes: f64,
    /// After the idle time.
    pub idle_megabytes: f64,
}

/// A figure of a row, and what it is called.
type Column = (&'static str, fn(&Row) -> f64);

/// What the table shows.
const COLUMNS: [Column; 8] = [
    ("until right, s", |row| row.seconds),
    ("API requests", |row| row.requests as f64),
    ("of them trailing", |row| row.trailing as f64),
    ("API requests, idle", |row| row.idle_requests as f64),
    ("CPU, s", |row| row.cpu_seconds),
    ("CPU, idle, s", |row| row.idle_cpu_seconds),
    ("peak, MB", |row| row.peak_megabytes),
    ("idle, MB", |row| row.idle_megabytes),
];

/// All turns.
#[derive(Clone, Debug, Default)]
pub struct Book {
    pub rows: Vec<Row>,
}

impl Book {
    /// A figure of each of a contestant's turns.
    pub fn values(&self, of: Contestant, figure: fn(&Row) -> f64) -> Vec<f64> {
        self.rows.iter().filter(|row| row.contestant == of).map(figure).collect()
    }

    /// Medians, a contestant a line.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(std::iter::once("operator").chain(COLUMNS.iter().map(|(name, _)| *name)));
        for contestant in [Contestant::Sluice, Contestant::Upstream] {
            let medians = COLUMNS.iter().map(|(_, figure)| {
                stats::quantile(&self.values(contestant, *figure), 0.5)
                    .map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
            });
            table.add_row(std::iter::once(contestant.label().to_owned()).chain(medians));
        }
        table.to_string()
    }

    /// What was asked most, of each contestant's last turn.
    pub fn requests(&self) -> String {
        let mut lines = Vec::new();
        for contestant in [Contestant::Sluice, Contestant::Upstream] {
            let Some(row) = self.rows.iter().rfind(|row| row.contestant == contestant) else {
                continue;
            };
            let list = |all: &[(String, usize)]| {
                all.iter()
                    .map(|(what, count)| format!("{count} {what}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            lines.push(format!("{}: {}", contestant.label(), list(&row.by_kind)));
            if !row.idle_kinds.is_empty() {
                lines.push(format!("  idle: {}", list(&row.idle_kinds)));
            }
        }
        lines.join("\n")
    }
}
