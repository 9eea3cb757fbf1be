//! What was run and what came of it.

use std::fmt;

use crate::step::Finished;

/// Counts of tests, and the names behind those that did not pass.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    pub(crate) failures: Vec<String>,
    pub(crate) skips: Vec<String>,
    /// What happened beside the tests and must not be overlooked.
    pub(crate) notes: Vec<String>,
}

impl Tally {
    /// Reads what libtest printed. A binary that ended badly without a failing test (a crash, a time-out) is a failure.
    pub(crate) fn of_output(label: &str, finished: &Finished) -> Self {
        let mut tally = Self::default();
        for line in finished.output.lines() {
            tally.read_line(label, line);
        }
        for failure in &mut tally.failures {
            let name = failure.rsplit(": ").next().unwrap_or_default();
            if let Some(reason) = reason(&finished.output, name) {
                *failure = format!("{failure}: {reason}");
            }
        }
        if !finished.success && tally.failed == 0 {
            tally.failed = 1;
            tally.failures.push(format!("{label}: ended badly without saying which test failed"));
        }
        tally
    }

    /// Takes one line of libtest's: a failing test's, or the last one of a binary. Tests print in between, so a name
    /// may follow other text.
    pub(crate) fn read_line(&mut self, label: &str, line: &str) {
        if let Some((_, counts)) = line.split_once("test result: ") {
            let count = |what: &str| {
                counts
                    .split(['.', ';'])
                    .find_map(|part| part.trim().strip_suffix(what)?.trim().parse::<usize>().ok())
                    .unwrap_or(0)
            };
            self.passed += count("passed");
            self.failed += count("failed");
            self.skipped += count("ignored");
            if count("ignored") > 0 {
                self.skips.push(format!("{label}: {} ignored", count("ignored")));
            }
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(format!("{label}: {name}"));
        }
    }

    pub(crate) fn skip(&mut self, label: &str, tests: usize, reason: &str) {
        self.skipped += tests;
        self.skips.push(format!("{label}: {tests} tests, {reason}"));
    }

    pub(crate) fn fail(&mut self, failure: String) {
        self.failed += 1;
        self.failures.push(failure);
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.skips.extend(other.skips);
        self.notes.extend(other.notes);
    }
}

/// Where a test panicked, and the beginning of what it said: the rest of a long log may be out of sight by the end of a run.
fn reason(output: &str, name: &str) -> Option<String> {
    const LENGTH: usize = 300;
    let (_, told) = output.split_once(&format!("thread '{name}' "))?;
    let (_, told) = told.split_once("panicked at ")?;
    let said: String = told.lines().take(3).collect::<Vec<_>>().join(" ");
    Some(said.chars().take(LENGTH).collect())
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped, .. } = self;
        write!(formatter, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Tally;
    use crate::step::Finished;

    fn tally(success: bool, output: &str) -> Tally {
        Tally::of_output(
            "some tests",
            &Finished {
                name: String::new(),
                success,
                time: Duration::ZERO,
                output: output.to_owned(),
            },
        )
    }

    #[test]
    fn the_last_lines_of_several_binaries_add_up() {
        let tally = tally(
            false,
            "running 3 tests\ntest a ... ok\ntest b::c ... FAILED\n\n\
             thread 'b::c' (7) panicked at b.rs:1:2:\nno answer\nin time\nlong log\n\
             test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
        );
        assert_eq!((tally.passed, tally.failed, tally.skipped), (6, 1, 1));
        assert_eq!(tally.failures, ["some tests: b::c: b.rs:1:2: no answer in time"]);
    }

    #[test]
    fn a_crash_counts_as_a_failure() {
        assert_eq!(tally(false, "running 3 tests\n").failed, 1);
    }
}
