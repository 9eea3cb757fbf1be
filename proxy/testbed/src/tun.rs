//! TUN devices with virtio headers, and the pump between two of them: what tailscaled is to the kernel, less the
//! encryption. Super-packets and half-made checksums cross it as they are.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use anyhow::{Context as _, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::Namespace;

/// Bytes of the virtio header before each packet (struct `virtio_net_hdr`).
const HEADER: usize = 10;
/// TUN_F_CSUM, TSO4, TSO6, TSO_ECN (include/uapi/linux/if_tun.h).
const OFFLOADS: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x08;
/// USO4, USO6, known since 6.2.
const UDP_OFFLOADS: libc::c_ulong = 0x20 | 0x40;

/// An L3 TUN device.
#[derive(Debug)]
pub struct Tun {
    file: File,
}

impl Tun {
    /// Makes the device in the namespace; it goes when this value goes.
    pub fn new(namespace: &Namespace, device: &str) -> Result<Self> {
        ensure!(device.len() < libc::IFNAMSIZ, "device name {device} is longer than 15 bytes");
        let file = namespace
            .enter(|| open(device))
            .with_context(|| format!("TUN {device}: is there a /dev/net/tun"))?;
        Ok(Self { file })
    }

    /// Makes the kernel receive an IP packet on the device.
    pub fn inject(&self, packet: &[u8]) -> Result<()> {
        let framed = [&[0; HEADER][..], packet].concat();
        (&self.file).write_all(&framed).context("write to the TUN")
    }
}

fn open(device: &str) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: all zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags =
        (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes the `ifreq`, alive until it returns.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let offload = |flags: libc::c_ulong| {
        // SAFETY: TUNSETOFFLOAD takes its flags by value.
        unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, flags) == 0 }
    };
    if !offload(OFFLOADS | UDP_OFFLOADS) && !offload(OFFLOADS) {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Carries packets between two TUNs until dropped.
#[derive(Debug)]
pub struct Pump {
    /// Closed to stop the threads; never written to.
    stop: Option<io::PipeWriter>,
    threads: Vec<JoinHandle<()>>,
    carried: Arc<AtomicU64>,
}

impl Pump {
    /// Starts a thread for each direction.
    pub fn new(a: &Tun, b: &Tun) -> Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let carried = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        for (from, to) in [(a, b), (b, a)] {
            let (from, to) = (from.file.try_clone()?, to.file.try_clone()?);
            let (stopped, carried) = (stopped.try_clone()?, Arc::clone(&carried));
            threads.push(std::thread::spawn(move || carry(&from, &to, &stopped, &carried)));
        }
        Ok(Self { stop: Some(stop), threads, carried })
    }

    /// Packets carried, both directions; a super-packet is one.
    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }
}

fn carry(mut from: &File, mut to: &File, stop: &io::PipeReader, carried: &AtomicU64) {
    let mut buffer = vec![0; HEADER + usize::from(u16::MAX)];
    loop {
        let mut ready = [
            PollFd::new(from.as_fd(), PollFlags::POLLIN),
            PollFd::new(stop.as_fd(), PollFlags::POLLIN),
        ];
        if poll(&mut ready, PollTimeout::NONE).is_err_and(|error| error != nix::Error::EINTR) {
            return;
        }
        if ready[1].any().unwrap_or(true) {
            return;
        }
        let Ok(length) = from.read(&mut buffer) else { return };
        // A device that is down refuses; the packet is lost, as on any link.
        if to.write_all(&buffer[..length]).is_ok() {
            carried.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        drop(self.stop.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
