//! The tailnet and the cluster that all ways share.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use proxy_testbed::{
    Namespace, Tailnet,
    tailnet::{AuthKey, Cluster, HOSTS, KeyOptions, Node},
};

use super::{
    load::{PORT, Servers},
    way::Role,
};

/// The tailnet's end of every way.
const PEER: &str = "peer";
/// The server that is reached without a proxy.
pub const OTHER: &str = "other";

/// Everything but the pods. They must be gone before it.
pub struct Field {
    /// The cluster's end, with an address for each pod.
    pub cluster: Cluster,
    pub peer: Node,
    /// The peer's address.
    pub target: IpAddr,
    pub key: AuthKey,
    at_cluster: Servers,
    at_peer: Servers,
    at_other: Servers,
    other: IpAddr,
    _other: Node,
    pub tailnet: Tailnet,
}

impl Field {
    /// Starts what all share.
    pub fn new() -> Result<Self> {
        let tailnet = Tailnet::start()?;
        let (peer, other) = (tailnet.joined(PEER, &[])?, tailnet.joined(OTHER, &[])?);
        let cluster = Cluster::new()?;
        for client in [&peer.underlay.namespace, &cluster.namespace] {
            // Many short connections: without these a client runs out of ports after some seconds.
            client.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
            client.sysctl("net/ipv4/tcp_tw_reuse", "1")?;
        }
        let ([target, _], [address, _]) = (peer.addresses()?, other.addresses()?);
        Ok(Self {
            at_cluster: Servers::new(&cluster.namespace)?,
            at_peer: Servers::new(&peer.underlay.namespace)?,
            at_other: Servers::new(&other.underlay.namespace)?,
            cluster,
            target,
            key: tailnet.auth_key(&KeyOptions { reusable: true, ..KeyOptions::default() })?,
            peer,
            other: address,
            _other: other,
            tailnet,
        })
    }

    /// Where a client of a role is, and the servers that it reaches.
    pub fn ends(&self, role: Option<Role>) -> (&Namespace, &Servers) {
        match role {
            None => (&self.peer.underlay.namespace, &self.at_other),
            Some(Role::Ingress) => (&self.peer.underlay.namespace, &self.at_cluster),
            Some(Role::Egress) => (&self.cluster.namespace, &self.at_peer),
        }
    }

    /// The server that is reached without a proxy.
    pub fn direct(&self) -> SocketAddr {
        (self.other, PORT).into()
    }

    /// What ingress leads to.
    pub const fn destination() -> &'static str {
        HOSTS[0][0]
    }

    /// Waits until the peer's tunnel to a node goes straight, without the relay.
    pub fn meet(&self, name: &str) -> Result<()> {
        let addresses = self.peer.meet(name)?;
        let address = addresses.first().context("a node without addresses")?.to_string();
        // Fails if a relay is still between them after these.
        self.peer.cli(&["ping", "--c=20", "--timeout=1s", &address])?;
        Ok(())
    }

    /// A node's IPv4 address, once the control server knows it.
    pub fn address(&self, name: &str) -> Option<IpAddr> {
        self.tailnet.find(name).ok()?.addresses.into_iter().find(IpAddr::is_ipv4)
    }

    /// Removes a node from the tailnet.
    pub fn forget(&self, name: &str) -> Result<()> {
        self.tailnet.delete(self.tailnet.find(name)?.id).map(drop)
    }
}
