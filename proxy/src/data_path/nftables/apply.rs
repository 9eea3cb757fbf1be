//! Runs `nft`: one transaction a script, typed errors.

use std::{
    io::{ErrorKind, Write as _},
    process::{Command, Output, Stdio},
};

use caps::{CapSet, Capability};

use crate::data_path::{ApplyError, Unsupported};

/// Where the program is looked for: PATH first; system directories are not always on a service's.
const PROGRAMS: [&str; 3] = ["nft", "/usr/sbin/nft", "/sbin/nft"];
/// How often a transaction is tried when another process changed the ruleset at the same time.
const TRIES: u32 = 5;

/// Why `nft` did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NftError {
    /// There is none.
    #[error("nft is not installed: install the nftables package")]
    Missing,
    /// It could not be run.
    #[error("nft could not be run")]
    Run(#[source] std::io::Error),
    /// The user may not change the ruleset.
    #[error("not permitted: CAP_NET_ADMIN is missing in this network namespace")]
    NotPermitted,
    /// What was named is not there.
    #[error("no such object: {0}")]
    NotFound(String),
    /// The kernel lacks a feature.
    #[error("the kernel lacks what this needs: {0}")]
    KernelLacks(String),
    /// Somebody else changed the ruleset at the same time, again and again.
    #[error("the ruleset was busy {TRIES} times in a row: {0}")]
    Busy(String),
    /// Anything else, in its words.
    #[error("nft refused it: {0}")]
    Refused(String),
    /// Its answer was not understood.
    #[error("the answer of nft was not understood")]
    Answer(#[from] serde_json::Error),
}

impl NftError {
    fn from_stderr(stderr: &str) -> Self {
        // The first error says it, and the line after it repeats that of the script.
        let mut lines = stderr.lines().skip_while(|line| !line.contains("rror"));
        let reason = lines.next().unwrap_or("no reason given").trim();
        let line = match lines.next().map(str::trim).filter(|rule| !rule.is_empty()) {
            Some(rule) => format!("{reason}, in `{rule}`"),
            None => reason.to_owned(),
        };
        let has = |text: &str| stderr.contains(text);
        if has("Operation not permitted") {
            Self::NotPermitted
        } else if has("Operation not supported") || has("Protocol not supported") {
            Self::KernelLacks(line)
        } else if has("Device or resource busy") || has("Resource temporarily unavailable") {
            Self::Busy(line)
        } else if has("No such file or directory") {
            Self::NotFound(line)
        } else {
            Self::Refused(line)
        }
    }

    /// As the answer to "can this path carry it".
    pub(crate) fn into_unsupported(self) -> Unsupported {
        match self {
            Self::Missing | Self::Run(_) => {
                Unsupported::Program { program: "nft", reason: self.to_string() }
            }
            Self::NotPermitted => Unsupported::Capability("CAP_NET_ADMIN"),
            other => {
                Unsupported::Kernel { what: "the nftables script".into(), source: other.into() }
            }
        }
    }

    /// As the outcome of a step of an apply.
    pub(crate) fn into_apply(self, step: &str) -> ApplyError {
        match self {
            Self::Missing | Self::NotPermitted => self.into_unsupported().into(),
            other => ApplyError::step(step, other),
        }
    }
}

/// Applies a script: all of it or nothing.
pub(crate) fn apply(script: &str) -> Result<(), NftError> {
    if script.is_empty() {
        return Ok(());
    }
    let mut tries = 0;
    loop {
        match run(&["-f", "-"], script) {
            Err(NftError::Busy(_)) if tries + 1 < TRIES => tries += 1,
            other => return other.map(drop),
        }
    }
}

/// Has the kernel check a script and take it back.
pub(crate) fn check(script: &str) -> Result<(), NftError> {
    run(&["-c", "-f", "-"], script).map(drop)
}

/// Lists objects as JSON; `None` if there are none such.
pub(crate) fn list(what: &[&str]) -> Result<Option<String>, NftError> {
    let mut args = vec!["-j", "list"];
    args.extend(what);
    match run(&args, "") {
        Ok(text) => Ok(Some(text)),
        Err(NftError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn run(args: &[&str], input: &str) -> Result<String, NftError> {
    inherit_capability();
    let mut missing = NftError::Missing;
    for program in PROGRAMS {
        match spawn(program, args, input) {
            Ok(output) if output.status.success() => {
                return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
            }
            Ok(output) => {
                return Err(NftError::from_stderr(&String::from_utf8_lossy(&output.stderr)));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => missing = NftError::Run(error),
        }
    }
    Err(missing)
}

fn spawn(program: &str, args: &[&str], input: &str) -> std::io::Result<Output> {
    let mut child = Command::new(program)
        .args(args)
        // Messages are told apart by their English text.
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // Nothing is printed before the whole script is read, so writing first cannot block on a full pipe. If nft
    // ends early the write fails, and what nft said is the better message.
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    match written {
        Some(Err(error)) if output.status.success() => Err(error),
        _ => Ok(output),
    }
}

/// A process that is not root hands its capability on to a program only through the ambient set.
fn inherit_capability() {
    let capability = Capability::CAP_NET_ADMIN;
    let has = |set| caps::has_cap(None, set, capability).unwrap_or(false);
    if !nix::unistd::geteuid().is_root() && has(CapSet::Permitted) && !has(CapSet::Ambient) {
        // If it is refused, nft says "not permitted", which is what the user should read.
        let _ = caps::raise(None, CapSet::Inheritable, capability)
            .and_then(|()| caps::raise(None, CapSet::Ambient, capability));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_kinds() {
        let kind = NftError::from_stderr;
        assert!(matches!(
            kind("Error: Could not process rule: Operation not permitted"),
            NftError::NotPermitted
        ));
        assert!(matches!(
            kind("x\nError: Could not process rule: Device or resource busy\n"),
            NftError::Busy(_)
        ));
        assert!(matches!(kind("Error: No such file or directory\nlist"), NftError::NotFound(_)));
        assert!(matches!(
            kind("Error: Could not process rule: Operation not supported"),
            NftError::KernelLacks(_)
        ));
        let refused = kind("-:1:1-3: Error: syntax error, unexpected junk\nfoo\n^^^");
        assert_eq!(
            refused.to_string(),
            "nft refused it: -:1:1-3: Error: syntax error, unexpected junk, in `foo`"
        );
    }
}
