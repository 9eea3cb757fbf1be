//! Long work, shown: a spinner while it runs, one line with its time when it is done, its output only if it failed.

use std::{
    fs::{self, File},
    io::IsTerminal as _,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use comfy_table::{Cell, CellAlignment, Table, presets::NOTHING};
use indicatif::{ProgressBar, ProgressStyle};

use crate::workspace;

/// How a step ended.
pub(crate) struct Finished {
    pub(crate) name: String,
    pub(crate) success: bool,
    pub(crate) time: Duration,
    /// Everything it wrote, standard output and standard error interleaved.
    pub(crate) output: String,
}

/// As [`run`], without its line.
pub(crate) fn run_quietly(command: &mut Command) -> Result<Finished> {
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok(Finished {
        name: String::new(),
        success: output.status.success(),
        time: start.elapsed(),
        output: String::from_utf8_lossy(&text).into_owned(),
    })
}

/// Runs a command to its end. An error is a command that could not be started; one that fails is a result.
pub(crate) fn run(name: &str, command: &mut Command) -> Result<Finished> {
    let start = Instant::now();
    let log = log_file(name)?;
    let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let progress = spinner(name);
    let status = command
        .status()
        .with_context(|| format!("cannot start `{}`", command.get_program().to_string_lossy()))?;
    progress.finish_and_clear();
    // Tests print whatever bytes they met.
    let output = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let finished = Finished {
        name: name.to_owned(),
        success: status.success(),
        time: start.elapsed(),
        output,
    };
    println!("{}", finished.line());
    Ok(finished)
}

/// As [`run`], for work that nothing can follow when it fails: the output and an error then.
pub(crate) fn must(name: &str, command: &mut Command) -> Result<Finished> {
    let finished = run(name, command)?;
    if !finished.success {
        println!("{}", finished.output.trim_end());
        bail!("{name} failed");
    }
    Ok(finished)
}

/// A step that is a function of ours.
pub(crate) fn call<T>(name: &str, work: impl FnOnce() -> Result<T>) -> (Finished, Option<T>) {
    let start = Instant::now();
    let progress = spinner(name);
    let result = work();
    progress.finish_and_clear();
    let (value, output) = match result {
        Ok(value) => (Some(value), String::new()),
        Err(error) => (None, format!("{error:#}")),
    };
    let finished =
        Finished { name: name.to_owned(), success: value.is_some(), time: start.elapsed(), output };
    println!("{}", finished.line());
    (finished, value)
}

impl Finished {
    fn line(&self) -> String {
        let mark = if self.success { "ok    " } else { "FAILED" };
        format!("{mark} {:>7} {}", seconds(self.time), self.name)
    }
}

/// A table of all steps, after the output of those that failed.
pub(crate) fn summary(steps: &[Finished]) {
    for step in steps.iter().filter(|step| !step.success) {
        println!("\n---- {} ----\n{}", step.name, step.output.trim_end());
    }
    let mut table = Table::new();
    table.load_style(NOTHING);
    for step in steps {
        let result = if step.success { "ok" } else { "FAILED" };
        table.add_row([
            Cell::new(&step.name),
            Cell::new(result),
            Cell::new(seconds(step.time)).set_alignment(CellAlignment::Right),
        ]);
    }
    println!("\n{table}");
}

/// A spinner with the time gone by; invisible where no terminal is.
pub(crate) fn spinner(name: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {elapsed:>6} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    let progress = ProgressBar::new_spinner().with_style(style).with_message(name.to_owned());
    progress.enable_steady_tick(Duration::from_millis(200));
    progress
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}

/// Where a step's output is kept until the next run.
fn log_file(name: &str) -> Result<PathBuf> {
    let directory = workspace::target_dir().join("xtask-logs");
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let file: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    Ok(directory.join(format!("{file}.log")))
}
