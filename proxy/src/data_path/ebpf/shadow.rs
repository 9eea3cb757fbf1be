//! The kernel programs beside the traffic: loaded, attached to nothing, and asked about one packet at a time
//! (`BPF_PROG_TEST_RUN`). For `explain`, and for tests that need no devices.
//!
//! The kernel lets such packets arrive on the loopback device of the current namespace, so the link that a packet comes
//! from is put there first; the links that packets leave by have indices that no device has, and nothing is sent.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use aya::programs::{Program, ProgramError, TestRun, TestRunOptions, TestRunResult};
use proxy_ebpf_common::{DropReason, FragmentKey, FragmentPorts, Link, clock, link, name};
use proxy_rules::{RuleTable, Side, Snapshot};

use super::{
    counter_error, gc,
    image::{self, MapImage, Slots, address},
    install, kernel,
    load::{self, Capacity, Object},
    maps,
};
use crate::data_path::{ApplyError, CounterError, Stance, Unsupported};

/// Where the kernel lets test packets arrive.
const LOOPBACK: u32 = 1;
/// Indices of the links that packets leave by, by side: far above any that the kernel hands out.
const WAYS_OUT: [u32; 2] = [0x7fff_fffe, 0x7fff_ffff];
/// The most by which an answer outgrows its packet: an IPv6 and an ICMP header, and a link header.
const GROWTH: usize = 128;

/// Keys and values as plain bytes: they are only removed.
type FragmentMap<'a> = aya::maps::HashMap<
    &'a mut aya::maps::MapData,
    [u8; size_of::<FragmentKey>()],
    [u8; size_of::<FragmentPorts>()],
>;

/// A link that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowLink {
    /// Its side.
    pub side: Side,
    /// No Ethernet header. Packets of [`Shadow::run`] have one all the same: the kernel demands it.
    pub l3: bool,
    /// MTU.
    pub mtu: u16,
    /// Its IPv4 address, for masquerade.
    pub address4: Option<Ipv4Addr>,
    /// Its IPv6 address, for masquerade.
    pub address6: Option<Ipv6Addr>,
}

/// What a program did with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What it returned: `TC_ACT_UNSPEC` (-1), `TC_ACT_SHOT` (2), `TC_ACT_REDIRECT` (7); for XDP an `xdp_action`.
    pub action: i32,
    /// The frame as it was then.
    pub frame: Vec<u8>,
}

/// The loaded programs.
#[derive(Debug)]
pub struct Shadow {
    object: Object,
    links: Vec<Link>,
    image: MapImage,
    slots: Slots,
    stance: Stance,
    arriving: Option<Link>,
    ager: gc::Ager,
    cpus: usize,
}

impl Shadow {
    /// Loads the programs with this table between at most one link a side, on a host with these addresses.
    pub fn new(
        table: &RuleTable,
        links: &[ShadowLink],
        local: &[IpAddr],
    ) -> Result<Self, ApplyError> {
        let mut slots = Slots::default();
        let image = image::compile(table, &mut slots);
        let capacity = Capacity::of(&image, slots.sizes(), table.settings().max_flows);
        let object = load::open(capacity, None)?;
        let links: Vec<Link> = links.iter().map(ShadowLink::facts).collect();
        let mut local: Vec<_> = local.iter().map(|ip| address(*ip)).collect();
        local.sort_unstable();
        kernel::set_local(&object.maps, &[], &local)
            .and_then(|()| {
                links.iter().try_for_each(|link| {
                    object.maps.links.set(&way_out(link.side).unwrap_or(LOOPBACK), link)
                })
            })
            .map_err(|error| ApplyError::step("writing links", error))?;
        let mut shadow = Self {
            object,
            links,
            image: MapImage::default(),
            slots: Slots::default(),
            stance: Stance::All,
            arriving: None,
            ager: gc::Ager::default(),
            cpus: aya::util::nr_cpus().unwrap_or(1),
        };
        shadow.apply(table)?;
        Ok(shadow)
    }

    /// Puts another table in force; flows and counters stay.
    pub fn apply(&mut self, table: &RuleTable) -> Result<(), ApplyError> {
        let mut slots = self.slots.clone();
        let mut image = image::compile(table, &mut slots);
        let max_flows = table.settings().max_flows;
        if !Capacity::held(&self.object.maps).fits(&image, slots.sizes(), max_flows) {
            let limit = Capacity::held(&self.object.maps).ports as usize;
            return Err(ApplyError::TooMany {
                what: "map elements",
                wanted: image.ports.len(),
                limit,
            });
        }
        let has = |side: u8| self.links.iter().any(|link| link.side == side);
        image.globals.ifindex =
            [proxy_ebpf_common::side::TAILNET, proxy_ebpf_common::side::CLUSTER]
                .map(|side| way_out(side).filter(|_| has(side)).unwrap_or(0));
        image.globals.flags |= super::csum_flag();
        image.globals.stance = kernel::stance(self.stance);
        install::install(&self.object.maps, &self.image, &image)
            .and_then(|()| self.object.maps.globals.set(&0, &image.globals))
            .map_err(|error| ApplyError::step("writing the rule maps", error))?;
        self.slots = slots;
        self.image = image;
        Ok(())
    }

    /// As if loaded anew with this table, in a fraction of the time. `TooMany` where the maps do not suit it.
    pub fn start_over(&mut self, table: &RuleTable) -> Result<(), ApplyError> {
        self.forget().map_err(|error| ApplyError::step("emptying the maps", error))?;
        self.slots = Slots::default();
        self.stance = Stance::All;
        self.apply(table)
    }

    /// Removes flows, fragments and counts.
    fn forget(&mut self) -> io::Result<()> {
        let maps = &self.object.maps;
        let mut flows = Vec::new();
        maps.flows.walk(|key, _| flows.push(*key))?;
        maps.flows.remove_all(&flows)?;
        for index in 0..maps.counters.capacity() {
            maps::clear(&maps.counters, index, self.cpus)?;
        }
        for reason in DropReason::ALL {
            maps::clear(&maps.drops, *reason as u32, self.cpus)?;
        }
        if let Some(map) = self.object.ebpf.map_mut(name::FRAGMENTS) {
            let mut fragments: FragmentMap<'_> = map.try_into().map_err(io::Error::other)?;
            let keys: Vec<_> = fragments.keys().filter_map(Result::ok).collect();
            for key in keys {
                fragments.remove(&key).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// Changes what happens to unknown flows.
    pub fn set_stance(&mut self, stance: Stance) -> Result<(), ApplyError> {
        self.stance = stance;
        self.image.globals.stance = kernel::stance(stance);
        let globals = self.image.globals;
        let set = self.object.maps.globals.set(&0, &globals);
        set.map_err(|error| ApplyError::step("writing the stance", error))
    }

    /// What the TC program of an Ethernet device of this side does with a frame of at least 14 bytes.
    pub fn run(&mut self, side: Side, frame: &[u8]) -> Result<Verdict, ApplyError> {
        let program = match side {
            Side::Tailnet => name::TC_L2_TAILNET,
            Side::Cluster => name::TC_L2_CLUSTER,
        };
        self.ask(program, side, frame)
    }

    /// What the XDP program of a device of this side does with a frame.
    pub fn run_xdp(&mut self, side: Side, frame: &[u8]) -> Result<Verdict, ApplyError> {
        let program = match side {
            Side::Tailnet => name::XDP_TAILNET,
            Side::Cluster => name::XDP_CLUSTER,
        };
        self.ask(program, side, frame)
    }

    fn ask(&mut self, name: &str, side: Side, frame: &[u8]) -> Result<Verdict, ApplyError> {
        load::load(&mut self.object.ebpf, name)?;
        let failed = |error: ProgramError| ApplyError::step(format!("running {name}"), error);
        let arriving = self.links.iter().find(|link| link.side == image::side(side)).copied();
        if arriving != self.arriving {
            let links = &self.object.maps.links;
            let set = match &arriving {
                Some(link) => links.set(&LOOPBACK, link),
                None => links.remove(&LOOPBACK),
            };
            set.map_err(|error| ApplyError::step("writing links", error))?;
            self.arriving = arriving;
        }
        let mut out = vec![0; frame.len() + GROWTH];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::default()
        };
        let result: TestRunResult = match self.object.ebpf.program(name) {
            Some(Program::SchedClassifier(program)) => program.test_run(options).map_err(failed)?,
            Some(Program::Xdp(program)) => program.test_run(options).map_err(failed)?,
            _ => return Err(Unsupported::BuiltWithout.into()),
        };
        out.truncate(result.data_size_out as usize);
        Ok(Verdict { action: result.return_value as i32, frame: out })
    }

    /// Counters of series and drops.
    pub fn counters(&self) -> Result<Snapshot, CounterError> {
        let maps = &self.object.maps;
        let failed = |error| counter_error("reading counters", error);
        let counts = kernel::all_counters(&maps.counters, self.cpus).map_err(failed)?;
        let mut snapshot = Snapshot::default();
        for (index, series) in &self.image.counters {
            let count = counts.get(*index as usize).copied().unwrap_or_default();
            let sum = snapshot.series.entry(series.clone()).or_default();
            *sum = sum.plus(kernel::count(count));
        }
        for reason in DropReason::ALL {
            let packets = maps::number(&maps.drops, *reason as u32, self.cpus).map_err(failed)?;
            snapshot.drops.insert(*reason, packets);
        }
        Ok(snapshot)
    }

    /// How many packets were dropped for a reason.
    pub fn drops(&self, reason: DropReason) -> Result<u64, CounterError> {
        maps::number(&self.object.maps.drops, reason as u32, self.cpus)
            .map_err(|error| counter_error("reading counters", error))
    }

    /// One turn of the ageing that an agent does every second, with a clock that is ahead; whether it ended a round.
    pub fn age(&mut self, ahead: Duration) -> Result<bool, ApplyError> {
        let ahead = u32::try_from(clock::from_seconds(ahead.as_secs())).unwrap_or(u32::MAX);
        let now = kernel::now().saturating_add(ahead);
        let maps = &self.object.maps;
        let max_flows = u64::from(maps.flows.capacity() / 2);
        self.ager
            .turn(maps, now, max_flows)
            .map_err(|error| ApplyError::step("ageing flows", error))
    }

    /// Flows with both halves, and halves that are alone.
    pub fn flow_pairs(&self) -> Result<(u64, u64), CounterError> {
        kernel::pairs(&self.object.maps).map_err(|error| counter_error("reading flows", error))
    }
}

fn way_out(side: u8) -> Option<u32> {
    WAYS_OUT.get(usize::from(side)).copied()
}

impl ShadowLink {
    fn facts(&self) -> Link {
        Link {
            address4: self.address4.map_or([0; 16], |ip| address(ip.into())),
            address6: self.address6.map_or([0; 16], |ip| address(ip.into())),
            mtu: self.mtu,
            side: image::side(self.side),
            flags: if self.l3 { link::L3 } else { 0 },
        }
    }
}
