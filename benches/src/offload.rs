//! Device features, by the ethtool ioctl.

use std::{
    io,
    os::fd::AsRawFd,
    ptr::{from_mut, null_mut},
};

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, Type};

const ETHTOOL_SGRO: u32 = 0x2c;
const SIOCETHTOOL: libc::c_ulong = 0x8946;

#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Switches a device's GRO, in the calling thread's namespace.
pub fn set_gro(device: &str, on: bool) -> Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    ensure!(device.len() < libc::IFNAMSIZ, "device name {device} is too long");
    let mut value = Value { command: ETHTOOL_SGRO, data: u32::from(on) };
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: null_mut() },
    };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = from_mut(&mut value).cast();
    // SAFETY: `request` and the value it points to outlive the call and have the layout that the command expects.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, from_mut(&mut request)) };
    if result == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error()).with_context(|| format!("switching GRO of {device}"))
}
