//! The ladder's rungs: ways to get a packet from the sender to the receiver, from the ceiling down.

use anyhow::Result;
use clap::ValueEnum;
use proxy::data_path::{nftables::NftPath, userspace::UserspacePath};
use proxy_rules::Protocol;
use serde::Serialize;

use crate::{
    generator::{self, Path},
    kernel::Kernel,
    ours::{self, Installed},
    rig::Lane,
    rival,
};

/// A way to forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Rung {
    /// Dropped at the router: what generator and receive path cost by themselves.
    XdpDrop,
    /// New Ethernet addresses, out of the other device.
    XdpRedirect,
    /// Sluice, XDP.
    SluiceXdp,
    /// Sluice, TC.
    SluiceTc,
    /// The kernel's forwarding without netfilter.
    Raw,
    /// Forwarding with connection tracking.
    Conntrack,
    /// An nftables map, by hand.
    NftMap,
    /// The layout of the proxy that Sluice replaces.
    NftUpstream,
    /// iptables-legacy.
    Iptables,
    /// Sluice's nftables path: with counters, protection and everything.
    SluiceNft,
    /// Sluice's user-space path; not on the ladder, which has packets only.
    SluiceUser,
    /// tailscaled's TCP in user space; likewise.
    Netstack,
}

impl Rung {
    /// The whole ladder.
    pub const ALL: [Self; 10] = [
        Self::XdpDrop,
        Self::XdpRedirect,
        Self::SluiceXdp,
        Self::SluiceTc,
        Self::Raw,
        Self::Conntrack,
        Self::NftMap,
        Self::NftUpstream,
        Self::Iptables,
        Self::SluiceNft,
    ];

    /// What people call it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::XdpDrop => "XDP_DROP (ceiling)",
            Self::XdpRedirect => "XDP redirect",
            Self::SluiceXdp => "Sluice XDP",
            Self::SluiceTc => "Sluice TC",
            Self::Raw => "raw forward",
            Self::Conntrack => "conntrack only",
            Self::NftMap => "nft map",
            Self::NftUpstream => "nft, upstream layout",
            Self::Iptables => "iptables-legacy",
            Self::SluiceNft => "Sluice nftables",
            Self::SluiceUser => "Sluice user space",
            Self::Netstack => "tailscaled's netstack",
        }
    }

    /// Whether it is one of ours.
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::SluiceXdp | Self::SluiceTc | Self::SluiceNft | Self::SluiceUser)
    }

    /// Where its packets are sent to.
    pub const fn path(self) -> Path {
        match self {
            Self::XdpDrop | Self::XdpRedirect => Path::Bridged,
            Self::Raw | Self::Conntrack => Path::Routed,
            _ => Path::Translated,
        }
    }

    /// Makes a lane forward this way.
    pub fn install(
        self,
        lane: &Lane,
        protocol: Protocol,
        ports: u16,
        max_flows: u32,
    ) -> Result<Fitting> {
        let mut fitting = Fitting::default();
        let mut ours = |make: fn() -> Result<Box<dyn proxy::data_path::DataPath>>| {
            let table = ours::table(lane, protocol, ports, max_flows);
            fitting.path = Some(Installed::new(&lane.router, make, &table)?);
            anyhow::Ok(())
        };
        match self {
            Self::SluiceXdp => ours(crate::ebpf::with_xdp)?,
            Self::SluiceTc => ours(crate::ebpf::with_tc)?,
            Self::SluiceNft => ours(|| Ok(Box::new(NftPath::new())))?,
            Self::SluiceUser => ours(|| Ok(Box::new(UserspacePath::new()?)))?,
            // A process of its own, not something of the lane's.
            Self::Netstack => {}
            Self::XdpDrop => {
                let mut kernel = Kernel::load()?;
                kernel.configure(generator::counting())?;
                kernel.attach_xdp("bench_sink", &lane.router, "tn0")?;
                fitting.kernel = Some(kernel);
            }
            Self::XdpRedirect => {
                let mut kernel = Kernel::load()?;
                kernel.configure(generator::redirected(lane, lane.ifindex("cl0")?))?;
                kernel.attach_xdp("bench_redirect", &lane.router, "tn0")?;
                fitting.kernel = Some(kernel);
            }
            Self::Raw => lane.allow_forwarding()?,
            Self::Conntrack => rival::conntrack(lane)?,
            Self::NftMap => rival::nft_map(lane, protocol, ports)?,
            Self::NftUpstream => rival::nft_upstream(lane, protocol, ports)?,
            Self::Iptables => rival::iptables(lane, protocol, ports)?,
        }
        Ok(fitting)
    }
}

/// What keeps a lane forwarding; what the kernel keeps by itself is not here.
#[derive(Default)]
pub struct Fitting {
    /// A program of the benchmark's.
    pub kernel: Option<Kernel>,
    /// A data path of Sluice's.
    pub path: Option<Installed>,
}
