//! The cluster beside the tailnet: a network to which pods of the test are attached.
//!
//! ```text
//! tailnet == tailscale0 pod eth0 10.77.0.101, 2001:db8:77::101 --veth-- bridge 10.77.0.1, hosts 10.77.0.10-.13
//! ```

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::atomic::{AtomicU8, Ordering},
};

use anyhow::Result;

use crate::Namespace;

/// The gateway's addresses.
const GATEWAY: [&str; 2] = ["10.77.0.1", "2001:db8:77::1"];

/// Cluster hosts, by number and family. All are in the cluster's one namespace.
pub const HOSTS: [[&str; 2]; 4] = [
    ["10.77.0.10", "2001:db8:77::10"],
    ["10.77.0.11", "2001:db8:77::11"],
    ["10.77.0.12", "2001:db8:77::12"],
    ["10.77.0.13", "2001:db8:77::13"],
];

/// A cluster's network with its hosts.
#[derive(Debug)]
pub struct Cluster {
    /// Where the hosts are.
    pub namespace: Namespace,
    attached: AtomicU8,
}

impl Cluster {
    /// A network without pods.
    pub fn new() -> Result<Self> {
        let namespace = Namespace::new()?;
        let mut lines = vec![
            "link add bridge type bridge stp_state 0 forward_delay 0".to_owned(),
            "link set bridge up".to_owned(),
        ];
        for [v4, v6] in std::iter::once(GATEWAY).chain(HOSTS) {
            lines.push(format!("address add {v4}/24 dev bridge"));
            lines.push(format!("address add {v6}/64 dev bridge nodad"));
        }
        namespace.ip(lines.iter().map(String::as_str))?;
        Ok(Self { namespace, attached: AtomicU8::new(0) })
    }

    /// Gives a pod its `eth0` in the cluster, with default routes; returns its addresses there.
    pub fn attach(&self, pod: &Namespace) -> Result<[IpAddr; 2]> {
        let number = 100 + self.attached.fetch_add(1, Ordering::Relaxed) + 1;
        let v4 = Ipv4Addr::new(10, 77, 0, number);
        let low = u16::from_str_radix(&number.to_string(), 16)?;
        let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, low);
        let device = format!("pod{number}");
        self.namespace.link(&device, pod, "eth0", 1500)?;
        self.namespace.ip([format!("link set {device} master bridge").as_str()])?;
        pod.ip([
            format!("address add {v4}/24 dev eth0").as_str(),
            &format!("address add {v6}/64 dev eth0 nodad"),
            &format!("route add default via {}", GATEWAY[0]),
            &format!("route add default via {}", GATEWAY[1]),
        ])?;
        Ok([v4.into(), v6.into()])
    }

    /// Sends the hosts' traffic to anywhere else through a pod, from the first host's addresses: replies to clients
    /// whose address was kept, and egress.
    pub fn route_through(&self, pod: [IpAddr; 2]) -> Result<()> {
        let ([via4, via6], [v4, v6]) = (pod, HOSTS[0]);
        self.namespace.ip([
            format!("route replace default via {via4} src {v4}").as_str(),
            &format!("route replace default via {via6} src {v6}"),
        ])
    }
}
