//! The `settings` section.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::PortSpec;

/// Everything that is not a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct Settings {
    /// The devices of both sides. The user-space path needs none.
    pub interfaces: WireInterfaces,
    /// Addresses or prefixes that must not arrive as sources from the cluster side: what the tailnet really assigns,
    /// never the whole of 100.64.0.0/10 (others use that range too).
    pub protected_sources: Vec<String>,
    /// What becomes of packets from the tailnet side that match no rule and are not for this host.
    pub unmatched: WireUnmatched,
    /// What becomes of IP fragments.
    pub fragments: WireFragments,
    /// The pool of translated source ports.
    pub snat_ports: SnatPorts,
    /// Capacity of the flow table, in flows of each family: IPv4 and IPv6 have a table each.
    #[schemars(range(min = 1024, max = 16_777_216))]
    pub max_flows: u32,
    /// Which data path carries the traffic: `auto` (the best that works here), or a list in order of preference.
    pub data_path: DataPath,
    /// Whether XDP programs are attached besides those on TC. On a pod's veth XDP makes TCP slower; on a NIC with a
    /// native driver it makes forwarding faster.
    pub xdp: Xdp,
    /// Directory on a bpffs where maps and links are pinned, so that traffic survives a restart of the agent. Without
    /// it: `/sys/fs/bpf/sluice`, if that can be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub bpffs: Option<String>,
    /// Where `/metrics`, `/v1/status`, `/healthz` and `/readyz` are served.
    #[schemars(length(min = 1))]
    pub admin_address: String,
    /// How long a stopping process waits for its flows to end, in seconds.
    #[schemars(range(min = 0, max = 86_400))]
    pub drain_seconds: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interfaces: WireInterfaces::default(),
            protected_sources: Vec::new(),
            unmatched: WireUnmatched::default(),
            fragments: WireFragments::default(),
            snat_ports: SnatPorts::default(),
            max_flows: 262_144,
            data_path: DataPath::default(),
            xdp: Xdp::default(),
            bpffs: None,
            admin_address: "127.0.0.1:9002".to_owned(),
            drain_seconds: 30,
        }
    }
}

/// Devices by name; the first of each side is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct WireInterfaces {
    /// Devices of the tailnet side, such as `tailscale0`.
    pub tailnet: Vec<String>,
    /// Devices of the cluster side, such as `eth0`.
    pub cluster: Vec<String>,
}

/// What becomes of packets from the tailnet side that match no rule and are not for this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WireUnmatched {
    /// Dropped and counted: the tailnet reaches only what a rule names.
    #[default]
    Drop,
    /// Left to the kernel.
    Pass,
}

/// What becomes of IP fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WireFragments {
    /// Carried; later fragments take the ports of the first.
    #[default]
    Track,
    /// Dropped and counted.
    Drop,
}

/// The pool of translated source ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct SnatPorts {
    /// First and last port, `first-last`.
    #[schemars(length(min = 1))]
    pub range: String,
    /// Ports never used: numbers or ranges, such as `"30000-32767"` for node ports.
    pub reserved: Vec<PortSpec>,
    /// How many ports a new flow may try before it is refused.
    #[schemars(range(min = 1, max = 65535))]
    pub tries: u16,
}

impl Default for SnatPorts {
    fn default() -> Self {
        Self { range: "1024-65535".to_owned(), reserved: Vec::new(), tries: 64 }
    }
}

/// Which data path carries the traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DataPath {
    /// `auto`.
    Word(PathWord),
    /// In order of preference.
    List(Vec<PathKind>),
}

impl Default for DataPath {
    fn default() -> Self {
        Self::Word(PathWord::Auto)
    }
}

// By hand, because the derived schema of an untagged enum nests `anyOf` and `oneOf` with the same branches.
impl JsonSchema for DataPath {
    fn schema_name() -> Cow<'static, str> {
        "DataPath".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let kinds: Vec<_> = PathKind::ALL.iter().map(|kind| kind.label()).collect();
        json_schema!({
            "anyOf": [
                { "type": "string", "enum": ["auto"] },
                { "type": "array", "minItems": 1, "items": { "type": "string", "enum": kinds } },
            ]
        })
    }
}

/// A word in place of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathWord {
    /// Every path, best first.
    Auto,
}

/// A data path by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// eBPF programs.
    Ebpf,
    /// The kernel's nftables.
    Nftables,
    /// Sockets of the process.
    Userspace,
}

impl PathKind {
    /// Every kind, best first.
    pub const ALL: [Self; 3] = [Self::Ebpf, Self::Nftables, Self::Userspace];

    /// As written in the configuration.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Nftables => "nftables",
            Self::Userspace => "userspace",
        }
    }
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// Whether XDP programs are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Xdp {
    /// Never.
    #[default]
    Off,
    /// Where the driver is native and a probe packet gets through.
    Auto,
    /// In the driver, or the eBPF path is refused.
    Native,
    /// In the generic hook: for tests, slower than TC.
    Generic,
}
