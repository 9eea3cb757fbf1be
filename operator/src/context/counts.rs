//! How often what was reconciled, and how it ended.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Mutex, PoisonError},
};

/// Reconciliations since the start, by controller and by how they ended: `Success`, or an error's reason.
#[derive(Debug, Default)]
pub struct Counts(Mutex<BTreeMap<(&'static str, &'static str), u64>>);

impl Counts {
    /// One more.
    pub fn count(&self, controller: &'static str, result: &'static str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry((controller, result)).or_default() += 1;
    }

    /// All of a controller.
    pub fn total(&self, controller: &str) -> u64 {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|((own, _), _)| *own == controller).map(|(_, count)| count).sum()
    }

    /// As Prometheus reads them.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "# HELP sluice_operator_reconciliations_total Reconciliations that have ended.\n\
             # TYPE sluice_operator_reconciliations_total counter\n",
        );
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ((controller, result), count) in all.iter() {
            // A String takes everything.
            let _ = writeln!(
                text,
                "sluice_operator_reconciliations_total{{controller=\"{controller}\",result=\"{result}\"}} {count}"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn each_controller_and_each_end_is_counted_alone() {
        let counts = Counts::default();
        for (controller, result) in
            [("a", "Success"), ("a", "Conflict"), ("b", "Success"), ("a", "Success")]
        {
            counts.count(controller, result);
        }
        assert_eq!((counts.total("a"), counts.total("b"), counts.total("c")), (3, 1, 0));
        assert!(counts.text().ends_with(
            "{controller=\"a\",result=\"Conflict\"} 1\n\
             sluice_operator_reconciliations_total{controller=\"a\",result=\"Success\"} 2\n\
             sluice_operator_reconciliations_total{controller=\"b\",result=\"Success\"} 1\n"
        ));
    }
}
