//! Step 7: the source after translation.

use std::net::{IpAddr, SocketAddr};

use proxy_ebpf_common::tuple_hash;

use super::{Device, Model, Step, Stop, decide::Owner, flows::Tuple};
use crate::{DropReason, Protocol, Side, Snat};

impl Model {
    /// The tuple of the reply direction, for a source port that nobody has.
    pub(super) fn translate(
        &self,
        step: &mut Step<'_>,
        key: Tuple,
        backend: SocketAddr,
        (side, out): (Side, &Device),
        snat: Snat,
    ) -> Result<Tuple, Stop> {
        let source = match snat {
            Snat::Keep => key.src.ip(),
            Snat::To(address) => address,
            Snat::Masquerade => match key.src {
                SocketAddr::V4(_) => out.address4.map(IpAddr::V4),
                SocketAddr::V6(_) => out.address6.map(IpAddr::V6),
            }
            .ok_or(Stop::Drop(DropReason::NoLink))?,
        };
        let is_translated = source != key.src.ip();
        let pool = &self.table.settings().snat_ports;
        let in_pool =
            |port: u16| (pool.first..=pool.last).contains(&port) && !pool.reserved.contains(&port);
        let hash = tuple_hash(&key.map_key(), false);
        let count = u32::from(pool.last.saturating_sub(pool.first)) + 1;
        let searched = (0..u32::from(pool.tries))
            .map(|i| (u32::from(pool.first) + hash.wrapping_add(i) % count) as u16)
            .filter(|port| in_pool(*port));
        let own = Some(key.src.port()).filter(|port| !is_translated || in_pool(*port));
        for port in own.into_iter().chain(searched) {
            let is_echo = key.protocol == Protocol::Icmp;
            let src = SocketAddr::new(backend.ip(), if is_echo { port } else { backend.port() });
            let dst = SocketAddr::new(source, port);
            let reply = Tuple { src, dst, protocol: key.protocol, side };
            let is_local = is_translated && self.env.local.contains(&source);
            if is_local && self.owner(&reply) != Owner::Nobody {
                continue;
            }
            // The flow's own tuple counts as taken: a hairpin may lead back to where it began.
            if self.flows.find(&reply).is_none() && reply != key {
                step.say(format!("source {dst}"));
                return Ok(reply);
            }
        }
        Err(Stop::Drop(DropReason::PortsExhausted))
    }
}
