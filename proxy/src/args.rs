//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use proxy_rules::{Side, config::PathKind};

use crate::{explain::Question, telemetry::Format};

/// Carries traffic between a tailnet and a cluster by a rules file, and counts it per port.
///
/// Exit codes: 0 success, 1 failure, 2 wrong usage, 3 invalid configuration.
#[derive(Debug, Parser)]
#[command(name = "sluice-proxy", version)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Carry traffic until told to stop. SIGHUP reads the file again; SIGTERM drains; a second one ends at once.
    Run(Run),
    /// Be the entry point of a pod on a tailnet: run tailscaled, forward by the TS_ variables of upstream's container until
    /// told to stop. SIGTERM drains; a second one ends at once.
    Pod(Pod),
    /// Check a rules file and name everything that is wrong with it.
    Check {
        /// The rules file; `-` is standard input.
        file: PathBuf,
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Show what a running proxy carries, how, and why not otherwise.
    Status {
        /// The running proxy.
        #[command(flatten)]
        peer: Peer,
        /// Print the document of /v1/status.
        #[arg(long)]
        json: bool,
    },
    /// Tell which rule a new flow meets, and why.
    Explain {
        /// tcp, udp or icmp.
        protocol: String,
        /// Source address or address:port.
        src: String,
        /// Destination address or address:port.
        dst: String,
        /// The side that the packet comes from.
        #[arg(long, default_value = "tailnet")]
        from: SideArg,
        /// Ask this rules file rather than a running proxy.
        #[arg(long)]
        config: Option<PathBuf>,
        /// The running proxy.
        #[command(flatten)]
        peer: Peer,
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Show packets and bytes per second by port.
    Top {
        /// The running proxy.
        #[command(flatten)]
        peer: Peer,
        /// Seconds between two readings.
        #[arg(long, default_value_t = 1.0)]
        interval: f64,
        /// Print one reading and end.
        #[arg(long)]
        once: bool,
        /// Print an object a line.
        #[arg(long)]
        json: bool,
    },
    /// Remove what an earlier run may have left in this network namespace.
    Cleanup {
        /// The rules file of that run: names the devices.
        #[arg(long, env = "SLUICE_CONFIG")]
        config: Option<PathBuf>,
        /// Where it pinned maps and links.
        #[arg(long, env = "SLUICE_BPFFS")]
        bpffs: Option<PathBuf>,
        /// Only tell what would be removed.
        #[arg(long)]
        dry_run: bool,
    },
    /// Print completions of a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the JSON Schema of the rules file.
    Schema,
}

/// Flags of `run`.
#[derive(Debug, ClapArgs)]
pub struct Run {
    /// The rules file, YAML or JSON; watched for changes.
    #[arg(long, env = "SLUICE_CONFIG")]
    pub config: PathBuf,
    /// Directory on a bpffs for pinned maps and links [default: the configuration's, or the first writable one].
    #[arg(long, env = "SLUICE_BPFFS")]
    pub bpffs: Option<PathBuf>,
    /// Where metrics, status and health are served [default: the configuration's settings.adminAddress].
    #[arg(long, env = "SLUICE_ADMIN")]
    pub admin: Option<SocketAddr>,
    /// Unix socket for `status`, `top` and commands.
    #[arg(long, env = "SLUICE_SOCKET", default_value_os_t = crate::client::default_socket())]
    pub socket: PathBuf,
    /// The data path, whatever the configuration says; `auto` leaves it to the configuration.
    #[arg(long, env = "SLUICE_DATA_PATH", default_value = "auto")]
    pub data_path: PathArg,
    /// Form of the log.
    #[arg(long, env = "SLUICE_LOG_FORMAT", default_value = "text")]
    pub log_format: Format,
    /// error, warn, info, debug, trace, or directives such as proxy=debug.
    #[arg(long, env = "SLUICE_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
}

/// Flags of `pod`.
#[derive(Debug, ClapArgs)]
pub struct Pod {
    /// The tailscaled program.
    #[arg(long, env = "SLUICE_TAILSCALED", default_value = "tailscaled")]
    pub tailscaled: PathBuf,
    /// The tailscale program.
    #[arg(long, env = "SLUICE_TAILSCALE", default_value = "tailscale")]
    pub tailscale: PathBuf,
    /// A rules file besides what the TS_ variables say, watched for changes. `tailnet`, `cluster` and `svc:NAME` may stand for
    /// frontends, names for backends.
    #[arg(long, env = "SLUICE_CONFIG")]
    pub config: Option<PathBuf>,
    /// A ConfigMap of the pod's namespace with such rules under `rules.yaml`, watched through the API server; `--config` is then
    /// its mounted copy, which stands in until the API server has answered.
    #[arg(long, env = "SLUICE_CONFIG_MAP")]
    pub config_map: Option<String>,
    /// Directory on a bpffs for pinned maps and links [default: the first writable one].
    #[arg(long, env = "SLUICE_BPFFS")]
    pub bpffs: Option<PathBuf>,
    /// Unix socket for `status`, `top` and commands.
    #[arg(long, env = "SLUICE_SOCKET", default_value_os_t = crate::client::default_socket())]
    pub socket: PathBuf,
    /// The data path; `auto` is the best that works.
    #[arg(long, env = "SLUICE_DATA_PATH", default_value = "auto")]
    pub data_path: PathArg,
    /// How long flows may go on after SIGTERM, in seconds.
    #[arg(long, env = "SLUICE_DRAIN_SECONDS", default_value_t = 20)]
    pub drain_seconds: u64,
    /// Form of the log.
    #[arg(long, env = "SLUICE_LOG_FORMAT", default_value = "text")]
    pub log_format: Format,
    /// error, warn, info, debug, trace, or directives such as proxy=debug.
    #[arg(long, env = "SLUICE_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
}

/// How to reach a running proxy.
#[derive(Debug, ClapArgs)]
pub struct Peer {
    /// Its Unix socket.
    #[arg(long, env = "SLUICE_SOCKET", default_value_os_t = crate::client::default_socket())]
    pub socket: PathBuf,
    /// Its address, instead of the socket.
    #[arg(long, env = "SLUICE_ADMIN")]
    pub admin: Option<SocketAddr>,
}

/// A data path on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PathArg {
    /// The configuration's.
    Auto,
    /// eBPF and no other.
    Ebpf,
    /// nftables and no other.
    Nftables,
    /// User space and no other.
    Userspace,
}

impl PathArg {
    /// The one path, unless it is the configuration's choice.
    pub const fn only(self) -> Option<PathKind> {
        match self {
            Self::Auto => None,
            Self::Ebpf => Some(PathKind::Ebpf),
            Self::Nftables => Some(PathKind::Nftables),
            Self::Userspace => Some(PathKind::Userspace),
        }
    }
}

/// A side on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SideArg {
    /// The tailnet.
    Tailnet,
    /// The cluster.
    Cluster,
}

impl From<SideArg> for Side {
    fn from(side: SideArg) -> Self {
        match side {
            SideArg::Tailnet => Self::Tailnet,
            SideArg::Cluster => Self::Cluster,
        }
    }
}

impl Question {
    /// From the command line.
    pub fn of(protocol: &str, src: &str, dst: &str, from: SideArg) -> Self {
        Self {
            protocol: protocol.to_owned(),
            src: src.to_owned(),
            dst: dst.to_owned(),
            from: from.into(),
        }
    }
}
