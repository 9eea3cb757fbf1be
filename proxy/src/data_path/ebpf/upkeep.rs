//! The regular work of the path.

use super::{Compiled, EbpfPath, Running, hop_of, image, kernel};
use crate::data_path::ApplyError;

impl EbpfPath {
    /// Devices, neighbours, ageing.
    pub(super) fn keep_up(&mut self, running: &mut Running) -> Result<(), ApplyError> {
        let now = kernel::now();
        let max_flows = u64::from(running.table.settings().max_flows);
        running
            .ager
            .turn(&running.object.maps, now, max_flows)
            .map_err(|error| ApplyError::step("ageing flows", error))?;
        let table = running.table.clone();
        let (devices, local) = Self::devices(&table)?;
        if devices != running.devices
            || local != running.local
            || !running.attachments.covers(&devices)
        {
            tracing::info!("devices have changed");
            let mut slots = running.slots.clone();
            let image = image::compile(&table, &mut slots);
            return self
                .install_into(running, Compiled { table: &table, image, slots, devices, local });
        }
        let hops = Self::hops(&mut running.neighbours, &running.image, &running.devices);
        for (index, target) in &mut running.image.targets {
            let hop = hop_of(&hops, target);
            if target.hop != hop {
                target.hop = hop;
                running
                    .object
                    .maps
                    .targets
                    .set(index, target)
                    .map_err(|error| ApplyError::step("writing next hops", error))?;
            }
        }
        running.hops = hops;
        Ok(())
    }
}
