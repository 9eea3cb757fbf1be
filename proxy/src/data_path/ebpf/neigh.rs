//! The way to each backend, as the kernel knows it: route and neighbour, asked for once and then kept by the kernel's
//! own notices.
//!
//! A cached Ethernet header is lent to the programs for some seconds only. When the agent dies they fall back to the
//! kernel's own neighbour resolution, so a backend that moves is never lost for long. A neighbour that has become stale
//! is confirmed at once, as the kernel does for one that it uses itself: the programs' packets do not pass there.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::IpAddr,
    ops::BitOrAssign,
};

use proxy_ebpf_common::Hop;

use super::device::Device;

mod netlink;
mod notices;

use netlink::Requests;
pub(crate) use netlink::messages;
pub(crate) use notices::Notices;
use notices::{Neighbour, Notice};

/// Ticks that a cached Ethernet header may be used.
const FRESH_FOR: u32 = 8;
/// Ticks after which it is lent anew.
pub(super) const RENEW_AFTER: u32 = 3;

/// The kernel's routes and neighbours.
#[derive(Debug)]
pub(super) struct Neighbours {
    requests: Requests,
    notices: Notices,
    known: HashMap<(u32, IpAddr), Neighbour>,
    /// Device and next hop towards an address; `None` = there is no route.
    ways: HashMap<IpAddr, Option<(u32, IpAddr)>>,
}

/// What has changed since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Devices or their addresses.
    pub(super) devices: bool,
    /// Neighbours or routes.
    pub(super) hops: bool,
}

impl BitOrAssign for Changed {
    fn bitor_assign(&mut self, other: Self) {
        self.devices |= other.devices;
        self.hops |= other.hops;
    }
}

impl Neighbours {
    pub(super) fn open() -> io::Result<Self> {
        // Heard first, asked then: nothing falls between.
        let notices = Notices::open()?;
        let mut opened = Self {
            requests: Requests::open()?,
            notices,
            known: HashMap::new(),
            ways: HashMap::new(),
        };
        opened.reload()?;
        Ok(opened)
    }

    fn reload(&mut self) -> io::Result<()> {
        self.ways.clear();
        self.known.clear();
        let known = &mut self.known;
        self.requests.neighbours(|entry| {
            if let Some((ifindex, ip, Some(neighbour))) = notices::read(&entry) {
                known.insert((ifindex, ip), neighbour);
            }
        })
    }

    /// Takes in what the kernel has told meanwhile.
    pub(super) fn catch_up(&mut self) -> io::Result<Changed> {
        let mut changed = Changed::default();
        let mut lost = false;
        let (known, ways) = (&mut self.known, &mut self.ways);
        self.notices.drain(|notice| {
            changed.hops = true;
            match notice {
                Notice::Neighbour(ifindex, ip, Some(neighbour)) => {
                    known.insert((ifindex, ip), neighbour);
                }
                Notice::Neighbour(ifindex, ip, None) => {
                    known.remove(&(ifindex, ip));
                }
                Notice::Routes => ways.clear(),
                Notice::Devices => {
                    ways.clear();
                    changed.devices = true;
                }
                Notice::Lost => lost = true,
            }
        })?;
        if lost {
            self.reload()?;
            changed.devices = true;
        }
        Ok(changed)
    }

    /// The hops of backends.
    pub(super) fn hops(
        &mut self,
        backends: impl Iterator<Item = IpAddr>,
        devices: &[Device],
        now: u32,
    ) -> io::Result<BTreeMap<IpAddr, Hop>> {
        let mut hops = BTreeMap::new();
        for backend in backends {
            if hops.contains_key(&backend) {
                continue;
            }
            let way = if let Some(way) = self.ways.get(&backend) {
                *way
            } else {
                let way = self.requests.route(backend)?;
                self.ways.insert(backend, way);
                way
            };
            let Some((ifindex, gateway)) = way else { continue };
            // A route to elsewhere (loopback, another device) is not ours to send by.
            let Some(device) = devices.iter().find(|device| device.ifindex == ifindex) else {
                continue;
            };
            let mut hop = Hop { ifindex, ..Hop::default() };
            if device.l3 {
                hop.fresh_until = Hop::NO_HEADER;
                hops.insert(backend, hop);
                continue;
            }
            let known = self.known.get_mut(&(ifindex, gateway));
            let confirm = known.as_ref().is_none_or(|neighbour| neighbour.stale);
            if let Some(neighbour) = known {
                (hop.dmac, hop.smac) = (neighbour.mac, device.mac);
                hop.fresh_until = now + FRESH_FOR;
                // Once: the kernel will tell how it ended.
                neighbour.stale = false;
            }
            if confirm && let Err(error) = self.requests.probe(ifindex, gateway) {
                tracing::debug!(%error, %gateway, "neighbour could not be probed");
            }
            hops.insert(backend, hop);
        }
        Ok(hops)
    }
}

/// Removes the clsact qdisc of a device.
pub(super) fn remove_clsact(ifindex: u32) -> io::Result<()> {
    netlink::remove_clsact(ifindex)
}
