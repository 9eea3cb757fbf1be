//! A proxy pod: upstream's or ours, in a place of its own.

use std::{
    env,
    net::{IpAddr, SocketAddr},
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use proxy_testbed::{
    Daemon, Namespace,
    tailnet::{Cluster, Underlay},
};

use super::{
    field::Field,
    load::{self, PORT},
    series::Measure,
    way::{EntryPoint, Role},
};
use crate::usage;

/// Our program; `cargo xtask bench` builds it and says so here.
pub const PROGRAM: &str = "SLUICE_PROXY";
/// How long a pod may take until it carries.
const START: Duration = Duration::from_secs(30);
/// How long an answer is waited for before it is asked again: longer than a round trip and a handshake, much shorter than the
/// second after which TCP would ask again.
const ATTEMPT: Duration = Duration::from_millis(50);

/// A running pod.
pub struct Pod {
    // Ends before its place.
    daemon: Daemon,
    started: Instant,
    role: Role,
    name: String,
    /// Its address in the cluster.
    address: IpAddr,
    _place: Underlay,
}

/// Seconds of processor time since the start.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    pub tailscaled: f64,
    pub agent: f64,
}

impl Pod {
    /// Starts it as a node of that name.
    pub fn start(
        field: &Field,
        cluster: &Cluster,
        entry: EntryPoint,
        role: Role,
        name: &str,
    ) -> Result<Self> {
        let mut place = field.tailnet.underlay(name)?;
        let [v4, v6] = cluster.attach(&place.namespace)?;
        place.private("/run")?;
        let directory = place.path().to_owned();
        let own = |file: &str| directory.join(file).display().to_string();
        let target = match role {
            Role::Ingress => ("TS_DEST_IP", Field::destination().to_owned()),
            Role::Egress => ("TS_TAILNET_TARGET_IP", field.target.to_string()),
        };
        let environment = [
            target,
            ("TS_USERSPACE", "false".to_owned()),
            ("TS_AUTHKEY", field.key.secret().to_owned()),
            ("TS_HOSTNAME", name.to_owned()),
            ("TS_EXTRA_ARGS", format!("--login-server={}", field.tailnet.url())),
            ("TS_STATE_DIR", own("state")),
            ("TS_SOCKET", own("tailscaled.sock")),
            ("POD_IPS", format!("{v4},{v6}")),
        ];
        for (name, value) in environment {
            place.set(name, value);
        }
        let command = match entry {
            EntryPoint::Containerboot(mode) => containerboot(field, &mut place, mode)?,
            EntryPoint::Sluice(data_path) => {
                place.set("SLUICE_SOCKET", own("proxy.sock"));
                // As operators set it: tailscaled would try iptables first.
                place.set("TS_DEBUG_FIREWALL_MODE", "nftables");
                let program = env::var_os(PROGRAM)
                    .with_context(|| format!("{PROGRAM} names our program, sluice-proxy"))?;
                let mut command = place.pod_command(program)?;
                command.args(["pod", "--data-path", data_path]);
                command
            }
        };
        let started = Instant::now();
        let daemon = place.start_pod(command, "pod")?;
        Ok(Self { daemon, started, role, name: name.to_owned(), address: v4, _place: place })
    }

    /// Waits until a byte comes back through it; returns where clients connect to.
    pub fn carries(&mut self, field: &Field, cluster: &Cluster) -> Result<SocketAddr> {
        let (mut own, mut found) = (None, false);
        let client: &Namespace = match self.role {
            Role::Ingress => &field.peer.underlay.namespace,
            Role::Egress => &cluster.namespace,
        };
        let mut target = SocketAddr::from((self.address, PORT));
        self.daemon.wait_for(START, "a byte comes back through the pod", || {
            own = own.or_else(|| field.address(&self.name));
            let Some(own) = own else { return false };
            // Before they find each other, a handshake would be lost, and repeated after five seconds.
            found = found || field.peer.finds(own, ATTEMPT);
            if self.role == Role::Ingress {
                target.set_ip(own);
            }
            found && client.enter(|| load::once(target, ATTEMPT)).is_ok()
        })?;
        Ok(target)
    }

    /// How long ago it was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// What its processes have used so far.
    pub fn used(&self) -> Result<Used> {
        let (tailscaled, agent) = self.processes()?;
        let agent = agent.into_iter().map(usage::process).sum::<Result<f64>>()?;
        Ok(Used { tailscaled: usage::process(tailscaled)?, agent })
    }

    /// What its processes hold in memory, MB.
    pub fn resident(&self) -> Result<[(Measure, f64); 2]> {
        let (tailscaled, agent) = self.processes()?;
        Ok([
            (Measure::MemoryAgent, usage::memory(&agent)?),
            (Measure::MemoryTailscaled, usage::memory(&[tailscaled])?),
        ])
    }

    /// tailscaled, and all others: an entry point may be more than one process.
    fn processes(&self) -> Result<(u32, Vec<u32>)> {
        let all = self.daemon.processes();
        let (tailscaled, agent): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, program)| program == "tailscaled");
        let [(tailscaled, _)] = tailscaled.as_slice() else {
            bail!("{} tailscaleds run in {}:\n{}", tailscaled.len(), self.name, self.daemon.log())
        };
        Ok((*tailscaled, agent.into_iter().map(|(id, _)| id).collect()))
    }
}

/// Upstream's entry point. It turns on forwarding by itself.
fn containerboot(field: &Field, place: &mut Underlay, mode: &str) -> Result<Command> {
    place.set("TS_DEBUG_FIREWALL_MODE", mode);
    if mode == "iptables" {
        let tools = place.path().join("tools");
        std::fs::create_dir(&tools)?;
        for name in ["iptables", "ip6tables"] {
            symlink(format!("/usr/sbin/{name}-legacy"), tools.join(name))?;
        }
        let programs = field.tailnet.program("containerboot");
        let programs = programs.parent().unwrap_or(Path::new("/"));
        let path = format!("{}:{}:/usr/sbin:/sbin", tools.display(), programs.display());
        place.set("PATH", format!("{path}:{}", env::var("PATH").unwrap_or_default()));
    }
    place.pod_command(field.tailnet.program("containerboot"))
}
