//! The rungs: what lies between client and server.

use clap::ValueEnum;
use serde::Serialize;

/// A way to get from one side to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// From tailscaled to tailscaled, without any proxy: the reference.
    Direct,
    /// containerboot with its nftables rules.
    UpstreamNft,
    /// containerboot with its iptables rules, by iptables-legacy as in its image.
    UpstreamIptables,
    /// `sluice-proxy pod` on eBPF.
    SluiceEbpf,
    /// `sluice-proxy pod` on nftables.
    SluiceNft,
}

/// What a proxy pod is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// `TS_DEST_IP`: from the tailnet to an address of the cluster.
    Ingress,
    /// `TS_TAILNET_TARGET_IP`: from the cluster to an address of the tailnet.
    Egress,
}

/// The first process of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryPoint {
    /// containerboot, with this `TS_DEBUG_FIREWALL_MODE`.
    Containerboot(&'static str),
    /// `sluice-proxy pod`, with this `--data-path`.
    Sluice(&'static str),
}

impl Way {
    /// What people call it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::UpstreamNft => "containerboot, nftables",
            Self::UpstreamIptables => "containerboot, iptables",
            Self::SluiceEbpf => "Sluice eBPF",
            Self::SluiceNft => "Sluice nftables",
        }
    }

    /// Part of its nodes' names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::UpstreamNft => "upstream-nft",
            Self::UpstreamIptables => "upstream-ipt",
            Self::SluiceEbpf => "sluice-ebpf",
            Self::SluiceNft => "sluice-nft",
        }
    }

    /// Whether it is one of ours.
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::SluiceEbpf | Self::SluiceNft)
    }

    /// What its pod starts; `None`: it has no pod.
    pub const fn entry_point(self) -> Option<EntryPoint> {
        match self {
            Self::Direct => None,
            Self::UpstreamNft => Some(EntryPoint::Containerboot("nftables")),
            Self::UpstreamIptables => Some(EntryPoint::Containerboot("iptables")),
            Self::SluiceEbpf => Some(EntryPoint::Sluice("ebpf")),
            Self::SluiceNft => Some(EntryPoint::Sluice("nftables")),
        }
    }

    /// The roles it is measured in; `None`: it has none.
    pub const fn roles(self) -> &'static [Option<Role>] {
        match self {
            Self::Direct => &[None],
            _ => &[Some(Role::Ingress), Some(Role::Egress)],
        }
    }
}

impl Role {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}
