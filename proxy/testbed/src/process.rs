//! The real proxy binary in a namespace.

use std::{
    fs::Permissions,
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{DEADLINE, Namespace, http, poll_until};

/// Where the proxy's HTTP interface listens unless the configuration says otherwise.
const ADMIN: ([u8; 4], u16) = ([127, 0, 0, 1], 9002);

/// A running proxy. Stopped when dropped.
#[derive(Debug)]
pub struct ProxyProcess<'a> {
    child: Child,
    namespace: &'a Namespace,
    log: PathBuf,
    directory: tempfile::TempDir,
}

impl<'a> ProxyProcess<'a> {
    /// Starts the binary in the namespace with this configuration and waits until it is ready.
    pub fn start(namespace: &'a Namespace, binary: &Path, config: &str) -> Result<Self> {
        let mut command = namespace.command(binary);
        Self::start_with(namespace, &mut command, config)
    }

    /// The same for a prepared command (environment, capabilities, mounts).
    pub fn start_with(
        namespace: &'a Namespace,
        command: &mut Command,
        config: &str,
    ) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        // The command may run it as another user.
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o777))?;
        let rules = directory.path().join("rules.yaml");
        let log = directory.path().join("log");
        std::fs::write(&rules, config)?;
        let output = std::fs::File::create(&log)?;
        let child = command
            .args(["run", "--config"])
            .arg(&rules)
            .arg("--socket")
            .arg(directory.path().join("socket"))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start {}", command.get_program().display()))?;
        let mut this = Self { child, namespace, log, directory };
        let ready = poll_until(DEADLINE * 2, "the proxy is ready", || {
            this.request("GET", "/readyz", "").is_ok() || this.ended()
        });
        if ready.is_err() || this.ended() {
            bail!("the proxy did not become ready:\n{}", this.log());
        }
        Ok(this)
    }

    fn ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)) | Err(_))
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Replaces its configuration file, as an editor would: by renaming.
    pub fn configure(&self, config: &str) -> Result<()> {
        let (new, rules) =
            (self.directory.path().join("new"), self.directory.path().join("rules.yaml"));
        std::fs::write(&new, config)?;
        Ok(std::fs::rename(new, rules)?)
    }

    /// Its status, `GET /v1/status`.
    pub fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.request("GET", "/v1/status", "")?)?)
    }

    /// A request to its HTTP interface; anything but a 2xx answer is an error.
    pub fn request(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let stream = self
            .namespace
            .enter(|| TcpStream::connect_timeout(&SocketAddr::from(ADMIN), DEADLINE))?;
        // Switching paths under load may take a while.
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        http::request(stream, "proxy", method, path, body)
    }

    /// Asks it to end (SIGTERM): it drains first.
    pub fn terminate(&self) -> Result<()> {
        let id = nix::unistd::Pid::from_raw(self.child.id() as i32);
        Ok(nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM)?)
    }

    /// Waits for its end; tells how it ended and what it has logged.
    pub fn wait(mut self) -> Result<(ExitStatus, String)> {
        poll_until(DEADLINE * 4, "the proxy ends", || self.ended())?;
        Ok((self.child.wait()?, self.log()))
    }

    /// Kills it as the kernel would: nothing is cleaned up.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for ProxyProcess<'_> {
    fn drop(&mut self) {
        let id = nix::unistd::Pid::from_raw(self.child.id() as i32);
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM);
            let ended = poll_until(DEADLINE, "the proxy ends", || {
                matches!(self.child.try_wait(), Ok(Some(_)))
            });
            if ended.is_err() {
                let _ = self.child.kill();
            }
            let _ = self.child.wait();
        }
    }
}
