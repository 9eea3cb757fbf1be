//! What must be known of network devices, asked of the kernel of the current network namespace.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv6Addr},
};

use nix::{ifaddrs::getifaddrs, net::if_::if_nametoindex};
use proxy_ebpf_common::{Link, link};
use proxy_rules::{Interfaces, Side};
use socket2::{Domain, Socket, Type};
use std::os::fd::AsRawFd;

use super::image;

/// ARPHRD_ETHER and ARPHRD_LOOPBACK (include/uapi/linux/if_arp.h): devices whose packets begin with an Ethernet header.
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

/// A device of the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// Its side.
    pub side: Side,
    /// No Ethernet header.
    pub l3: bool,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Its facts as the programs know them.
    pub link: Link,
}

/// Every address of this host, by device.
pub fn addresses() -> io::Result<BTreeMap<String, Vec<IpAddr>>> {
    let mut found: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for entry in getifaddrs()? {
        let Some(address) = entry.address else { continue };
        let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::V4(v4.ip()),
            (_, Some(v6)) => IpAddr::V6(v6.ip()),
            _ => continue,
        };
        found.entry(entry.interface_name).or_default().push(ip);
    }
    Ok(found)
}

/// The devices of the settings. `Err` names the one that is not there.
pub fn devices(
    interfaces: &Interfaces,
    addresses: &BTreeMap<String, Vec<IpAddr>>,
) -> Result<Vec<Device>, (String, io::Error)> {
    let tailnet = interfaces.tailnet.iter().map(|name| (name, Side::Tailnet));
    let cluster = interfaces.cluster.iter().map(|name| (name, Side::Cluster));
    tailnet
        .chain(cluster)
        .map(|(name, side)| {
            let own = addresses.get(name).map_or(&[][..], Vec::as_slice);
            device(name, side, own).map_err(|error| (name.clone(), error))
        })
        .collect()
}

/// Whether a device has no Ethernet header.
pub(super) fn is_l3(name: &str) -> io::Result<bool> {
    hardware(name).map(|(hardware, _)| has_no_header(hardware))
}

const fn has_no_header(hardware: u16) -> bool {
    hardware != ARPHRD_ETHER && hardware != ARPHRD_LOOPBACK
}

fn device(name: &str, side: Side, own: &[IpAddr]) -> io::Result<Device> {
    let ifindex = if_nametoindex(name).map_err(io::Error::from)?;
    let (hardware, mac) = hardware(name)?;
    let l3 = has_no_header(hardware);
    let v4 = own.iter().find(|ip| ip.is_ipv4());
    let v6 = own.iter().find(|ip| matches!(ip, IpAddr::V6(v6) if !is_link_local(*v6)));
    let link = Link {
        address4: v4.map_or([0; 16], |ip| image::address(*ip)),
        address6: v6.map_or([0; 16], |ip| image::address(*ip)),
        mtu: mtu(name)?,
        side: image::side(side),
        flags: if l3 { link::L3 } else { 0 },
    };
    Ok(Device { name: name.to_owned(), ifindex, side, l3, mac, link })
}

const fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is plain data; all zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    Ok(request)
}

fn ioctl(code: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    // SAFETY: the descriptor is open and `request` is what this ioctl reads and writes.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), code as _, &raw mut *request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn hardware(name: &str) -> io::Result<(u16, [u8; 6])> {
    let mut request = request(name)?;
    ioctl(libc::SIOCGIFHWADDR, &mut request)?;
    // SAFETY: SIOCGIFHWADDR has filled this member.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    Ok((address.sa_family, mac))
}

fn mtu(name: &str) -> io::Result<u16> {
    let mut request = request(name)?;
    ioctl(libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: SIOCGIFMTU has filled this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
}

/// The name of a device's driver (ethtool's `GDRVINFO`).
pub fn driver(name: &str) -> io::Result<String> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const ETHTOOL_GDRVINFO: u32 = 3;
    // struct ethtool_drvinfo: command, then driver[32] and more; 196 bytes.
    let mut info = [0u32; 49];
    if let Some(command) = info.first_mut() {
        *command = ETHTOOL_GDRVINFO;
    }
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = info.as_mut_ptr().cast();
    ioctl(SIOCETHTOOL, &mut request)?;
    let bytes: Vec<u8> = info.iter().skip(1).take(8).flat_map(|word| word.to_ne_bytes()).collect();
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}
