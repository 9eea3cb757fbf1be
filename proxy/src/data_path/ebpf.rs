//! The eBPF data path: programs on TC (and XDP), fed from maps.
//!
//! `image` compiles a table (pure), `install` writes what has changed, `attach` puts programs on devices, `gc` ages
//! flows, `neigh` and `device` tell the programs about the network around. Where there is a bpffs, maps and links
//! are pinned: a new process finds flows and counters and swaps the programs without losing a packet. Without
//! one, tcx links end with the process and its traffic goes back to the kernel.

use std::{collections::HashMap, io, path::PathBuf};

use proxy_ebpf_common::{DropReason, Globals, stance};
use proxy_rules::{Action, Count, Flow, RuleTable, Series, Snapshot};

use crate::data_path::{ApplyError, CounterError, DataPath, Kind, Stance, Unsupported};

mod attach;
pub mod device;
mod flow_table;
mod flows;
mod gc;
pub mod image;
mod install;
mod kernel;
pub mod load;
pub mod maps;
mod moved;
pub(crate) mod neigh;
mod place;
mod regrow;
mod running;
pub mod shadow;
mod sys;
mod upkeep;

pub use attach::{Attachment, XdpChoice};

use device::Device;
use image::{MapImage, Slots};
use load::Capacity;
use running::{Running, hop_of, ifindexes};

/// How many counters of rules that are gone are kept in the maps before their counts are kept elsewhere.
const MAX_RETIRED: u32 = 1024;

/// Choices that are not part of the rule table.
#[derive(Clone, Debug, Default)]
pub struct EbpfOptions {
    /// Where links and maps are pinned; must be a bpffs to be of use.
    pub bpffs: Option<PathBuf>,
    /// When XDP is used.
    pub xdp: XdpChoice,
}

/// The data path.
#[derive(Debug)]
pub struct EbpfPath {
    options: EbpfOptions,
    running: Option<Running>,
    stance: Stance,
    /// Counts of series and drops that the maps no longer hold.
    base: Snapshot,
    cpus: usize,
    notes: Vec<String>,
}

/// A table on its way into the kernel.
struct Compiled<'a> {
    table: &'a RuleTable,
    image: MapImage,
    slots: Slots,
    devices: Vec<Device>,
    local: Vec<[u8; 16]>,
}

impl EbpfPath {
    /// A data path that has installed nothing yet.
    pub fn new(options: EbpfOptions) -> Self {
        Self {
            options,
            running: None,
            stance: Stance::All,
            base: Snapshot::default(),
            cpus: aya::util::nr_cpus().unwrap_or(1),
            notes: Vec::new(),
        }
    }

    /// How each device is attended to.
    pub fn attachments(&self) -> &[Attachment] {
        self.running.as_ref().map_or(&[], |running| &running.attachments.report)
    }

    /// Removes what an earlier process has left for these devices.
    pub fn clean(options: &EbpfOptions, devices: &[String]) {
        if let Some(directory) =
            options.bpffs.as_ref().and_then(|bpffs| load::namespace_directory(bpffs).ok())
            && directory.is_dir()
        {
            load::remove_directory(&directory);
        }
        for device in devices {
            attach::clean(device);
        }
    }

    fn devices(table: &RuleTable) -> Result<(Vec<Device>, Vec<[u8; 16]>), ApplyError> {
        let addresses =
            device::addresses().map_err(|error| ApplyError::step("listing addresses", error))?;
        let devices = device::devices(&table.settings().interfaces, &addresses)
            .map_err(|(name, _)| Unsupported::Interface(name))?;
        let mut local: Vec<_> =
            addresses.values().flatten().map(|ip| image::address(*ip)).collect();
        local.sort_unstable();
        local.dedup();
        Ok((devices, local))
    }

    /// Loads the object, taking over what is pinned.
    fn start(&mut self, table: &RuleTable) -> Result<Running, ApplyError> {
        let pins = match self.options.bpffs.as_deref().map(load::pin_directory) {
            Some(Ok(pins)) => Some(pins),
            Some(Err(reason)) => {
                let note =
                    format!("nothing is pinned, traffic stops when the agent is killed: {reason}");
                tracing::warn!("{note}");
                self.notes = vec![note];
                None
            }
            None => None,
        };
        let mut slots = Slots::default();
        let image = image::compile(table, &mut slots);
        let wanted = Capacity::of(&image, slots.sizes(), table.settings().max_flows);
        let object = load::open(wanted, pins.as_deref())?;
        let old = kernel::read(&object.maps)
            .map_err(|error| ApplyError::step("reading the maps", error))?;
        let (object, image, slots) = if old.targets.is_empty() {
            (object, MapImage::default(), Slots::default())
        } else {
            tracing::info!(rules = old.ports.len(), "taking over pinned maps");
            let slots = Slots::resume(&old);
            (object, old, slots)
        };
        let neighbours = neigh::Neighbours::open()
            .map_err(|error| ApplyError::step("opening netlink", error))?;
        Ok(Running::new(object, pins, image, slots, table, neighbours))
    }

    fn install(&mut self, table: &RuleTable) -> Result<(), ApplyError> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => self.start(table)?,
        };
        let (devices, local) = match running.surroundings(table) {
            Ok(found) => found,
            Err(error) => {
                self.running = (!running.attachments.report.is_empty()).then_some(running);
                return Err(error);
            }
        };
        let held = Capacity::held(&running.object.maps);
        let max_flows = table.settings().max_flows;
        let mut slots = running.slots.clone();
        let mut image = image::compile(table, &mut slots);
        let mut fits = held.fits(&image, slots.sizes(), max_flows);
        let retired = running.slots.retired_counters();
        if retired > MAX_RETIRED || (!fits && retired > 0) {
            if let Err(error) = self.reclaim(&mut running) {
                self.running = Some(running);
                return Err(error);
            }
            slots = running.slots.clone();
            image = image::compile(table, &mut slots);
            fits = held.fits(&image, slots.sizes(), max_flows);
        }
        if !fits {
            if running.image.counters.is_empty() {
                // Taken over, and too small from the start: what the counters stand for is known by the new table alone.
                running.image.counters.clone_from(&image.counters);
            }
            return self.regrow(running, Compiled { table, image, slots, devices, local });
        }
        let compiled = Compiled { table, image, slots, devices, local };
        let result = self.install_into(&mut running, compiled);
        if result.is_ok() || !running.attachments.report.is_empty() {
            self.running = Some(running);
        } else if let Some(pins) = &running.pins
            && !self.is_left()
        {
            load::remove_directory(pins);
        }
        result
    }

    fn install_into(&mut self, running: &mut Running, new: Compiled<'_>) -> Result<(), ApplyError> {
        self.write(running, new)?;
        let object = &mut running.object.ebpf;
        let (devices, pins) = (&running.devices, running.pins.as_deref());
        let attached = running.attachments.update(object, devices, pins, self.options.xdp);
        // A device that could not be attended to is tried again with the next turn, not taken for done.
        running.changed.devices |= attached.is_err();
        let followed = moved::follow(&running.object.maps, &running.devices).map_err(|error| {
            ApplyError::step("leading flows to devices that were made anew", error)
        });
        attached.and(followed)
    }

    /// Everything but programs on devices.
    fn write(&mut self, running: &mut Running, new: Compiled<'_>) -> Result<(), ApplyError> {
        let Compiled { table, mut image, slots, devices, local } = new;
        kernel::set_links(&running.object.maps, &devices)
            .and_then(|()| kernel::set_local(&running.object.maps, &running.local, &local))
            .map_err(|error| ApplyError::step("writing devices", error))?;
        running.local = local;
        let hops = Running::hops(&mut running.neighbours, &image, &devices);
        for target in image.targets.values_mut() {
            target.hop = hop_of(&hops, target);
        }
        image.globals.ifindex = ifindexes(&devices);
        image.globals.stance = kernel::stance(self.stance);
        image.globals.flags |= csum_flag();
        install::install(&running.object.maps, &running.image, &image)
            .and_then(|()| kernel::set_series(&running.object.maps, &running.image, &image))
            .and_then(|()| running.object.maps.globals.set(&0, &image.globals))
            .map_err(|error| ApplyError::step("writing the rule maps", error))?;
        running.slots = slots;
        running.image = image;
        running.devices = devices;
        running.hops = hops;
        running.changed = neigh::Changed::default();
        running.renew_at = kernel::now() + neigh::RENEW_AFTER;
        running.table = table.clone();
        Ok(())
    }

    /// Keeps the counts of rules that are gone here, where they need no room in the maps. Nothing counts there any more:
    /// the rules left the maps with an earlier table, and no flow names them.
    fn reclaim(&mut self, running: &mut Running) -> Result<(), ApplyError> {
        let failed = |error| ApplyError::step("reading counters", error);
        let named = kernel::counters_in_use(&running.object.maps).map_err(failed)?;
        let (counters, noted) = (&running.object.maps.counters, &running.object.maps.series);
        for (index, series) in running.slots.reclaim_counters(&named) {
            let count = maps::counter(counters, index, self.cpus).map_err(failed)?;
            maps::clear(counters, index, self.cpus).map_err(failed)?;
            noted.remove(&image::series_hash(&series)).map_err(failed)?;
            running.image.counters.remove(&index);
            let sum = self.base.series.entry(series).or_default();
            *sum = sum.plus(kernel::count(count));
        }
        Ok(())
    }

    fn read_counters(&self, running: &Running) -> io::Result<Snapshot> {
        let mut snapshot = self.base.clone();
        let counts = kernel::all_counters(&running.object.maps.counters, self.cpus)?;
        for (index, series) in &running.image.counters {
            let count = counts.get(*index as usize).copied().unwrap_or_default();
            let sum: &mut Count = snapshot.series.entry(series.clone()).or_default();
            *sum = sum.plus(kernel::count(count));
        }
        for reason in DropReason::ALL {
            let packets = maps::number(&running.object.maps.drops, *reason as u32, self.cpus)?;
            *snapshot.drops.entry(*reason).or_default() += packets;
        }
        snapshot.live_flows = running.ager.live();
        snapshot.max_flows = Some(u64::from(running.table.settings().max_flows));
        Ok(snapshot)
    }

    /// Live flows with both halves, and how many halves were alone: for tests of the table's integrity.
    pub fn flow_pairs(&self) -> Result<(u64, u64), CounterError> {
        let Some(running) = &self.running else { return Ok((0, 0)) };
        kernel::pairs(&running.object.maps).map_err(|error| counter_error("reading flows", error))
    }
}

fn counter_error(step: &str, error: io::Error) -> CounterError {
    CounterError { step: step.to_owned(), source: Box::new(error) }
}

/// Whether the checksum helper knows `BPF_F_IPV6`.
fn csum_flag() -> u8 {
    let known = aya::util::KernelVersion::current()
        .is_ok_and(|version| version >= aya::util::KernelVersion::new(6, 16, 0));
    if known { stance::flags::CSUM_IPV6 } else { 0 }
}

impl DataPath for EbpfPath {
    fn kind(&self) -> Kind {
        Kind::Ebpf
    }

    fn supports(&self, table: &RuleTable) -> Result<(), Unsupported> {
        kernel::capabilities()?;
        for rule in table.rules() {
            if let Action::Dnat { proxy_protocol: true, .. } = rule.action {
                return Err(Unsupported::Feature {
                    rule: rule.id.to_string(),
                    feature: "the PROXY protocol",
                });
            }
        }
        let addresses = device::addresses().unwrap_or_default();
        device::devices(&table.settings().interfaces, &addresses)
            .map_err(|(name, _)| Unsupported::Interface(name))?;
        if self.running.is_some() {
            return Ok(());
        }
        load::open(Capacity::of(&MapImage::default(), (1, 1, 1), 16), None).map(drop)
    }

    /// The verifier takes a while for each program.
    fn prepare(&mut self, table: &RuleTable) -> Result<(), ApplyError> {
        if self.running.is_some() || self.is_left() {
            return Ok(());
        }
        kernel::capabilities()?;
        let mut running = self.start(table)?;
        for name in attach::likely_programs(&table.settings().interfaces) {
            load::load(&mut running.object.ebpf, name)?;
        }
        self.running = Some(running);
        Ok(())
    }

    fn apply(&mut self, table: &RuleTable) -> Result<(), ApplyError> {
        for rule in table.rules() {
            if let Action::Dnat { proxy_protocol: true, .. } = rule.action {
                let feature = "the PROXY protocol";
                return Err(Unsupported::Feature { rule: rule.id.to_string(), feature }.into());
            }
        }
        if self.running.is_none() {
            kernel::capabilities()?;
        }
        self.install(table)
    }

    fn counters(&self) -> Result<Snapshot, CounterError> {
        match &self.running {
            Some(running) => self
                .read_counters(running)
                .map_err(|error| counter_error("reading counters", error)),
            None => Ok(self.base.clone()),
        }
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        running.attachments.remove(&mut running.object.ebpf);
        // No packet can be counted after this reading.
        let counted = self.read_counters(&running);
        if let Some(pins) = &running.pins {
            load::remove_directory(pins);
            if let Some(ours) = pins.parent() {
                let _others = std::fs::remove_dir(ours);
                let _others = ours.parent().map(std::fs::remove_dir);
            }
        }
        let counted = counted.map_err(|error| ApplyError::step("reading counters", error))?;
        self.base = Snapshot { live_flows: None, max_flows: None, ..counted };
        Ok(())
    }

    fn flows(&self) -> Result<Vec<Flow>, CounterError> {
        let Some(running) = &self.running else { return Ok(Vec::new()) };
        let names: HashMap<u32, &Series> =
            running.image.counters.iter().map(|(index, series)| (*index, series)).collect();
        kernel::flows(&running.object.maps, &names)
            .map_err(|error| counter_error("reading flows", error))
    }

    fn adopt(&mut self, flows: &[Flow]) -> Result<usize, ApplyError> {
        let Some(running) = &self.running else { return Ok(0) };
        let now = kernel::now();
        let mut taken = 0;
        for flow in flows {
            let key = flows::key(flow);
            let Some(place) = running.place(flow) else { continue };
            let [original, reply] = flows::import(flow, &key, &place, now);
            let failed = |error| ApplyError::step("writing flows", error);
            let maps = &running.object.maps.flows;
            if maps.insert_new(&original.pair_key(&key), &reply).map_err(failed)?
                | maps.insert_new(&key, &original).map_err(failed)?
            {
                taken += 1;
            }
        }
        Ok(taken)
    }

    /// Programs that are not pinned end with their process (clsact filters are replaced when programs are attached).
    fn is_left(&self) -> bool {
        self.running.is_none() && self.options.bpffs.as_deref().is_some_and(load::has_links)
    }

    fn set_stance(&mut self, stance: Stance) -> Result<(), ApplyError> {
        self.stance = stance;
        let number = kernel::stance(stance);
        let Some(running) = &mut self.running else { return Ok(()) };
        running.image.globals.stance = number;
        let globals: Globals = running.image.globals;
        running
            .object
            .maps
            .globals
            .set(&0, &globals)
            .map_err(|error| ApplyError::step("writing the stance", error))?;
        sys::settle();
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let refused = self.attachments().iter().flat_map(|attachment| {
            attachment.notes.iter().map(move |note| format!("{}: {note}", attachment.device))
        });
        self.notes.iter().cloned().chain(refused).collect()
    }

    fn look(&mut self) -> Result<(), ApplyError> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        let result = self.keep_surroundings(&mut running);
        self.running = Some(running);
        result
    }

    fn maintain(&mut self) -> Result<(), ApplyError> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        let result = self.keep_up(&mut running);
        self.running = Some(running);
        result
    }
}
