//! What must be reached beside upstream's operator, turn by turn.

use super::{
    book::{Book, Row},
    contestant::Contestant::{Sluice, Upstream},
};
use crate::{
    goals::{Better, Goal},
    stats,
};

/// Ours by theirs: name, figure, floor, aim.
type Wanted = (&'static str, &'static str, fn(&Row) -> f64, f64, f64);

const WANTED: [Wanted; 4] = [
    ("G18a", "until every status is right, ours / upstream's", |row| row.seconds, 0.5, 0.25),
    (
        "G18b",
        "peak of resident memory, ours / upstream's",
        |row| row.peak_megabytes,
        1.0 / 3.0,
        0.2,
    ),
    ("G18c", "API requests, ours / upstream's", |row| row.requests as f64, 0.5, 0.3),
    ("G18d", "CPU, ours / upstream's", |row| row.cpu_seconds, 0.5, 0.25),
];

/// Every goal.
pub fn goals(book: &Book) -> Vec<Goal> {
    let mut goals: Vec<Goal> = WANTED
        .iter()
        .map(|(id, what, figure, floor, aim)| {
            let ratios =
                stats::ratios(&book.values(Sluice, *figure), &book.values(Upstream, *figure));
            Goal::new(id, what, &ratios, *floor, *aim, Better::Lower)
        })
        .collect();
    let idle = book.values(Sluice, |row| row.idle_requests as f64);
    goals.push(Goal::new(
        "G18e",
        "API requests while idle but for the lease, ours",
        &idle,
        0.0,
        0.0,
        Better::Lower,
    ));
    goals
}
