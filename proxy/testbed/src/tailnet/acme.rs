//! An ACME server for certificates of nodes and Services: Pebble.

use std::{fs::File, io::Write as _, process::Command};

use anyhow::Result;
use serde_json::json;

use super::{INTERNET, Tailnet, write};
use crate::{DEADLINE, Daemon};

const PORT: u16 = 14000;
const MANAGEMENT_PORT: u16 = 15000;

/// Where nodes find it.
pub(super) fn directory() -> String {
    format!("https://{}:{PORT}/dir", INTERNET.0)
}

/// A running ACME server. It checks challenges by asking the control server's DNS.
#[derive(Debug)]
pub struct Acme {
    _server: Daemon,
    root: String,
}

impl Acme {
    /// The certificate that all it issues leads to, as PEM.
    pub fn root(&self) -> &str {
        &self.root
    }
}

impl Tailnet {
    /// Starts an ACME server; every node is told of it. Those that are started from now on trust what it issues: tailscaled
    /// takes a certificate for expired that it does not trust, and asks for another one with each connection.
    pub fn start_acme(&self) -> Result<Acme> {
        let own = self.directory.path();
        let address = INTERNET.0;
        let config = json!({ "pebble": {
            "listenAddress": format!("{address}:{PORT}"),
            "managementListenAddress": format!("{address}:{MANAGEMENT_PORT}"),
            "certificate": own.join("cert.pem"),
            "privateKey": own.join("key.pem"),
            "httpPort": 5002,
            "tlsPort": 5001,
        }});
        let file = own.join("pebble.json");
        write(&file, config.to_string())?;
        let mut command: Command = self.internet.command(self.program("pebble"));
        command.arg("-config").arg(file).arg("-dnsserver").arg(format!("{address}:53"));
        // Otherwise it waits before it checks, refuses some requests at random, and takes half of the names for proven that
        // were proven before, which tailscaled does not expect.
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "0");
        command.env("PEBBLE_AUTHZREUSE", "0");
        let mut server = Daemon::start(command, "pebble", own)?;
        let mut root = String::new();
        server.wait_for(DEADLINE, "the ACME server serves", || {
            root = self.acme_root(MANAGEMENT_PORT).unwrap_or_default();
            !root.is_empty()
        })?;
        let mut trusted = File::options().append(true).open(self.authority())?;
        trusted.write_all(root.as_bytes())?;
        Ok(Acme { _server: server, root })
    }
}
