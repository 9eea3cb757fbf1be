//! A pod that runs `sluice-proxy pod` between the test tailnet and a cluster.
//!
//! ```text
//! peer (tailscaled) ===tailnet=== pod: tailscale0 | eth0 192.0.2.1, 2001:db8:2::1 --veth-- cluster 192.0.2.10-13
//! ```

use std::{
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};
use proxy_testbed::{
    Daemon, Namespace, poll_until,
    tailnet::{KeyOptions, Tailnet, Underlay},
    topology::{HOSTS, PROXY_CLUSTER},
    traffic::{
        icmp::Pinger,
        tcp::{Client, TcpServer},
        udp::{Answer, UdpClient, UdpServer},
    },
};
use serde_json::Value;

/// How long a pod may take from its start to readiness.
pub(crate) const START: Duration = Duration::from_secs(20);
/// How long a change may take until it is in force.
pub(crate) const CHANGE: Duration = Duration::from_secs(1);

/// Who may do nothing.
const NOBODY: &str = "65534";

/// The data paths, as `--data-path` has them.
pub(crate) const KERNEL_PATHS: [&str; 2] = ["ebpf", "nftables"];

/// A place for a pod with its cluster.
pub(crate) struct Place {
    pub(crate) underlay: Underlay,
    pub(crate) cluster: Namespace,
    directory: PathBuf,
    /// Runs without any capability.
    is_nobody: bool,
}

/// A running pod.
pub(crate) struct Pod {
    pub(crate) place: Place,
    pub(crate) daemon: Daemon,
}

impl Place {
    pub(crate) fn new(tailnet: &Tailnet, name: &str) -> Result<Self> {
        let mut underlay = tailnet.underlay(name)?;
        let cluster = Namespace::new()?;
        underlay.namespace.link("eth0", &cluster, "eth0", 1500)?;
        let [v4, v6] = PROXY_CLUSTER;
        underlay.namespace.ip([
            format!("address add {v4}/24 dev eth0").as_str(),
            &format!("address add {v6}/64 dev eth0 nodad"),
        ])?;
        for [v4, v6] in HOSTS {
            cluster.ip([
                format!("address add {v4}/24 dev eth0").as_str(),
                &format!("address add {v6}/64 dev eth0 nodad"),
            ])?;
        }
        let directory = underlay.path().to_owned();
        underlay.private("/run")?;
        let state = directory.join("state");
        std::fs::create_dir_all(&state)?;
        let key = tailnet.auth_key(&KeyOptions { reusable: true, ..KeyOptions::default() })?;
        let environment = [
            ("TS_USERSPACE", "false".to_owned()),
            ("TS_AUTHKEY", key.secret().to_owned()),
            ("TS_HOSTNAME", name.to_owned()),
            ("TS_EXTRA_ARGS", format!("--login-server={}", tailnet.url())),
            ("TS_STATE_DIR", state.display().to_string()),
            ("TS_SOCKET", directory.join("tailscaled.sock").display().to_string()),
            ("POD_IPS", PROXY_CLUSTER.join(",")),
            ("SLUICE_SOCKET", directory.join("proxy.sock").display().to_string()),
        ];
        for (name, value) in environment {
            underlay.set(name, value);
        }
        Ok(Self { underlay, cluster, directory, is_nobody: false })
    }

    /// A pod whose tailscaled is configured by a file, as the operator's proxies are.
    pub(crate) fn with_config(tailnet: &Tailnet, name: &str, more: &Value) -> Result<Self> {
        let place = Self::new(tailnet, name)?;
        let key = tailnet.auth_key(&KeyOptions::default())?;
        let mut config = serde_json::json!({
            "Version": "alpha0", "Locked": false, "ServerURL": tailnet.url(), "AuthKey": key.secret(),
            "Hostname": name, "acceptDNS": false, "acceptRoutes": false,
        });
        if let (Some(config), Some(more)) = (config.as_object_mut(), more.as_object()) {
            config.extend(more.clone());
        }
        let path = place.write("config/cap-106.hujson", &config.to_string())?;
        let directory = path.parent().context("directory")?.display().to_string();
        let empty = ["TS_AUTHKEY", "TS_HOSTNAME", "TS_EXTRA_ARGS"];
        let place = empty.iter().fold(place, |place, name| place.with(name, ""));
        Ok(place.with("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", &directory))
    }

    /// Adds to the pod's environment.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.underlay.set(name, value);
        self
    }

    /// Has the pod run as nobody, without any capability. What it reads is copied to where that user
    /// can reach it.
    pub(crate) fn run_by_nobody(mut self, tailnet: &Tailnet) -> Result<Self> {
        self.is_nobody = true;
        for (file, variable) in [
            (tailnet.program("tailscaled"), "SLUICE_TAILSCALED"),
            (tailnet.program("tailscale"), "SLUICE_TAILSCALE"),
            (tailnet.authority(), "SSL_CERT_FILE"),
        ] {
            let copy = self.directory.join(file.file_name().context("a file")?);
            std::fs::copy(&file, &copy)?;
            self.underlay.set(variable, copy.display().to_string());
        }
        Ok(self)
    }

    /// Writes a file of the pod's, as the kubelet does: by renaming. Returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let (path, new) = (self.directory.join(name), self.directory.join("new"));
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&new, text)?;
        std::fs::rename(&new, &path)?;
        Ok(path)
    }

    /// The serve configuration in tailscaled's state, which nobody need run for.
    pub(crate) fn stored_serve_config(&self) -> Result<Value> {
        let state = std::fs::read(self.directory.join("state/tailscaled.state"))?;
        let state: Value = serde_json::from_slice(&state)?;
        let mut stored = state.as_object().context("an object")?.iter();
        let (_, coded) = stored.find(|(key, _)| key.starts_with("_serve/")).context("_serve/")?;
        let file = self.directory.join("serve.base64");
        std::fs::write(&file, coded.as_str().context("text")?)?;
        let plain = Command::new("base64").arg("-d").arg(file).output()?.stdout;
        Ok(serde_json::from_slice(&plain)?)
    }

    /// Starts the pod and waits until it is ready.
    pub(crate) fn start(self, data_path: &str) -> Result<Pod> {
        let mut pod = self.launch(data_path)?;
        pod.wait_ready()?;
        Ok(pod)
    }

    /// Starts the pod.
    pub(crate) fn launch(self, data_path: &str) -> Result<Pod> {
        let daemon = self.daemon(data_path)?;
        Ok(Pod { place: self, daemon })
    }

    fn daemon(&self, data_path: &str) -> Result<Daemon> {
        let mut command = if self.is_nobody {
            own(&self.directory)?;
            let mut command = self.underlay.command("setpriv")?;
            command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
            command.args(["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"]);
            command.args(["--no-new-privs", env!("CARGO_BIN_EXE_sluice-proxy")]);
            command
        } else {
            self.underlay.command(env!("CARGO_BIN_EXE_sluice-proxy"))?
        };
        command.args(["pod", "--data-path", data_path, "--drain-seconds", "2"]);
        self.underlay.start(command, "sluice-proxy")
    }
}

impl Pod {
    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        let (place, daemon) = (&self.place, &mut self.daemon);
        daemon.wait_for(START, "the pod is ready", || is_ready(place))
    }

    /// Its `/v1/status`, by the program that users have.
    pub(crate) fn status(&self) -> Result<Value> {
        status(&self.place)
    }

    /// Waits until the status is as wanted.
    pub(crate) fn wait(
        &self,
        within: Duration,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let mut last = Value::Null;
        let seen = poll_until(within, what, || {
            last = self.status().unwrap_or_default();
            is_so(&last)
        });
        seen.with_context(|| format!("{}\n{}", last["targets"], self.daemon.log()))
    }

    /// A node's address of a family, from the status.
    pub(crate) fn address(&self, v4: bool) -> Result<std::net::IpAddr> {
        let status = self.status()?;
        let addresses = status["tailnet"]["addresses"].as_array().context("addresses")?;
        let mut parsed = addresses.iter().filter_map(|text| text.as_str()?.parse().ok());
        parsed.find(|address: &std::net::IpAddr| address.is_ipv4() == v4).context("no such address")
    }

    /// Changes preferences of its tailscaled, as tailscaled itself or a person may.
    pub(crate) fn edit_prefs(&self, change: &str) -> Result<()> {
        self.local_api("PATCH", "/localapi/v0/prefs", change).map(drop)
    }

    /// Asks its tailscaled.
    pub(crate) fn local_api(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let socket = self.place.directory.join("tailscaled.sock");
        let stream = UnixStream::connect(socket)?;
        let host = "local-tailscaled.sock";
        proxy_testbed::http::request(stream, host, method, path, body)
    }

    /// Starts the process again after it was killed.
    pub(crate) fn restart(&mut self, data_path: &str) -> Result<()> {
        self.daemon = self.place.daemon(data_path)?;
        self.wait_ready()
    }
}

fn status(place: &Place) -> Result<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_sluice-proxy"))
        .args(["status", "--json", "--socket"])
        .arg(place.directory.join("proxy.sock"))
        .output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn is_ready(place: &Place) -> bool {
    status(place).is_ok_and(|status| status["ready"] == true)
}

/// Servers for TCP and UDP.
pub(crate) struct Servers {
    _tcp: TcpServer,
    _udp: UdpServer,
}

impl Servers {
    pub(crate) fn new(namespace: &Namespace, address: &str, port: u16) -> Result<Self> {
        let address = SocketAddr::new(address.parse()?, port).to_string();
        Ok(Self {
            _tcp: TcpServer::new(namespace, &address)?,
            _udp: UdpServer::new(namespace, &address, Answer::Echo)?,
        })
    }
}

/// What came back of some TCP, UDP and ICMP.
pub(crate) fn exchange(from: &Namespace, to: SocketAddr) -> Result<()> {
    let mut client = Client::connect(from, to).with_context(|| format!("TCP to {to}"))?;
    client.echo(300_000).with_context(|| format!("TCP to {to}"))?;
    client.close()?;
    let echoed = UdpClient::new(from, to)?.echo(20, 400).with_context(|| format!("UDP to {to}"))?;
    anyhow::ensure!(echoed == 20, "{echoed} of 20 datagrams came back from {to}");
    let answered = Pinger::new(from, to.ip())?.pings(5, 100, Duration::from_secs(2))?;
    anyhow::ensure!(answered == 5, "{answered} of 5 pings to {} were answered", to.ip());
    Ok(())
}

/// Sums of a rule's counters of a protocol, or of `any`: packets of each direction, and flows.
pub(crate) fn counted(pod: &Pod, rule: &str, protocol: &str) -> Result<(u64, u64, u64)> {
    let status = pod.status()?;
    let ports = status["ports"].as_array().context("ports")?;
    let is_ours =
        |port: &&Value| port["rule"] == rule && (protocol == "any" || port["protocol"] == protocol);
    Ok(ports.iter().filter(is_ours).fold((0, 0, 0), |(original, reply, flows), port| {
        let number = |name: &str| port[name].as_u64().unwrap_or(0);
        let packets = (original + number("original_packets"), reply + number("reply_packets"));
        (packets.0, packets.1, flows + number("flows"))
    }))
}

/// Bytes of both directions that a rule has carried.
pub(crate) fn bytes(pod: &Pod, rule: &str) -> Result<(u64, u64)> {
    let status = pod.status()?;
    let ports = status["ports"].as_array().context("ports")?;
    let number = |port: &Value, name: &str| port[name].as_u64().unwrap_or(0);
    let ours = ports.iter().filter(|port| port["rule"] == rule);
    Ok(ours.fold((0, 0), |(original, reply), port| {
        (original + number(port, "original_bytes"), reply + number(port, "reply_bytes"))
    }))
}

/// Gives a directory and what is in it to nobody.
fn own(path: &Path) -> Result<()> {
    std::os::unix::fs::lchown(path, Some(65534), Some(65534))?;
    if path.is_dir() && !path.is_symlink() {
        for entry in std::fs::read_dir(path)? {
            own(&entry?.path())?;
        }
    }
    Ok(())
}

/// Whether a target of the status is in force with exactly these addresses.
pub(crate) fn leads_to(status: &Value, rule: &str, addresses: &[std::net::IpAddr]) -> bool {
    let targets = status["targets"].as_array().into_iter().flatten();
    targets.filter(|target| target["rule"] == rule).any(|target| {
        let told = target["addresses"].as_array().into_iter().flatten();
        let mut told: Vec<std::net::IpAddr> =
            told.filter_map(|text| text.as_str()?.parse().ok()).collect();
        let mut wanted = addresses.to_vec();
        told.sort_unstable();
        wanted.sort_unstable();
        target["installed"] == !wanted.is_empty() && told == wanted
    })
}

/// Servers on a port of each address of a node.
pub(crate) fn serve_all(
    namespace: &Namespace,
    addresses: &[std::net::IpAddr],
    port: u16,
) -> Result<Vec<Servers>> {
    addresses.iter().map(|address| Servers::new(namespace, &address.to_string(), port)).collect()
}
