//! What a process printed, bounded: its first lines, where a complaint about arguments is, and its last, where a reason is.

use std::{collections::VecDeque, fmt};

const FIRST: usize = 6;
const LAST: usize = 14;

/// Lines of one run, without secrets.
#[derive(Clone, Debug, Default)]
pub struct Said {
    first: Vec<String>,
    last: VecDeque<String>,
    /// Lines between the two that are not kept.
    omitted: usize,
}

impl Said {
    pub(super) fn push(&mut self, line: &str) {
        if self.first.len() < FIRST {
            self.first.push(line.to_owned());
            return;
        }
        if self.last.len() == LAST {
            self.last.pop_front();
            self.omitted += 1;
        }
        self.last.push_back(line.to_owned());
    }

    /// The lines that are kept.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.first.iter().chain(&self.last).map(String::as_str)
    }

    /// Whether it printed nothing.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

impl fmt::Display for Said {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = self.first.iter();
        if let Some(line) = lines.next() {
            write!(formatter, "  {line}")?;
        }
        for line in lines {
            write!(formatter, "\n  {line}")?;
        }
        if self.omitted > 0 {
            write!(formatter, "\n  ({} lines not kept)", self.omitted)?;
        }
        for line in &self.last {
            write!(formatter, "\n  {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_lines_are_kept() {
        let mut said = Said::default();
        assert!(said.is_empty() && said.to_string().is_empty());
        for line in 0..1000 {
            said.push(&line.to_string());
        }
        let kept: Vec<_> = said.lines().map(|line| line.parse::<usize>().unwrap()).collect();
        assert_eq!(kept, (0..FIRST).chain(1000 - LAST..1000).collect::<Vec<_>>());
        let shown = said.to_string();
        assert!(shown.starts_with("  0\n  1\n") && shown.ends_with("\n  999"), "{shown}");
        assert!(
            shown.contains(&format!("\n  ({} lines not kept)\n", 1000 - FIRST - LAST)),
            "{shown}"
        );
    }
}
