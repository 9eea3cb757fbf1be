//! The pod's own addresses, and the device that they are on.

use std::net::IpAddr;

use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags, sys::socket::SockaddrStorage};

/// The cluster side of this network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// The device of the cluster side.
    pub device: Option<String>,
    /// Its addresses, or those that the environment gave.
    pub addresses: Vec<IpAddr>,
}

/// Finds the device that has one of `known`, the pod's addresses; without any, the first device that is up, is neither
/// loopback nor `tailnet`, and has an address that others can reach.
pub fn find(known: &[IpAddr], tailnet: &str) -> nix::Result<Local> {
    let mut seen: Vec<(String, IpAddr)> = Vec::new();
    for interface in getifaddrs()? {
        let up = interface.flags.contains(InterfaceFlags::IFF_UP);
        let loopback = interface.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let address = interface.address.as_ref().and_then(address).filter(is_global);
        if let Some(address) = address.filter(|_| up && !loopback)
            && interface.interface_name != tailnet
        {
            seen.push((interface.interface_name, address));
        }
    }
    let holder = seen.iter().find(|(_, address)| known.contains(address));
    let device = holder.or(seen.first()).map(|(device, _)| device.clone());
    let on_device = || {
        let own = seen.iter().filter(|(name, _)| Some(name) == device.as_ref());
        own.map(|(_, address)| *address).collect()
    };
    let addresses = if known.is_empty() { on_device() } else { known.to_vec() };
    Ok(Local { device, addresses })
}

fn address(storage: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = storage.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
}

/// Not only for this host or this link.
fn is_global(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local() && !address.is_loopback(),
        IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_loopback(),
    }
}
