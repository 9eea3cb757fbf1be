//! A real tailnet on this machine: upstream's `tailscaled`, a control server of ours, a relay, all in namespaces.
//!
//! ```text
//! internet (no way out)                     nodes, each with a namespace of its own
//! bridge 198.18.0.1, 2001:db8:18::1 --veth-- underlay 198.18.1.1, 2001:db8:18::1:1   tailscale0 100.64.0.1
//!   control, DERP, STUN, DNS, ACME  --veth-- underlay 198.18.1.2, 2001:db8:18::1:2   tailscale0 100.64.0.2
//! ```

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, Ipv6Addr},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU16, Ordering},
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::{DEADLINE, Daemon, Namespace};

mod acme;
mod admin;
mod api;
mod cluster;
mod node;
mod underlay;

pub use acme::Acme;
pub use admin::{
    AuthKey, Dns, KeyOptions, Login, Mask, NodeChange, NodeId, NodeInfo, Record, Settings,
};
pub use api::{Fault, Identity};
pub use cluster::{Cluster, HOSTS};
pub use node::{Node, NodeOptions};
pub use underlay::Underlay;

/// The MagicDNS domain. Upstream's check of names insists on `ts.net`.
pub const DOMAIN: &str = "tailnet.ts.net";

/// Where control server, relay and DNS are, on the underlay.
pub const INTERNET: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(198, 18, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, 1));

/// A tailnet with its control server. What is started in it must not outlive it.
#[derive(Debug)]
pub struct Tailnet {
    control: std::sync::Mutex<Daemon>,
    internet: Namespace,
    programs: PathBuf,
    directory: TempDir,
    attached: AtomicU16,
}

impl Tailnet {
    /// Starts the control server and what belongs to it.
    pub fn start() -> Result<Self> {
        let programs = proxy_testbed_programs::TAILNET.find()?;
        let directory = tempfile::Builder::new().prefix("tailnet-").tempdir()?;
        let internet = Namespace::new()?;
        let (v4, v6) = INTERNET;
        internet.ip([
            "link add bridge type bridge stp_state 0 forward_delay 0",
            &format!("address add {v4}/16 dev bridge"),
            &format!("address add {v6}/64 dev bridge nodad"),
            "link set bridge up",
        ])?;
        let mut command = internet.command(programs.join("control"));
        command.args(["-domain", DOMAIN]).args(["-v4", &v4.to_string(), "-v6", &v6.to_string()]);
        command.arg("-dir").arg(directory.path());
        command.arg("-admin").arg(directory.path().join("admin.sock"));
        let mut control = Daemon::start(command, "control", directory.path())?;
        let socket = directory.path().join("admin.sock");
        control.wait_for(DEADLINE, "the control server serves", || {
            UnixStream::connect(&socket).is_ok()
        })?;
        Ok(Self {
            control: std::sync::Mutex::new(control),
            internet,
            programs,
            directory,
            attached: AtomicU16::new(0),
        })
    }

    /// What nodes are given as `--login-server`.
    pub fn url(&self) -> String {
        format!("https://{}", INTERNET.0)
    }

    /// One of the programs that were built for the tailnet: `tailscaled`, `tailscale`, `containerboot`, `pebble`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// The certificates of the authorities behind the control server, the relay, the ACME server and what that issues, as PEM.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// The namespace of the control server.
    pub fn internet(&self) -> &Namespace {
        &self.internet
    }

    /// What the control server has printed.
    pub fn log(&self) -> String {
        self.control.lock().map(|control| control.log()).unwrap_or_default()
    }

    /// A place for a node without anything running in it.
    pub fn underlay(&self, name: &str) -> Result<Underlay> {
        let number = self.attached.fetch_add(1, Ordering::Relaxed) + 1;
        Underlay::attach(self, name, number)
    }

    /// A node: its namespace and a `tailscaled` that has not logged in.
    pub fn node(&self, name: &str) -> Result<Node> {
        Node::start(self, name, &NodeOptions::default())
    }

    /// The same, of another kind.
    pub fn node_with(&self, name: &str, options: &NodeOptions) -> Result<Node> {
        Node::start(self, name, options)
    }

    /// A node that has logged in with a key of its own.
    pub fn joined(&self, name: &str, arguments: &[&str]) -> Result<Node> {
        let node = self.node(name)?;
        node.up(&self.auth_key(&KeyOptions::default())?, arguments)?;
        Ok(node)
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("admin.sock")
    }
}

/// Writes a file and the directories above it.
fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    std::fs::create_dir_all(parent)
        .and_then(|()| std::fs::write(path, text))
        .with_context(|| format!("write {}", path.display()))
}

/// Runs a command to its end and returns what it printed.
fn finish(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_owned();
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("{} is not there", program.display()));
        }
        other => other.with_context(|| format!("start {}", program.display()))?,
    };
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    anyhow::ensure!(
        output.status.success(),
        // Without the environment, which may hold a key.
        "{} {:?} ended with {}: {printed}{}",
        program.display(),
        command.get_args().collect::<Vec<_>>(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(printed)
}
