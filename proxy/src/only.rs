//! One agent a network namespace: two would attach programs and write the nftables table in turn, and neither would hold.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// Abstract, so that the name belongs to the network namespace, needs no file system, and goes with the process.
const NAME: &str = "sluice-proxy";

/// Held by the process that carries traffic by the kernel's means in its network namespace.
#[derive(Debug)]
pub struct Only {
    _held: UnixListener,
}

/// Why this process may not.
#[derive(Debug, thiserror::Error)]
pub enum OnlyError {
    /// Another one does.
    #[error(
        "another sluice-proxy{} carries traffic in this network namespace: stop it first, or run this one with \
         --data-path userspace",
        .0.map(|id| format!(" (process {id})")).unwrap_or_default()
    )]
    Taken(Option<i32>),
    /// It could not be found out.
    #[error("claiming the network namespace")]
    Io(#[from] io::Error),
}

impl Only {
    /// Claims the network namespace of this thread until dropped.
    pub fn claim() -> Result<Self, OnlyError> {
        let address = SocketAddr::from_abstract_name(NAME)?;
        match UnixListener::bind_addr(&address) {
            Ok(held) => Ok(Self { _held: held }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                // Of another process namespace the number is 0.
                let id = UnixStream::connect_addr(&address)
                    .ok()
                    .and_then(|other| getsockopt(&other, PeerCredentials).ok())
                    .map(|credentials| credentials.pid())
                    .filter(|id| *id != 0);
                Err(OnlyError::Taken(id))
            }
            Err(error) => Err(error.into()),
        }
    }
}
