//! Everything a run has measured, as tables and as a picture.

use comfy_table::{CellAlignment, Table, presets};

use super::{
    series::{Measure, Series},
    way::{Role, Way},
};
use crate::{
    plot::{Bar, Kind, Panel, Picture},
    stats,
};

/// What is drawn, and which way is better.
const DRAWN: [(Measure, &str); 7] = [
    (Measure::Stream1, "more"),
    (Measure::Stream8, "more"),
    (Measure::Cpu8Machine, "less"),
    (Measure::UdpFlood, "more"),
    (Measure::RrP99, "less"),
    (Measure::Crr, "more"),
    (Measure::Start, "less"),
];

/// The series, in the order in which they were begun.
#[derive(Debug, Default)]
pub struct Book {
    pub series: Vec<Series>,
}

impl Book {
    /// Adds one round's number.
    pub fn add(&mut self, measure: Measure, way: Way, role: Option<Role>, value: f64) {
        let key = (measure, way, role);
        match self.series.iter_mut().find(|s| (s.measure, s.way, s.role) == key) {
            Some(series) => series.values.push(value),
            None => self.series.push(Series { measure, way, role, values: vec![value] }),
        }
    }

    /// The numbers, round by round; nothing, if it was left out. What has no role stands beside both.
    pub fn values(&self, measure: Measure, way: Way, role: Role) -> &[f64] {
        let found = self.series.iter().find(|s| {
            (s.measure, s.way) == (measure, way) && s.role.is_none_or(|theirs| theirs == role)
        });
        found.map_or(&[], |series| &series.values)
    }

    fn ways(&self) -> Vec<Way> {
        let all: &[Way] = clap::ValueEnum::value_variants();
        all.iter().copied().filter(|way| self.series.iter().any(|s| s.way == *way)).collect()
    }

    /// Ingress on the left, egress on the right.
    pub fn picture(&self) -> Picture {
        let ways = self.ways();
        let bar = |way: &Way, measure, role| {
            let kind = match way {
                Way::Direct => Kind::Bound,
                way if way.is_ours() => Kind::Ours,
                _ => Kind::Theirs,
            };
            let quartiles = stats::quartiles(self.values(measure, *way, role))?;
            Some(Bar { label: way.label(), kind, quartiles })
        };
        let panels = DRAWN.iter().flat_map(|&(measure, better)| {
            let ways = &ways;
            Role::ALL.map(|role| Panel {
                title: format!("{}: {}", role.name(), measure.label()),
                note: format!("{better} is better"),
                digits: measure.digits(),
                bars: ways.iter().filter_map(|way| bar(way, measure, role)).collect(),
            })
        });
        Picture {
            title: "Sluice beside upstream's proxy, on a real tailnet",
            panels: panels.collect(),
            row: 220,
        }
    }

    /// One role: a line for each measure, a column for each way; medians with quartiles.
    pub fn table(&self, role: Role) -> String {
        let ways = self.ways();
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([role.name()].into_iter().chain(ways.iter().map(|way| way.label())));
        for measure in Measure::ALL {
            let cells: Vec<_> =
                ways.iter().map(|way| cell(measure, self.values(measure, *way, role))).collect();
            if cells.iter().any(|cell| !cell.is_empty()) {
                table.add_row([measure.label().to_owned()].into_iter().chain(cells));
            }
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }
}

fn cell(measure: Measure, values: &[f64]) -> String {
    let digits = measure.digits();
    stats::quartiles(values).map_or(String::new(), |q| {
        format!("{:.digits$} ({:.digits$} - {:.digits$})", q.median, q.low, q.high)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_without_a_role_stands_beside_both() {
        let mut book = Book::default();
        book.add(Measure::Stream1, Way::Direct, None, 2.0);
        for value in [1.0, 3.0] {
            book.add(Measure::Stream1, Way::SluiceEbpf, Some(Role::Egress), value);
        }
        assert_eq!(book.values(Measure::Stream1, Way::Direct, Role::Ingress), [2.0]);
        assert_eq!(book.values(Measure::Stream1, Way::SluiceEbpf, Role::Egress), [1.0, 3.0]);
        assert!(book.values(Measure::Stream1, Way::SluiceEbpf, Role::Ingress).is_empty());
        let table = book.table(Role::Egress);
        assert!(table.contains("2.00 (1.50 - 2.50)"), "{table}");
        assert!(!table.contains("containerboot"), "{table}");
    }
}
