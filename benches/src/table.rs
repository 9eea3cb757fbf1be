//! The run as tables, for the terminal and for `README.md`.

use comfy_table::{CellAlignment, Table, presets};

use crate::{
    goals::Goal,
    series::{Measure, Series},
    stats,
};

/// Every series.
pub fn series(all: &[Series]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "measure",
        "way",
        "flows",
        "ports",
        "median",
        "quartiles",
        "unit",
        "lost",
        "wrong",
    ]);
    for series in all {
        let Some(q) = stats::quartiles(&series.values) else { continue };
        let digits = digits(series.measure);
        table.add_row([
            series.measure.label().to_owned(),
            series.rung.label().to_owned(),
            series.flows.to_string(),
            series.ports.to_string(),
            format!("{:.digits$}", q.median),
            format!("{:.digits$} - {:.digits$}", q.low, q.high),
            series.measure.unit().to_owned(),
            series.lost.to_string(),
            if series.verified > 0 { series.wrong.to_string() } else { String::new() },
        ]);
    }
    align(&mut table, &[2, 3, 4, 5, 7, 8]);
    table.to_string()
}

/// Every goal.
pub fn goals(all: &[Goal]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["goal", "what", "value", "quartiles", "floor", "aim", "reached"]);
    for goal in all {
        let q = goal.quartiles.map_or(String::new(), |q| format!("{:.3} - {:.3}", q.low, q.high));
        table.add_row([
            goal.id.to_owned(),
            goal.what.to_owned(),
            goal.value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}")),
            q,
            goal.floor.to_string(),
            goal.aim.to_string(),
            goal.not_measured.map_or_else(
                || goal.verdict().to_owned(),
                |reason| format!("not measured: {reason}"),
            ),
        ]);
    }
    align(&mut table, &[2, 3, 4, 5]);
    table.to_string()
}

fn align(table: &mut Table, columns: &[usize]) {
    for &column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

const fn digits(measure: Measure) -> usize {
    match measure {
        Measure::TcpStream | Measure::ApplyCold | Measure::ApplyChange => 2,
        Measure::TcpRr | Measure::TcpCrr | Measure::TunTcpGso | Measure::TunUdpUso => 0,
        _ => 1,
    }
}
