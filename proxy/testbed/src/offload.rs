//! Offload switches of a device (`ethtool -K`), set by the ioctl.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, ensure};

use crate::Namespace;

/// A switch; its value is the ethtool command that sets it (include/uapi/linux/ethtool.h).
#[derive(Clone, Copy, Debug)]
pub enum Offload {
    /// Checksums left to the receiver.
    TxChecksum = 0x17,
    /// TCP segmentation.
    Tso = 0x1f,
    /// Segmentation by software.
    Gso = 0x24,
    /// Receive aggregation.
    Gro = 0x2c,
}

#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Switches an offload of a device on or off.
pub fn set(namespace: &Namespace, device: &str, offload: Offload, on: bool) -> Result<()> {
    ensure!(device.len() < libc::IFNAMSIZ, "device name {device} is longer than 15 bytes");
    namespace
        .enter(|| ioctl(device, &mut Value { command: offload as u32, data: u32::from(on) }))
        .with_context(|| format!("set {offload:?} of {device}"))
}

fn ioctl(device: &str, value: &mut Value) -> io::Result<()> {
    // SAFETY: plain system call.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(value).cast();
    // SAFETY: SIOCETHTOOL reads and writes the `ethtool_value` that the request points to, alive until it returns.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
