//! The README's commands, and who runs each: a command that nothing runs stops working unseen.

use std::fs;

use crate::tree::root;

/// Command -> a file that runs it (or the test of exactly that subcommand).
const RUN_BY: &[(&str, &str)] = &[
    // `cargo xtask test` begins with the set-up.
    ("cargo xtask setup", "xtask/src/test.rs"),
    // `cargo xtask test` ends with the demonstration.
    ("cargo xtask demo", "xtask/src/test.rs"),
    ("cargo xtask build-ebpf", "xtask/tests/tasks.rs"),
    // The benchmark's build, of this and more.
    ("cargo build --release --package proxy", "xtask/src/bench.rs"),
    ("cargo xtask test", ".ci/run"),
];

/// The lines of the blocks tagged `sh`.
pub(crate) fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
        } else if inside && !line.trim().is_empty() && !line.starts_with('#') {
            commands.push(line.trim().to_owned());
        }
    }
    commands
}

pub(crate) fn is_run(command: &str) -> bool {
    RUN_BY
        .iter()
        .any(|(known, runner)| *known == command && fs::metadata(root().join(runner)).is_ok())
}

/// Commands of ours that the README has lost.
pub(crate) fn stale(text: &str) -> Vec<&'static str> {
    let commands = commands(text);
    RUN_BY
        .iter()
        .map(|(command, _)| *command)
        .filter(|command| !commands.iter().any(|c| c == command))
        .collect()
}
