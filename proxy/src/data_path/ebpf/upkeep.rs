//! The regular work of the path.

use super::{Compiled, EbpfPath, Running, image, kernel, neigh};
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
        self.keep_surroundings(running)
    }

    /// Devices and neighbours.
    pub(super) fn keep_surroundings(&mut self, running: &mut Running) -> Result<(), ApplyError> {
        let now = kernel::now();
        let told = running.neighbours.catch_up();
        running.changed |= told.map_err(|error| ApplyError::step("reading notices", error))?;
        if running.changed.devices {
            let table = running.table.clone();
            let (devices, local) = Self::devices(&table)?;
            if devices != running.devices
                || local != running.local
                || !running.attachments.covers(&devices)
            {
                tracing::info!("devices have changed");
                let mut slots = running.slots.clone();
                let image = image::compile(&table, &mut slots);
                let new = Compiled { table: &table, image, slots, devices, local };
                return self.install_into(running, new);
            }
        }
        if running.changed.hops || now >= running.renew_at {
            running.renew(now)?;
        }
        running.changed = neigh::Changed::default();
        Ok(())
    }
}
