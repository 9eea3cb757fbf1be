//! What is going on, on the terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over all rounds.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of this many rounds.
    pub fn new(rounds: u64) -> Self {
        let bar = ProgressBar::new(rounds);
        let style = "{bar:30.cyan/blue} {pos}/{len} {elapsed}, {eta} to go: {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// Says what is done now.
    pub fn say(&self, text: &str) {
        self.bar.set_message(text.to_owned());
    }

    /// One round is over.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Everything is over.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
