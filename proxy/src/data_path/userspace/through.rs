//! Where there is no TUN device: the tailnet is reached through tailscaled. Its serve configuration forwards connections
//! to *doors*, loopback addresses of ours, one for each port that is served; its SOCKS5 server connects us to peers.
//!
//! Doors and the SOCKS5 server have loopback addresses of their own. On 127.0.0.1 every peer could reach them: without a
//! TUN device tailscaled leads what comes for any port of the node to that port there, and a peer that met a door
//! directly could claim to be somebody else.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use tokio::sync::watch;

use super::frontend::Live;

/// Where all doors are: nothing else is, so that entries of a serve configuration that lead here are ours.
pub const DOORS: Ipv4Addr = Ipv4Addr::new(127, 83, 76, 1);

/// Where tailscaled's SOCKS5 server listens unless the settings say where.
const SOCKS5: Ipv4Addr = Ipv4Addr::new(127, 83, 76, 2);

/// Doors by frontend.
pub type Doors = BTreeMap<SocketAddr, SocketAddr>;

/// The way through tailscaled.
#[derive(Debug)]
pub struct Through {
    socks5: SocketAddr,
    doors: watch::Sender<Doors>,
    frontends: Mutex<BTreeMap<SocketAddr, watch::Receiver<Arc<Live>>>>,
    hosts: RwLock<Vec<Vec<IpAddr>>>,
}

impl Through {
    /// With tailscaled's SOCKS5 server at this address.
    pub fn new(socks5: SocketAddr) -> Self {
        Self {
            socks5,
            doors: watch::Sender::default(),
            frontends: Mutex::default(),
            hosts: RwLock::default(),
        }
    }

    /// A free address for tailscaled's SOCKS5 server.
    pub fn free_socks5() -> io::Result<SocketAddr> {
        TcpListener::bind((SOCKS5, 0))?.local_addr()
    }

    /// Tailscaled's SOCKS5 server.
    pub fn socks5(&self) -> SocketAddr {
        self.socks5
    }

    /// The doors in force.
    pub fn doors(&self) -> watch::Receiver<Doors> {
        self.doors.subscribe()
    }

    /// Tells which addresses are one host to a serve configuration, which knows ports only: those of this node, those of
    /// each Service.
    pub fn set_hosts(&self, hosts: Vec<Vec<IpAddr>>) {
        *self.hosts.write().unwrap_or_else(PoisonError::into_inner) = hosts;
    }

    /// Opens a door to a frontend.
    pub(super) fn open(
        &self,
        frontend: SocketAddr,
        door: SocketAddr,
        live: watch::Receiver<Arc<Live>>,
    ) {
        self.frontends().insert(frontend, live);
        self.doors.send_if_modified(|doors| doors.insert(frontend, door) != Some(door));
    }

    /// Closes it, if there is one.
    pub(super) fn close(&self, frontend: SocketAddr, is_tcp: bool) {
        if !is_tcp {
            return;
        }
        self.frontends().remove(&frontend);
        self.doors.send_if_modified(|doors| doors.remove(&frontend).is_some());
    }

    /// The rules for a client that came through a frontend's door. Frontends of both families share what a serve
    /// configuration has for their port; the client's family tells which one it has called.
    pub(super) fn called(
        &self,
        door: SocketAddr,
        client: IpAddr,
    ) -> Option<watch::Receiver<Arc<Live>>> {
        let mut called = door;
        if door.is_ipv4() != client.is_ipv4() {
            let hosts = self.hosts.read().unwrap_or_else(PoisonError::into_inner);
            let host = hosts.iter().find(|host| host.contains(&door.ip()))?;
            called.set_ip(*host.iter().find(|ip| ip.is_ipv4() == client.is_ipv4())?);
        }
        self.frontends().get(&called).cloned()
    }

    fn frontends(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, watch::Receiver<Arc<Live>>>> {
        self.frontends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
