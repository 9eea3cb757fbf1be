//! Maps that have become too small. Larger ones are filled beside them and programs that use them attached behind those that
//! carry the traffic; only then do these go. At no moment does a packet of a flow meet no program: the kernel would
//! answer for the host and reset live connections.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::Path,
};

use proxy_ebpf_common::{Counter, DropReason, FlowHalf, FlowKey};

use super::{
    Compiled, EbpfPath, Running, XdpChoice, attach,
    image::MapImage,
    kernel,
    load::{self, Capacity},
    maps, moved, neigh, sys,
};
use crate::data_path::ApplyError;

impl EbpfPath {
    /// Puts the compiled table in force in larger maps, carrying flows and counters over. On an error the old maps and
    /// programs stay.
    pub(super) fn regrow(&mut self, mut old: Running, new: Compiled<'_>) -> Result<(), ApplyError> {
        tracing::info!("the maps are replaced by larger ones");
        let (mut grown, copied) = match self.grown(&mut old, new) {
            Ok(both) => both,
            Err(error) => {
                self.running = Some(old);
                return Err(error);
            }
        };
        old.attachments.hand_over(&mut grown.attachments);
        old.attachments.remove(&mut old.object.ebpf);
        if let Some(pins) = &old.pins {
            detach_left(pins);
        }
        let counted = self.count_rest(&old, &copied);
        // What began between the copy and the detachment.
        let late = copy_flows(&old, &grown, &copied.flows);
        if let Some(pins) = old.pins.take() {
            load::remove_directory(&pins);
            grown.pins = pin(&mut grown, &pins).map_or_else(
                |error| {
                    let note = format!(
                        "nothing is pinned, traffic stops when the agent is killed: {error}"
                    );
                    tracing::warn!("{note}");
                    self.notes = vec![note];
                    None
                },
                |()| Some(pins),
            );
        }
        self.running = Some(grown);
        counted.map_err(|error| ApplyError::step("reading counters", error))?;
        late.map(drop).map_err(|error| ApplyError::step("writing flows", error))
    }

    /// The larger maps with everything in them, and programs attached behind the old; and the flows that were copied.
    fn grown(
        &mut self,
        old: &mut Running,
        new: Compiled<'_>,
    ) -> Result<(Running, Copied), ApplyError> {
        let max_flows = new.table.settings().max_flows;
        let wanted = Capacity::of(&new.image, new.slots.sizes(), max_flows);
        let object = load::open(wanted, None)?;
        let neighbours = neigh::Neighbours::open()
            .map_err(|error| ApplyError::step("opening netlink", error))?;
        let mut grown = Running::new(
            object,
            None,
            MapImage::default(),
            new.slots.clone(),
            new.table,
            neighbours,
        );
        let devices = new.devices.clone();
        self.write(&mut grown, new)?;
        // The larger maps know no device that is gone.
        moved::follow(&old.object.maps, &devices).map_err(|error| {
            ApplyError::step("leading flows to devices that were made anew", error)
        })?;
        let flows = copy_flows(old, &grown, &HashSet::new())
            .map_err(|error| ApplyError::step("writing flows", error))?;
        let (counters, drops) = self
            .copy_counters(old, &grown)
            .map_err(|error| ApplyError::step("writing counters", error))?;
        if self.options.xdp != XdpChoice::Off {
            // A device takes one XDP program. TC carries alone until the new one is there.
            old.attachments.remove_xdp(&mut old.object.ebpf);
        }
        let attached =
            grown.attachments.update(&mut grown.object.ebpf, &devices, None, self.options.xdp);
        if let Err(error) = attached {
            grown.attachments.remove(&mut grown.object.ebpf);
            return Err(error);
        }
        Ok((grown, Copied { flows, counters, drops }))
    }

    /// Copies counts to where the next agent will find them.
    fn copy_counters(&self, from: &Running, to: &Running) -> io::Result<(Counters, Drops)> {
        let (old, new) = (&from.object.maps, &to.object.maps);
        let drops = DropReason::ALL.iter().map(|reason| {
            let values = maps::copy(&old.drops, &new.drops, *reason as u32, self.cpus)?;
            Ok((*reason, values.iter().sum()))
        });
        let drops = drops.collect::<io::Result<Drops>>()?;
        let copy = |index: &u32| {
            let values = maps::copy(&old.counters, &new.counters, *index, self.cpus)?;
            Ok((*index, maps::sum(&values)))
        };
        Ok((from.image.counters.keys().map(copy).collect::<io::Result<Counters>>()?, drops))
    }

    /// Takes what the old programs have counted after the copy. It is in this process only, as adding it to a counter that
    /// is being counted on would lose counts.
    fn count_rest(&mut self, old: &Running, copied: &Copied) -> io::Result<()> {
        for (index, series) in &old.image.counters {
            let last = maps::counter(&old.object.maps.counters, *index, self.cpus)?;
            let before = copied.counters.get(index).copied().unwrap_or_default();
            let rest = kernel::count(last).since(kernel::count(before));
            let sum = self.base.series.entry(series.clone()).or_default();
            *sum = sum.plus(rest);
        }
        for (reason, before) in &copied.drops {
            let last = maps::number(&old.object.maps.drops, *reason as u32, self.cpus)?;
            *self.base.drops.entry(*reason).or_default() += last.saturating_sub(*before);
        }
        Ok(())
    }
}

/// What the larger maps were given before the old programs went.
struct Copied {
    flows: HashSet<FlowKey>,
    counters: Counters,
    drops: Drops,
}

type Counters = HashMap<u32, Counter>;
type Drops = Vec<(DropReason, u64)>;

/// Copies the flows that are not `known` and returns which they were; places mean the same in both, since the numbers of one were taken over by the other.
fn copy_flows(
    from: &Running,
    to: &Running,
    known: &HashSet<FlowKey>,
) -> io::Result<HashSet<FlowKey>> {
    let (mut keys, mut halves): (Vec<FlowKey>, Vec<FlowHalf>) = (Vec::new(), Vec::new());
    from.object.maps.flows.walk(|key, half| {
        if !known.contains(key) {
            keys.push(*key);
            halves.push(*half);
        }
    })?;
    to.object.maps.flows.set_all(&keys, &halves)?;
    Ok(keys.into_iter().collect())
}

/// Detaches what an earlier process has left attached and this one has not taken over.
fn detach_left(pins: &Path) {
    for entry in fs::read_dir(pins).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if (name.starts_with("tc-") || name.starts_with("xdp-"))
            && let Err(error) = sys::detach_pinned(&entry.path())
        {
            tracing::debug!(%error, pin = %entry.path().display(), "already detached");
        }
    }
}

fn pin(running: &mut Running, pins: &Path) -> Result<(), String> {
    fs::create_dir_all(pins).map_err(|error| format!("{}: {error}", pins.display()))?;
    load::pin_maps(&mut running.object, pins)?;
    running.attachments.pin(&mut running.object.ebpf, pins).map_err(|error| attach::chain(&error))
}
