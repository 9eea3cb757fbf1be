//! The rig: a sender, a receiver, and between them one *lane* for each way to forward, all alike.
//!
//! A lane is a router namespace with two veth pairs, `tn0` towards the sender and `cl0` towards the receiver. Each way
//! has a lane of its own, so that rounds can be interleaved without anything being installed or removed in between, and
//! what one way leaves in the kernel (hooks, conntrack, TSO switched off) cannot touch another. Neighbours are
//! permanent, IPv6 is off, one queue a device.

use std::{fmt::Write, net::Ipv4Addr};

use anyhow::Result;

use crate::{netns::Netns, offload};

/// The sources of generated flows, and of TCP clients.
pub const SOURCES: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// Source addresses of a lane's TCP clients.
pub const CLIENTS: u8 = 8;

/// Sender, receiver and the lanes between them.
pub struct Rig {
    pub sender: Netns,
    pub receiver: Netns,
    pub lanes: Vec<Lane>,
}

/// One router and its addresses.
pub struct Lane {
    pub index: u8,
    pub router: Netns,
}

/// What sends on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Frames that a program makes on the sender's veth.
    Frames,
    /// The sender's veth, and sockets.
    Sockets,
    /// A writer that owns the TUN device `tn0`, as a tunnel's process does.
    Tun,
}

impl Rig {
    /// A rig with this many lanes.
    pub fn new(lanes: usize, entry: Entry) -> Result<Self> {
        let mut rig = Self { sender: Netns::new()?, receiver: Netns::new()?, lanes: Vec::new() };
        for index in 0..lanes {
            let lane = Lane { index: u8::try_from(index)?, router: Netns::new()? };
            match entry {
                Entry::Frames => {
                    lane.connect_sender(&rig.sender)?;
                    // Without a program of its own a veth takes redirected frames only with GRO on.
                    lane.router.run(|| offload::set_gro("tn0", true))?;
                }
                Entry::Sockets => lane.connect_sender(&rig.sender)?,
                Entry::Tun => {}
            }
            lane.connect_receiver(&rig.receiver)?;
            rig.lanes.push(lane);
        }
        Ok(rig)
    }
}

impl Lane {
    /// The sender's device.
    pub fn sender_device(&self) -> String {
        format!("a{}", self.index)
    }

    /// The receiver's device.
    pub fn receiver_device(&self) -> String {
        format!("b{}", self.index)
    }

    /// The sender's address.
    pub fn sender(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 51, 100, self.index * 4 + 2)
    }

    /// The router's address on `tn0`: what is published.
    pub fn frontend(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 51, 100, self.index * 4 + 1)
    }

    /// The router's address on `cl0`.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::new(203, 0, 113, self.index * 4 + 1)
    }

    /// The receiver's address: the backend.
    pub fn backend(&self) -> Ipv4Addr {
        Ipv4Addr::new(203, 0, 113, self.index * 4 + 2)
    }

    /// A source address of the lane's TCP clients.
    pub fn client(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.index, number + 1)
    }

    /// The Ethernet address of the sender (0), `tn0` (1), `cl0` (2) or the receiver (3).
    pub fn mac(&self, place: u8) -> [u8; 6] {
        [2, 0, 0, 0, self.index, place]
    }

    /// Lets the router's kernel forward: every way but the eBPF ones needs it.
    pub fn allow_forwarding(&self) -> Result<()> {
        self.router.sysctl("net/ipv4/ip_forward", "1")
    }

    /// A device's number in the router.
    pub fn ifindex(&self, device: &str) -> Result<u32> {
        self.router.run(|| Ok(nix::net::if_::if_nametoindex(device)?))
    }

    /// Gives the router's TUN device its address, and the clients behind it.
    pub fn address_tun(&self) -> Result<()> {
        let mine = self.frontend();
        self.router.ip(&format!(
            "addr add {mine}/30 dev tn0\nlink set tn0 up\nroute add {SOURCES}/15 dev tn0\n"
        ))
    }

    /// Gives the sender's TUN device the clients' addresses, and the MTU that tailscaled's device has.
    pub fn connect_tun(&self, sender: &Netns) -> Result<()> {
        let (device, mine) = (self.sender_device(), self.frontend());
        let mut commands = format!(
            "link set {device} mtu 1280 up\n\
             addr add {}/30 dev {device}\n\
             route add {mine}/32 dev {device}\n",
            self.sender()
        );
        for number in 0..CLIENTS {
            writeln!(commands, "addr add {}/32 dev {device}", self.client(number))?;
        }
        sender.ip(&commands)
    }

    fn connect_sender(&self, sender: &Netns) -> Result<()> {
        let (device, path) = (self.sender_device(), sender.path());
        let (mine, theirs) = (self.frontend(), self.sender());
        self.veth("tn0", 1, &device, 0, &path)?;
        self.router.ip(&format!(
            "addr add {mine}/30 dev tn0\n\
             neigh replace {theirs} dev tn0 lladdr {} nud permanent\n\
             route add {SOURCES}/15 via {theirs}\n",
            mac_text(self.mac(0))
        ))?;
        let mut commands = format!(
            "link set {device} up\n\
             addr add {theirs}/30 dev {device}\n\
             neigh replace {mine} dev {device} lladdr {} nud permanent\n\
             route add {}/32 via {mine}\n",
            mac_text(self.mac(1)),
            self.backend()
        );
        for number in 0..CLIENTS {
            writeln!(commands, "addr add {}/32 dev {device}", self.client(number))?;
        }
        sender.ip(&commands)
    }

    fn connect_receiver(&self, receiver: &Netns) -> Result<()> {
        let (device, path) = (self.receiver_device(), receiver.path());
        let (mine, theirs) = (self.gateway(), self.backend());
        self.veth("cl0", 2, &device, 3, &path)?;
        self.router.ip(&format!(
            "addr add {mine}/30 dev cl0\n\
             neigh replace {theirs} dev cl0 lladdr {} nud permanent\n",
            mac_text(self.mac(3))
        ))?;
        receiver.ip(&format!(
            "link set {device} up\n\
             addr add {theirs}/30 dev {device}\n\
             neigh replace {mine} dev {device} lladdr {} nud permanent\n\
             route add {}/32 via {mine}\n\
             route add {}/24 via {mine}\n",
            mac_text(self.mac(2)),
            self.sender(),
            Ipv4Addr::new(198, 18, self.index, 0),
        ))
    }

    fn veth(&self, mine: &str, place: u8, theirs: &str, place2: u8, path: &str) -> Result<()> {
        self.router.ip(&format!(
            "link add {mine} address {} numtxqueues 1 numrxqueues 1 type veth \
             peer name {theirs} address {} numtxqueues 1 numrxqueues 1 netns {path}\n\
             link set {mine} up\n",
            mac_text(self.mac(place)),
            mac_text(self.mac(place2)),
        ))
    }
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
