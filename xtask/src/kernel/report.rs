//! What the emulated machine says on its serial line, read as it comes.

use std::{collections::BTreeSet, mem};

use crate::test::{Binary, Tally};

/// The results so far.
pub(crate) struct Report<'a> {
    kernel: &'a str,
    binaries: &'a [&'a Binary],
    /// The tests of each binary that have not ended.
    open: Vec<BTreeSet<String>>,
    total: Tally,
    current: Option<Current>,
    ended: Vec<bool>,
}

/// What the binary that runs has said.
struct Current {
    index: usize,
    tally: Tally,
    /// Tests that passed and failed, by their own lines: a binary that is cut off does not add up.
    lines: (usize, usize),
    added_up: bool,
}

impl<'a> Report<'a> {
    /// `tests` are those that are to run of each binary.
    pub(crate) fn new(
        kernel: &'a str,
        binaries: &'a [&'a Binary],
        tests: Vec<BTreeSet<String>>,
    ) -> Self {
        let ended = vec![false; binaries.len()];
        Self { kernel, binaries, open: tests, total: Tally::default(), current: None, ended }
    }

    fn label(&self, index: usize) -> String {
        let binary = self.binaries.get(index).map(|binary| binary.label()).unwrap_or_default();
        format!("kernel {}: {binary}", self.kernel)
    }

    /// Takes one line; what is worth showing of it.
    pub(crate) fn read(&mut self, line: &str) -> Option<String> {
        // The firmware's last words may stand before it.
        if let Some((_, release)) = line.split_once("::boot ") {
            return Some(format!("Linux {release}"));
        }
        if let Some(index) = line.strip_prefix("::begin ").and_then(|rest| rest.parse().ok()) {
            let tally = Tally::default();
            self.current = Some(Current { index, tally, lines: (0, 0), added_up: false });
            return None;
        }
        // A test's unfinished last line may stand before the mark.
        if let Some((_, rest)) = line.split_once("::end ")
            && let Some(current) = self.current.take()
        {
            let why = match rest.split(' ').nth(1).unwrap_or_default() {
                "0" => None,
                "137" => Some("took too long (137)".to_owned()),
                code => Some(format!("ended badly ({code})")),
            };
            return Some(self.end(current, why.as_deref()));
        }
        let label = self.label(self.current.as_ref()?.index);
        let current = self.current.as_mut()?;
        current.tally.read_line(&label, line);
        current.added_up |= line.contains("test result: ");
        let left_out = line
            .split_once(" filtered out")
            .and_then(|(before, _)| before.rsplit(' ').next()?.parse::<usize>().ok())
            .unwrap_or(0);
        if left_out > 0 {
            current.tally.skip(&label, left_out, "which take too long without KVM");
        }
        let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
        match result {
            "ok" => current.lines.0 += 1,
            "FAILED" => current.lines.1 += 1,
            _ => {}
        }
        if !result.is_empty()
            && let Some(open) = self.open.get_mut(current.index)
        {
            open.remove(name.trim_end_matches(" - should panic"));
        }
        Some(line.to_owned())
    }

    /// Adds up a binary. `why`: it did not end well. Its tests that have ended count for what they were, and each of the
    /// others is a failure.
    fn end(&mut self, current: Current, why: Option<&str>) -> String {
        let Current { index, mut tally, lines: (passed, failed), added_up } = current;
        let label = self.label(index);
        if !added_up {
            tally.passed += passed;
            tally.failed += failed;
        }
        let open = self.open.get_mut(index).map(mem::take).unwrap_or_default();
        if let Some(why) = why
            && !added_up
        {
            for name in open {
                tally.fail(format!("{label}: {name} did not end: its binary {why}"));
            }
        }
        if let (Some(why), 0) = (why, tally.failed) {
            tally.fail(format!("{label}: {why}"));
        }
        let said = format!("{label}: {tally}");
        self.total.add(tally);
        if let Some(ended) = self.ended.get_mut(index) {
            *ended = true;
        }
        said
    }

    /// The sum. A binary without an end mark (a panic of the kernel, the time limit) is a failure.
    pub(crate) fn finish(mut self) -> Tally {
        if let Some(current) = self.current.take() {
            self.end(current, Some("was cut off"));
        }
        for index in 0..self.binaries.len() {
            if !self.ended.get(index).copied().unwrap_or(false) {
                let label = self.label(index);
                self.total.fail(format!("{label}: did not start"));
            }
        }
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::Report;
    use crate::test::{Binary, Place, Tally, Tier};

    fn binary(name: &str) -> Binary {
        Binary {
            package: "proxy".into(),
            name: name.into(),
            tier: Tier::Packet,
            programs: &[],
            place: Place::Everywhere,
            quick: &[],
            executable: "/t".into(),
            directory: "/".into(),
        }
    }

    fn read(names: &[&str], output: &str) -> (Tally, Vec<String>) {
        let binaries: Vec<_> = names.iter().map(|name| binary(name)).collect();
        let binaries: Vec<_> = binaries.iter().collect();
        let tests = ["a", "b", "c"].map(String::from);
        let tests = names.iter().map(|_| tests.iter().cloned().collect()).collect();
        let mut report = Report::new("6.1", &binaries, tests);
        let said = output.lines().filter_map(|line| report.read(line.trim_end())).collect();
        (report.finish(), said)
    }

    #[test]
    fn results_are_read_between_the_marks_and_a_silent_death_is_a_failure() {
        let (tally, said) = read(
            &["packet", "namespace", "laws"],
            "\x1b[2J::boot 6.1.0 has booted\r\n::begin 0\r\ntest a ... ok\r\n\
             test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured\r\n::end 0 0\r\n\
             ::begin 1\r\ntest b ... ok\r\ntest c ... ok\r\nKernel panic\r\n",
        );
        assert_eq!((tally.passed, tally.failed), (7, 2));
        assert_eq!(
            tally.failures,
            [
                "kernel 6.1: proxy namespace: a did not end: its binary was cut off",
                "kernel 6.1: proxy laws: did not start"
            ]
        );
        assert_eq!(
            said,
            [
                "Linux 6.1.0 has booted",
                "test a ... ok",
                "kernel 6.1: proxy packet: 5 passed, 0 failed, 0 skipped",
                "test b ... ok",
                "test c ... ok"
            ]
        );
    }

    #[test]
    fn what_is_left_out_without_kvm_is_counted() {
        let (tally, _) = read(
            &["laws"],
            "::begin 0\ntest result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 11 filtered out; finished in 1s\n::end 0 0\n",
        );
        assert_eq!((tally.passed, tally.skipped), (5, 11));
        assert_eq!(
            tally.skips,
            ["kernel 6.1: proxy laws: 11 tests, which take too long without KVM"]
        );
    }

    #[test]
    fn a_binary_that_uses_up_its_time_keeps_what_passed_and_names_what_did_not_end() {
        let (tally, _) = read(
            &["laws"],
            "::begin 0\ntest a ... ok\ntest c ... FAILED\ntest b ... ::end 0 137\n",
        );
        assert_eq!((tally.passed, tally.failed), (1, 2));
        assert_eq!(
            tally.failures,
            [
                "kernel 6.1: proxy laws: c",
                "kernel 6.1: proxy laws: b did not end: its binary took too long (137)"
            ]
        );
    }
}
