//! The repository's own rules, as tests. Each failure names every file that breaks the rule.

#![expect(clippy::expect_used, reason = "test")]

use std::{fs, path::Path};

#[path = "tidy/modules.rs"]
mod modules;
#[path = "tidy/readme.rs"]
mod readme;
#[path = "tidy/tree.rs"]
mod tree;

use tree::{files, root};

/// A file that is longer holds more than one idea.
const MAX_LINES: usize = 500;

/// Names that say nothing about what is inside.
const FORBIDDEN: [&str; 9] =
    ["mod", "util", "utils", "helper", "helpers", "misc", "types", "manager", "stuff"];

#[test]
fn files_are_short() {
    let long: Vec<_> = files(".rs")
        .into_iter()
        .map(|(path, text)| (text.lines().count(), path))
        .filter(|(lines, _)| *lines > MAX_LINES)
        .collect();
    assert!(long.is_empty(), "split these by what they are about: {long:?}");
}

#[test]
fn files_are_named_after_what_they_hold() {
    let vague: Vec<_> = files(".rs")
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| {
            let stem = Path::new(path).file_stem().and_then(|stem| stem.to_str());
            stem.is_some_and(|stem| FORBIDDEN.contains(&stem))
        })
        .collect();
    assert!(vague.is_empty(), "name these after what they hold: {vague:?}");
}

#[test]
fn every_source_file_is_compiled() {
    let compiled = modules::compiled();
    let orphans: Vec<_> = files(".rs")
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| !compiled.contains(path))
        .collect();
    assert!(orphans.is_empty(), "no crate or module names these: {orphans:?}");
}

#[test]
fn every_package_takes_the_workspaces_lints() {
    let lax: Vec<_> = files("Cargo.toml")
        .into_iter()
        .filter(|(_, text)| text.contains("[package]"))
        .filter(|(_, text)| !text.contains("[lints]\nworkspace = true"))
        .map(|(path, _)| path)
        .collect();
    assert!(lax.is_empty(), "add `[lints] workspace = true` to {lax:?}");
}

#[test]
fn unfinished_work_is_an_issue_and_not_a_comment() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")];
    let found = lines_with(|line| {
        marks.iter().any(|mark| {
            line.split(mark).skip(1).any(|rest| !rest.trim_start_matches('(').starts_with('#'))
        })
    });
    assert!(found.is_empty(), "write an issue and its number: {found:?}");
}

#[test]
fn no_test_is_left_out_or_waits_for_a_while() {
    let marks = [concat!("#[igno", "re"), concat!("#[should_", "panic")];
    let found = lines_with(|line| marks.iter().any(|mark| line.trim_start().starts_with(mark)));
    assert!(found.is_empty(), "a test runs and says what it expects: {found:?}");
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    let places = [
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/fa", "rm/"),
        concat!("/home", "/"),
        concat!("index.", "crates.io"),
        concat!("deb.", "debian.org"),
    ];
    let found = lines_with(|line| places.iter().any(|place| line.contains(place)));
    assert!(found.is_empty(), "these hold on one machine only: {found:?}");
}

#[test]
fn every_file_of_text_ends_with_one_newline() {
    let found: Vec<_> = files("")
        .into_iter()
        .filter(|(_, text)| !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")))
        .map(|(path, _)| path)
        .filter(|path| [".rs", ".toml", ".md"].iter().any(|extension| path.ends_with(extension)))
        .collect();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn every_command_of_the_readme_is_run_by_something() {
    let text = fs::read_to_string(root().join("README.md")).expect("README.md");
    let unknown: Vec<_> =
        readme::commands(&text).into_iter().filter(|command| !readme::is_run(command)).collect();
    assert!(unknown.is_empty(), "name who runs these in tidy/readme.rs: {unknown:?}");
    let stale = readme::stale(&text);
    assert!(stale.is_empty(), "the README no longer has these: {stale:?}");
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let mut broken = Vec::new();
    for (path, text) in files(".md") {
        let directory = root().join(&path);
        let directory = directory.parent().unwrap_or(root());
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            if !link.is_empty() && !link.contains("://") && !directory.join(link).exists() {
                broken.push(format!("{path}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}

/// `file:line` of the lines that `is_wrong`, in every tracked file of text.
fn lines_with(is_wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files("") {
        if path == "Cargo.lock" {
            continue;
        }
        for (index, line) in text.lines().enumerate().filter(|(_, line)| is_wrong(line)) {
            found.push(format!("{path}:{}: {}", index + 1, line.trim()));
        }
    }
    found
}
