//! The settings of a proxy pod, from the environment variables that upstream's container entry point understands. What is
//! wrong is said all at once. Nothing is read but the variables.
//!
//! User-space networking may be combined with forwarding targets, which upstream refuses: traffic is then carried by
//! `tailscaled`'s own forwarding and its SOCKS5 server.

mod arguments;
mod config_file;
mod environment;
mod error;
mod go;
mod read;
#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use proxy_rules::config::PortMap;
use secrecy::SecretString;

pub use self::{
    arguments::Arguments,
    config_file::{ConfigFile, ConfigFileError, capability},
    error::{Problem, SettingsError, SettingsErrors},
};

/// Finds a variable's value.
pub type Lookup<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// Everything that the environment says.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the node logs in with.
    pub auth: Auth,
    /// Log in only when `tailscaled` asks for it, not at each start (`TS_AUTH_ONCE`).
    pub auth_once: bool,
    /// The node's name (`TS_HOSTNAME`).
    pub hostname: Option<String>,
    /// Subnets to advertise (`TS_ROUTES`); empty withdraws those of before, `None` leaves them.
    pub routes: Option<Vec<IpNet>>,
    /// Whether the tailnet's DNS settings are taken over (`TS_ACCEPT_DNS`, `--accept-dns` in `TS_EXTRA_ARGS`).
    pub accept_dns: bool,
    /// More arguments of `tailscale up` (`TS_EXTRA_ARGS`), without `--accept-dns`.
    pub extra_args: Arguments,
    /// The serve configuration (`TS_SERVE_CONFIG`).
    pub serve_config: Option<PathBuf>,
    /// What traffic is forwarded where.
    pub targets: Targets,
    /// Which ports of it, where there is no TUN device.
    pub ports: Ports,
    /// How `tailscaled` is run.
    pub tailscaled: Daemon,
    /// The pod.
    pub pod: Pod,
    /// What is served over HTTP.
    pub http: Http,
    /// How long the start may take (`TS_BOOT_TIMEOUT`).
    pub boot_timeout: Duration,
    /// Advertise the Services of the serve configuration (`TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT`).
    pub auto_advertise: bool,
    /// The cluster, inside one.
    pub kube: Option<Kube>,
    /// Where `dev/net/tun` and `var/run` are looked for: `/`, but in tests.
    pub root: PathBuf,
    /// What is odd but does not prevent a start.
    pub warnings: Vec<SettingsError>,
}

/// What the node logs in with. No secret is in its `Debug` output.
#[derive(Clone, Debug)]
pub enum Auth {
    /// Nothing: the state, the config file, the state Secret's key, or a person.
    None,
    /// An auth key, or `file:` and the path of one (`TS_AUTHKEY`, `TS_AUTH_KEY`).
    Key(SecretString),
    /// An OAuth client or a workload identity.
    Client(Client),
}

/// An OAuth client or a workload identity.
#[derive(Clone, Debug)]
pub struct Client {
    /// `TS_CLIENT_ID`.
    pub id: Option<String>,
    /// `TS_CLIENT_SECRET`, or `file:` and the path of one.
    pub secret: Option<SecretString>,
    /// `TS_ID_TOKEN`, or `file:` and the path of one.
    pub id_token: Option<SecretString>,
    /// `TS_AUDIENCE`.
    pub audience: Option<String>,
}

/// What traffic is forwarded where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// From the tailnet to the cluster.
    pub ingress: Option<Destination>,
    /// From the cluster to the tailnet.
    pub egress: Option<Egress>,
    /// Cluster traffic to the pod's address goes to the node's own tailnet address.
    pub cluster_via_ingress: bool,
    /// A directory with `egress-services` and `hep-pings` (`TS_EGRESS_PROXIES_CONFIG_PATH`).
    pub egress_config_dir: Option<PathBuf>,
    /// An `ingress-config.json` (`TS_INGRESS_PROXIES_CONFIG_PATH`).
    pub ingress_config_file: Option<PathBuf>,
}

/// Ports of targets that are forwarded whole where there is a TUN device, for where there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// From the tailnet (`SLUICE_INGRESS_PORTS`, such as `tcp:80,tcp:8000-8010`).
    pub ingress: Vec<PortMap>,
    /// From the cluster (`SLUICE_EGRESS_PORTS`).
    pub egress: Vec<PortMap>,
}

/// Where traffic from the tailnet goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// `TS_DEST_IP`.
    Ip(IpAddr),
    /// `TS_EXPERIMENTAL_DEST_DNS_NAME`, as written.
    DnsName(String),
}

/// Where traffic from the cluster goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Egress {
    /// `TS_TAILNET_TARGET_IP`.
    Ip(IpAddr),
    /// `TS_TAILNET_TARGET_FQDN` in lower case with a dot at the end, as the netmap has names.
    Fqdn(String),
}

/// How `tailscaled` is run.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// `TS_TAILSCALED_EXTRA_ARGS`.
    pub extra_args: Arguments,
    /// No TUN device (`TS_USERSPACE`, on unless it is switched off).
    pub user_space: bool,
    /// Where its state is.
    pub state: StateStore,
    /// Its LocalAPI socket (`TS_SOCKET`).
    pub socket: PathBuf,
    /// Where its SOCKS5 server listens (`TS_SOCKS5_SERVER`), as `[address]:port`.
    pub socks5: Option<String>,
    /// Where its HTTP proxy listens (`TS_OUTBOUND_HTTP_PROXY_LISTEN`), as `[address]:port`.
    pub http_proxy: Option<String>,
    /// Where its debug server listens (`TS_DEBUG_ADDR_PORT`).
    pub debug: Option<SocketAddr>,
    /// A directory of `cap-N.hujson` files (`TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR`); [`ConfigFile::choose`] picks one.
    pub config_dir: Option<PathBuf>,
    /// Certificates are shared among replicas (`TS_EXPERIMENTAL_CERT_SHARE`).
    pub cert_share: Option<CertShare>,
    /// Ask for UDP GRO forwarding (`TS_EXPERIMENTAL_ENABLE_FORWARDING_OPTIMIZATIONS`).
    pub udp_gro_forwarding: bool,
}

/// Where `tailscaled` keeps its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateStore {
    /// In a Secret of the pod's namespace; files that are no state go to the directory.
    KubeSecret {
        /// The Secret.
        name: String,
        /// The directory.
        dir: PathBuf,
    },
    /// In a directory.
    Dir(PathBuf),
    /// Nowhere: the node is ephemeral.
    Memory,
}

/// What a replica does about shared certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertShare {
    /// Issues and renews: the first replica, by its pod's name.
    ReadWrite,
    /// Uses what another issued.
    ReadOnly,
}

/// The pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// `POD_NAME`.
    pub name: Option<String>,
    /// `POD_UID`.
    pub uid: Option<String>,
    /// One address of each family at most (`POD_IPS`, else `POD_IP`), the first is the pod's main one.
    pub ips: Vec<IpAddr>,
}

/// What is served over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// Where (`TS_LOCAL_ADDR_PORT`).
    pub local: SocketAddr,
    /// `/metrics` (`TS_ENABLE_METRICS`).
    pub metrics: bool,
    /// `/healthz` (`TS_ENABLE_HEALTH_CHECK`).
    pub health: bool,
    /// A listener of its own for `/healthz` (`TS_HEALTHCHECK_ADDR_PORT`), deprecated upstream.
    pub health_listener: Option<SocketAddr>,
}

/// The cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kube {
    /// The state Secret, in the pod's namespace (`TS_KUBE_SECRET`, `tailscale` unless it is set, none if it is empty).
    pub secret: Option<String>,
    /// Take the API server's address from the environment, not from the cluster's DNS.
    pub api_server_from_env: bool,
}

impl Settings {
    /// From the environment. `root` is `/`, but in tests.
    pub fn from_env(lookup: &Lookup<'_>, root: &Path) -> Result<Self, SettingsErrors> {
        read::settings(lookup, root)
    }
}

impl Targets {
    /// Whether packets are forwarded: whether this proxy is more than a node that serves.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

impl CertShare {
    /// As `tailscaled` wants it in `TS_CERT_SHARE_MODE`.
    pub fn label(self) -> &'static str {
        match self {
            Self::ReadWrite => "rw",
            Self::ReadOnly => "ro",
        }
    }
}

impl Pod {
    /// Its address of IPv4.
    pub fn ipv4(&self) -> Option<IpAddr> {
        self.ips.iter().copied().find(IpAddr::is_ipv4)
    }

    /// Its address of IPv6.
    pub fn ipv6(&self) -> Option<IpAddr> {
        self.ips.iter().copied().find(IpAddr::is_ipv6)
    }
}
