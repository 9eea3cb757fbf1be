//! What the emulated machine says on its serial line, read as it comes.

use crate::test::{Binary, Tally};

/// The results so far.
pub(crate) struct Report<'a> {
    kernel: &'a str,
    binaries: &'a [&'a Binary],
    total: Tally,
    /// The binary that runs, and what it has said.
    current: Option<(usize, Tally)>,
    ended: Vec<bool>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(kernel: &'a str, binaries: &'a [&'a Binary]) -> Self {
        let ended = vec![false; binaries.len()];
        Self { kernel, binaries, total: Tally::default(), current: None, ended }
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
            self.current = Some((index, Tally::default()));
            return None;
        }
        // A test's unfinished last line may stand before the mark.
        if let Some((_, rest)) = line.split_once("::end ")
            && let Some((index, mut tally)) = self.current.take()
        {
            let code = rest.split(' ').nth(1).unwrap_or_default();
            let label = self.label(index);
            if code != "0" && tally.failed == 0 {
                let why = if code == "137" { "took too long" } else { "ended badly" };
                tally.fail(format!("{label}: {why} ({code})"));
            }
            let said = format!("{label}: {tally}");
            self.total.add(tally);
            if let Some(ended) = self.ended.get_mut(index) {
                *ended = true;
            }
            return Some(said);
        }
        let label = self.label(self.current.as_ref()?.0);
        let (_, tally) = self.current.as_mut()?;
        tally.read_line(&label, line);
        let left_out = line
            .split_once(" filtered out")
            .and_then(|(before, _)| before.rsplit(' ').next()?.parse::<usize>().ok())
            .unwrap_or(0);
        if left_out > 0 {
            tally.skip(&label, left_out, "which take too long without KVM");
        }
        let shown = line.starts_with("test ") && line.contains(" ... ");
        shown.then(|| line.to_owned())
    }

    /// The sum. A binary without an end mark (a panic of the kernel, the time limit) is a failure.
    pub(crate) fn finish(mut self) -> Tally {
        for index in 0..self.binaries.len() {
            if !self.ended.get(index).copied().unwrap_or(false) {
                let label = self.label(index);
                self.total.fail(format!("{label}: did not end"));
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
            place: Place::Everywhere,
            quick: &[],
            executable: "/t".into(),
            directory: "/".into(),
        }
    }

    fn read(names: &[&str], output: &str) -> (Tally, Vec<String>) {
        let binaries: Vec<_> = names.iter().map(|name| binary(name)).collect();
        let binaries: Vec<_> = binaries.iter().collect();
        let mut report = Report::new("6.1", &binaries);
        let said = output.lines().filter_map(|line| report.read(line.trim_end())).collect();
        (report.finish(), said)
    }

    #[test]
    fn results_are_read_between_the_marks_and_a_silent_death_is_a_failure() {
        let (tally, said) = read(
            &["packet", "namespace"],
            "\x1b[2J::boot 6.1.0 has booted\r\n::begin 0\r\ntest a ... ok\r\n\
             test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured\r\n::end 0 0\r\n\
             ::begin 1\r\nKernel panic\r\n",
        );
        assert_eq!((tally.passed, tally.failed), (5, 1));
        assert_eq!(tally.failures, ["kernel 6.1: proxy namespace: did not end"]);
        assert_eq!(
            said,
            [
                "Linux 6.1.0 has booted",
                "test a ... ok",
                "kernel 6.1: proxy packet: 5 passed, 0 failed, 0 skipped"
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
    fn a_binary_that_uses_up_its_time_is_a_failure_with_its_name() {
        let (tally, _) = read(&["laws"], "::begin 0\ntest a ... ok\ntest b ... ::end 0 137\n");
        assert_eq!(tally.failures, ["kernel 6.1: proxy laws: took too long (137)"]);
    }
}
