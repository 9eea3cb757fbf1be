//! The two operators as processes.

use std::{env, fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result};
use clap::ValueEnum;
use nix::sys::signal::Signal;
use proxy_testbed::{Daemon, kubernetes::OPERATOR};
use serde::Serialize;
use tempfile::TempDir;

use super::field::Field;
use crate::usage;

/// Our program; `cargo xtask bench` builds it and says so here.
pub const PROGRAM: &str = "SLUICE_OPERATOR";
/// How long an operator may take to stop.
const STOP: Duration = Duration::from_secs(30);
/// How much of a log is shown.
const TAIL: usize = 4000;

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Contestant {
    /// Ours.
    Sluice,
    /// Upstream's, built from its module.
    Upstream,
}

impl Contestant {
    /// As tables name it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Sluice => "sluice-operator",
            Self::Upstream => "upstream's operator",
        }
    }
}

/// A running operator.
pub struct Running {
    daemon: Daemon,
    _directory: TempDir,
}

impl Running {
    /// Starts it in the namespace of the servers.
    pub fn start(contestant: Contestant, field: &Field, upstream: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("operator-").tempdir()?;
        let own = directory.path();
        let program = match contestant {
            Contestant::Sluice => {
                env::var_os(PROGRAM).context("SLUICE_OPERATOR names our program")?.into()
            }
            Contestant::Upstream => upstream.join("k8s-operator"),
        };
        for (name, text) in [("client_id", field.oauth.0), ("client_secret", field.oauth.1)] {
            fs::write(own.join(name), text)?;
        }
        fs::write(own.join("kubeconfig"), field.kubeconfig()?)?;
        let mut command: Command = field.tailnet.internet().command(program);
        // Upstream's keeps its own device below the home directory; ours needs none.
        command.env_clear().env("HOME", own).env("PATH", env::var_os("PATH").unwrap_or_default());
        command.env("KUBECONFIG", own.join("kubeconfig"));
        command.env("SSL_CERT_FILE", field.tailnet.authority());
        command.env("CLIENT_ID_FILE", own.join("client_id"));
        command.env("CLIENT_SECRET_FILE", own.join("client_secret"));
        command.env("OPERATOR_NAMESPACE", OPERATOR.0).env("POD_NAME", "operator-0");
        command.env("OPERATOR_LOGIN_SERVER", field.tailnet.url());
        command.env("PROXY_IMAGE", "proxy:bench").env("PROXY_TAGS", "tag:k8s");
        command.env("OPERATOR_LOGGING", "info").env("TS_NO_LOGS_NO_SUPPORT", "true");
        let daemon = Daemon::start(command, "operator", own)?;
        Ok(Self { daemon, _directory: directory })
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.daemon.id()
    }

    /// Seconds of processor time since its start.
    pub fn cpu(&self) -> Result<f64> {
        usage::process(self.id())
    }

    /// The most megabytes (10^6) that were resident at once: `VmHWM`.
    pub fn peak(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        usage::peak(&status).context("no VmHWM")
    }

    /// The end of what it has printed.
    pub fn tail(&self) -> String {
        let log = self.daemon.log();
        let from = log.char_indices().rev().nth(TAIL).map_or(0, |(index, _)| index);
        log.get(from..).unwrap_or_default().to_owned()
    }

    /// Stops it.
    pub fn stop(mut self) -> Result<()> {
        self.daemon.signal(Signal::SIGTERM)?;
        self.daemon.wait(STOP).map(drop)
    }
}
