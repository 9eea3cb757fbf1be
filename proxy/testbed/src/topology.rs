//! The proxy between a tailnet and a cluster.
//!
//! ```text
//! tailnet                  pump        proxy                       veth   cluster
//! tail0 100.64.0.9-.12  ========  tailscale0 100.64.0.1   eth0 192.0.2.1 ----- eth0 192.0.2.10-.13
//!       fd7a:115c:a1e0::9-c       fd7a:115c:a1e0::1    2001:db8:2::1           2001:db8:2::10-13
//! ```

use anyhow::{Result, ensure};

use crate::{
    Namespace,
    tun::{Pump, Tun},
};

/// MTU of the tailnet's devices.
pub const TUN_MTU: u16 = 1280;

/// The proxy's addresses on the tailnet.
pub const PROXY_TAILNET: [&str; 2] = ["100.64.0.1", "fd7a:115c:a1e0::1"];
/// The proxy's addresses on the cluster.
pub const PROXY_CLUSTER: [&str; 2] = ["192.0.2.1", "2001:db8:2::1"];
/// Tailnet peers, by number and family.
pub const PEERS: [[&str; 2]; 4] = [
    ["100.64.0.9", "fd7a:115c:a1e0::9"],
    ["100.64.0.10", "fd7a:115c:a1e0::a"],
    ["100.64.0.11", "fd7a:115c:a1e0::b"],
    ["100.64.0.12", "fd7a:115c:a1e0::c"],
];
/// Cluster hosts, by number and family.
pub const HOSTS: [[&str; 2]; 4] = [
    ["192.0.2.10", "2001:db8:2::10"],
    ["192.0.2.11", "2001:db8:2::11"],
    ["192.0.2.12", "2001:db8:2::12"],
    ["192.0.2.13", "2001:db8:2::13"],
];

/// Three namespaces in a row.
#[derive(Debug)]
pub struct Topology {
    /// Peers of the tailnet.
    pub tailnet: Namespace,
    /// Where the data path works: `tailscale0` and `eth0`.
    pub proxy: Namespace,
    /// Hosts of the cluster.
    pub cluster: Namespace,
    /// The proxy's end of the tailnet.
    pub tun: Tun,
    /// The tailnet's transport.
    pub pump: Pump,
    _tail: Tun,
}

impl Topology {
    /// The usual one: 1280 on the tailnet, 1500 on the cluster.
    pub fn new() -> Result<Self> {
        Self::with_cluster_mtu(1500)
    }

    /// With another MTU on the cluster's link.
    pub fn with_cluster_mtu(mtu: u16) -> Result<Self> {
        let (tailnet, proxy, cluster) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
        let tun = Tun::new(&proxy, "tailscale0")?;
        let tail = Tun::new(&tailnet, "tail0")?;
        let pump = Pump::new(&tun, &tail)?;
        proxy.link("eth0", &cluster, "eth0", mtu)?;
        configure(&proxy, "tailscale0", &[PROXY_TAILNET])?;
        configure(&tailnet, "tail0", &PEERS)?;
        // Subnet routes and exit nodes: what is not on the tailnet goes through it.
        let [v4, v6] = PEERS[0];
        tailnet.ip([
            format!("route add default dev tail0 src {v4}").as_str(),
            &format!("route add default dev tail0 src {v6}"),
        ])?;
        for (namespace, own) in [(&proxy, &[PROXY_CLUSTER][..]), (&cluster, &HOSTS[..])] {
            let mut lines = Vec::new();
            for [v4, v6] in own {
                lines.push(format!("address add {v4}/24 dev eth0"));
                lines.push(format!("address add {v6}/64 dev eth0 nodad"));
            }
            namespace.ip(lines.iter().map(String::as_str))?;
        }
        // Replies to sources that are kept, and egress.
        let ([v4, v6], [via4, via6]) = (HOSTS[0], PROXY_CLUSTER);
        cluster.ip([
            format!("route add default via {via4} src {v4}").as_str(),
            &format!("route add default via {via6} src {v6}"),
        ])?;
        Ok(Self { tailnet, proxy, cluster, tun, pump, _tail: tail })
    }

    /// Gives the proxy's end of the tailnet another index, as a tailscaled does that is started anew.
    pub fn renew_device(&self) -> Result<()> {
        let index = || -> Result<String> {
            let shown = self.proxy.run("ip", &["-o", "link", "show", "tailscale0"])?;
            Ok(shown.split(':').next().unwrap_or_default().to_owned())
        };
        let before = index()?;
        let elsewhere = Namespace::new()?;
        self.proxy.give("tailscale0", &elsewhere)?;
        // Who comes back gets the index that it had, if nobody else has it.
        self.proxy
            .ip([format!("link add taken index {before} type veth peer name rest").as_str()])?;
        elsewhere.give("tailscale0", &self.proxy)?;
        configure(&self.proxy, "tailscale0", &[PROXY_TAILNET])?;
        ensure!(before != index()?, "tailscale0 has its old index");
        self.proxy.ip(["link del taken"])
    }
}

/// Addresses and routes of a tailnet's device.
fn configure(namespace: &Namespace, device: &str, own: &[[&str; 2]]) -> Result<()> {
    // A queue that holds what the pump cannot take while another process has the processor.
    let mut lines = vec![format!("link set {device} mtu {TUN_MTU} txqueuelen 4000 up")];
    for [v4, v6] in own {
        lines.push(format!("address add {v4}/32 dev {device}"));
        lines.push(format!("address add {v6}/128 dev {device} nodad"));
    }
    if let Some([v4, v6]) = own.first() {
        lines.push(format!("route add 100.64.0.0/10 dev {device} src {v4}"));
        lines.push(format!("route add fd7a:115c:a1e0::/48 dev {device} src {v6}"));
    }
    namespace.ip(lines.iter().map(String::as_str))
}
