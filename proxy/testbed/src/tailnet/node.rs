//! A node of the tailnet: the real `tailscaled` in a namespace.

use std::{net::IpAddr, os::unix::net::UnixStream, path::PathBuf, sync::Mutex, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;

use super::{AuthKey, Tailnet, Underlay, finish, write};
use crate::{DEADLINE, Daemon, http, poll_until};

/// Logging in takes a handshake with the control server, the map and a device; on a busy machine that is a while.
const LOGIN: Duration = Duration::from_secs(20);

/// How a node's tailscaled is started.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// Without a TUN device: tailscaled's own network stack.
    pub userspace: bool,
    /// Further arguments of tailscaled, as `--socks5-server=localhost:1055`.
    pub arguments: Vec<String>,
    /// Further environment.
    pub environment: Vec<(String, String)>,
}

/// A node. Its tailscaled is killed when dropped.
#[derive(Debug)]
pub struct Node {
    // Ends first: its files are in the underlay's directory.
    daemon: Mutex<Option<Daemon>>,
    /// Where it is.
    pub underlay: Underlay,
    options: NodeOptions,
    url: String,
    programs: PathBuf,
}

impl Node {
    pub(super) fn start(tailnet: &Tailnet, name: &str, options: &NodeOptions) -> Result<Self> {
        let mut underlay = tailnet.underlay(name)?;
        for (name, value) in &options.environment {
            underlay.set(name, value);
        }
        let node = Self {
            daemon: Mutex::new(None),
            underlay,
            options: options.clone(),
            url: tailnet.url(),
            programs: tailnet.programs.clone(),
        };
        node.launch()?;
        Ok(node)
    }

    /// Starts tailscaled again, on the state that it has left.
    pub fn launch(&self) -> Result<()> {
        let directory = self.underlay.path();
        let mut command = self.underlay.command(self.programs.join("tailscaled"))?;
        command.arg("--no-logs-no-support").arg("--port=41641");
        command.arg(format!("--statedir={}", directory.join("state").display()));
        command.arg(format!("--state={}", directory.join("state/tailscaled.state").display()));
        command.arg(format!("--socket={}", self.socket().display()));
        let tun = if self.options.userspace { "userspace-networking" } else { "tailscale0" };
        command.arg(format!("--tun={tun}")).args(&self.options.arguments);
        // A socket that is left over would look like a daemon that listens.
        let _ = std::fs::remove_file(self.socket());
        let mut daemon = self.underlay.start(command, "tailscaled")?;
        daemon.wait_for(LOGIN, "tailscaled answers", || self.status().is_ok())?;
        *self.daemon()? = Some(daemon);
        Ok(())
    }

    /// tailscaled's LocalAPI.
    pub fn socket(&self) -> PathBuf {
        self.underlay.path().join("tailscaled.sock")
    }

    /// Logs in with the key, under the node's name, and waits until it runs. Arguments are those of `tailscale up`.
    pub fn up(&self, key: &AuthKey, arguments: &[&str]) -> Result<()> {
        let file = self.underlay.path().join("auth-key");
        write(&file, key.secret())?;
        let given = format!("--auth-key=file:{}", file.display());
        let (server, name) =
            (format!("--login-server={}", self.url), format!("--hostname={}", self.underlay.name));
        let mut all = vec!["up", "--timeout=20s", &server, &name, &given];
        all.extend(arguments);
        self.cli(&all).map(drop).map_err(|error| self.explain(error))
    }

    /// Runs `tailscale` on it and returns what that printed.
    pub fn cli(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.underlay.command(self.programs.join("tailscale"))?;
        finish(command.arg(format!("--socket={}", self.socket().display())).args(arguments))
    }

    /// A LocalAPI request, as `GET /localapi/v0/prefs`.
    pub fn local_api(&self, method: &str, path: &str, body: &str) -> Result<String> {
        self.local_api_within(DEADLINE, method, path, body)
    }

    fn local_api_within(
        &self,
        patience: Duration,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<String> {
        let stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(patience))?;
        http::request(stream, "local-tailscaled.sock", method, path, body)
    }

    /// Its status, as `tailscale status --json` prints it.
    pub fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.local_api("GET", "/localapi/v0/status", "")?)?)
    }

    /// Its tailnet addresses, IPv4 first.
    pub fn addresses(&self) -> Result<[IpAddr; 2]> {
        let status = self.status()?;
        let addresses = status.pointer("/Self/TailscaleIPs").unwrap_or(&Value::Null);
        serde_json::from_value(addresses.clone())
            .with_context(|| format!("{} has no two addresses: {addresses}", self.underlay.name))
    }

    /// Waits until its status is so.
    pub fn wait_status(&self, what: &str, mut done: impl FnMut(&Value) -> bool) -> Result<()> {
        let mut last = Value::Null;
        let waited = poll_until(LOGIN, what, || {
            last = self.status().unwrap_or_default();
            done(&last)
        });
        waited.map_err(|error| self.explain(error.context(format!("last status: {last:#}"))))
    }

    /// Waits until it knows a peer of that name (the first label) with an address that it can be reached at; returns
    /// the peer's addresses.
    pub fn wait_peer(&self, name: &str) -> Result<Vec<IpAddr>> {
        let mut addresses = Vec::new();
        self.wait_status(&format!("{} sees {name}", self.underlay.name), |status| {
            // Without its relay, a first handshake would be sent nowhere, and the next one comes five seconds later.
            let found = peer(status, name)
                .filter(|peer| peer.get("Relay").is_some_and(|relay| relay != ""))
                .and_then(|peer| serde_json::from_value(peer.get("TailscaleIPs")?.clone()).ok());
            addresses = found.unwrap_or_default();
            !addresses.is_empty()
        })?;
        Ok(addresses)
    }

    /// Waits until it knows no such peer.
    pub fn wait_no_peer(&self, name: &str) -> Result<()> {
        self.wait_status(&format!("{} no longer sees {name}", self.underlay.name), |status| {
            !status.is_null() && peer(status, name).is_none()
        })
    }

    /// Waits until it knows the peer and has a tunnel to it; returns the peer's addresses.
    pub fn meet(&self, name: &str) -> Result<Vec<IpAddr>> {
        let addresses = self.wait_peer(name)?;
        self.ping(*addresses.first().context("a peer without addresses")?)?;
        Ok(addresses)
    }

    /// Waits until there is a tunnel to the peer of that address. A connection that is begun before may take the five
    /// seconds after which WireGuard repeats a handshake: a node is announced before its relay knows it.
    pub fn ping(&self, address: IpAddr) -> Result<()> {
        let address = address.to_string();
        // First whether there is a path at all, which is asked again as often as wanted; then the handshake.
        for kind in ["--until-direct=false", "--tsmp"] {
            let mut last = None;
            poll_until(LOGIN, &format!("{} reaches {address}", self.underlay.name), || {
                last = self.cli(&["ping", kind, "-c=1", "--timeout=1s", &address]).err();
                last.is_none()
            })
            .map_err(|error| self.explain(error.context(format!("{last:?}"))))?;
        }
        Ok(())
    }

    /// Whether a peer's tailscaled answers within that time, by whatever way. Makes no tunnel, so it may be asked as
    /// often as wanted from when the node is not known yet.
    pub fn finds(&self, address: IpAddr, patience: Duration) -> bool {
        let path = format!("/localapi/v0/ping?type=disco&ip={address}");
        let answer = self.local_api_within(patience, "POST", &path, "").unwrap_or_default();
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        answer.get("LatencySeconds").and_then(Value::as_f64).is_some_and(|seconds| seconds > 0.0)
    }

    /// Kills tailscaled as the kernel would; [`Self::launch`] starts it again.
    pub fn kill(&self) -> Result<()> {
        self.daemon()?.take().map_or(Ok(()), |mut daemon| daemon.kill())
    }

    /// What tailscaled has printed.
    pub fn log(&self) -> String {
        self.daemon().ok().and_then(|held| Some(held.as_ref()?.log())).unwrap_or_default()
    }

    /// tailscaled's process id.
    pub fn id(&self) -> Result<u32> {
        self.daemon()?.as_ref().map(Daemon::id).context("tailscaled does not run")
    }

    fn daemon(&self) -> Result<std::sync::MutexGuard<'_, Option<Daemon>>> {
        self.daemon.lock().map_err(|_| anyhow!("a thread panicked while it held the daemon"))
    }

    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        error.context(format!("log of tailscaled on {}:\n{}", self.underlay.name, self.log()))
    }
}

/// The peer of that name in a status.
fn peer<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    status.get("Peer")?.as_object()?.values().find(|peer| {
        let full = peer.get("DNSName").and_then(Value::as_str).unwrap_or_default();
        full.split('.').next() == Some(name)
    })
}
