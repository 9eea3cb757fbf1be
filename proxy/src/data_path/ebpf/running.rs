//! What is in the kernel, and what it says of the network around.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    path::PathBuf,
};

use proxy_ebpf_common::{Hop, Target, target};
use proxy_rules::RuleTable;

use super::{
    attach,
    device::Device,
    gc,
    image::{MapImage, Slots},
    kernel,
    load::Object,
    neigh,
};
use crate::data_path::ApplyError;

/// What is in the kernel.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) object: Object,
    pub(super) pins: Option<PathBuf>,
    pub(super) image: MapImage,
    pub(super) slots: Slots,
    pub(super) table: RuleTable,
    pub(super) devices: Vec<Device>,
    pub(super) attachments: attach::Attachments,
    pub(super) hops: BTreeMap<IpAddr, Hop>,
    pub(super) local: Vec<[u8; 16]>,
    pub(super) neighbours: neigh::Neighbours,
    /// What the kernel has told and has not been acted on.
    pub(super) changed: neigh::Changed,
    /// When the hops must be lent anew: ticks.
    pub(super) renew_at: u32,
    pub(super) ager: gc::Ager,
}

impl Running {
    /// Maps that hold this image, and nothing attached.
    pub(super) fn new(
        object: Object,
        pins: Option<PathBuf>,
        image: MapImage,
        slots: Slots,
        table: &RuleTable,
        neighbours: neigh::Neighbours,
    ) -> Self {
        Self {
            object,
            pins,
            image,
            slots,
            table: RuleTable::empty(table.settings().clone()),
            devices: Vec::new(),
            attachments: attach::Attachments::default(),
            hops: BTreeMap::new(),
            local: Vec::new(),
            neighbours,
            changed: neigh::Changed { devices: true, hops: true },
            renew_at: 0,
            ager: gc::Ager::default(),
        }
    }

    /// The devices and this host's addresses: listed only when the kernel has told of a change.
    pub(super) fn surroundings(
        &mut self,
        table: &RuleTable,
    ) -> Result<(Vec<Device>, Vec<[u8; 16]>), ApplyError> {
        let told = self.neighbours.catch_up();
        self.changed |= told.map_err(|error| ApplyError::step("reading notices", error))?;
        if self.changed.devices || table.settings().interfaces != self.table.settings().interfaces {
            return super::EbpfPath::devices(table);
        }
        Ok((self.devices.clone(), self.local.clone()))
    }

    /// The ways to an image's backends.
    pub(super) fn hops(
        neighbours: &mut neigh::Neighbours,
        image: &MapImage,
        devices: &[Device],
    ) -> BTreeMap<IpAddr, Hop> {
        let backends = image
            .targets
            .values()
            .filter(|found| found.flags & target::FORWARD == 0)
            .map(|found| IpAddr::V6(Ipv6Addr::from(found.address)).to_canonical());
        neighbours.hops(backends, devices, kernel::now()).unwrap_or_else(|error| {
            tracing::warn!(%error, "next hops could not be read; the kernel resolves them packet by packet");
            BTreeMap::new()
        })
    }

    /// Tells the programs where backends are, and that the agent still looks.
    pub(super) fn renew(&mut self, now: u32) -> Result<(), ApplyError> {
        let hops = Self::hops(&mut self.neighbours, &self.image, &self.devices);
        let (mut indices, mut targets) = (Vec::new(), Vec::new());
        for (index, target) in &mut self.image.targets {
            let hop = hop_of(&hops, target);
            if target.hop != hop {
                target.hop = hop;
                indices.push(*index);
                targets.push(*target);
            }
        }
        self.object.maps.targets.set_all(&indices, &targets).map_err(|error| {
            // What is written and what is not is not known: the next turn writes every one.
            self.image.targets.values_mut().for_each(|target| target.hop = Hop::default());
            ApplyError::step("writing next hops", error)
        })?;
        self.hops = hops;
        self.renew_at = now + neigh::RENEW_AFTER;
        Ok(())
    }
}

/// The way to a target; nothing if it is not known.
pub(super) fn hop_of(hops: &BTreeMap<IpAddr, Hop>, target: &Target) -> Hop {
    hops.get(&IpAddr::V6(Ipv6Addr::from(target.address)).to_canonical())
        .copied()
        .unwrap_or_default()
}

/// The first device of each side.
pub(super) fn ifindexes(devices: &[Device]) -> [u32; 2] {
    let first =
        |side| devices.iter().find(|device| device.side == side).map_or(0, |device| device.ifindex);
    [first(proxy_rules::Side::Tailnet), first(proxy_rules::Side::Cluster)]
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_first_device_of_a_side_is_its_default() {
        assert_eq!(super::ifindexes(&[]), [0, 0]);
    }
}
