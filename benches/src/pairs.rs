//! The flow table driven past its capacity: nothing may be left with one half.

use anyhow::{Context, Result};
use aya::maps::{HashMap, Map, MapData, loaded_maps};
use proxy_ebpf_common::{FlowHalf, FlowKey, FlowKeyV4, name};
use proxy_rules::Protocol;

use crate::{
    generator::{self, Generator, Limit, Workload},
    kernel::Kernel,
    rig::{Entry, Rig},
    rung::Rung,
};

const CAPACITY: u32 = 1 << 14;

/// What is in the table afterwards.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub halves: usize,
    pub without_pair: usize,
}

/// Sends twice as many flows as fit, then looks at every half.
pub fn overfill() -> Result<Found> {
    let rig = Rig::new(1, Entry::Frames)?;
    let lane = rig.lanes.first().context("a rig without lanes")?;
    let rung = Rung::SluiceTc;
    let _fitting = rung.install(lane, Protocol::Udp, 1, CAPACITY)?;
    let mut sink = Kernel::load()?;
    sink.configure(generator::counting())?;
    sink.attach_xdp("bench_sink", &rig.receiver, &lane.receiver_device())?;
    let workload = Workload { flows: 2 * CAPACITY, ports: 1 };
    let limit = Limit::Packets(8 * u64::from(CAPACITY));
    Generator::new()?.run(&rig, lane, rung.path(), workload, limit, &sink)?;

    let flows = newest_flow_table()?;
    let halves = flows.iter().collect::<Result<Vec<(FlowKeyV4, FlowHalf)>, _>>()?;
    let without_pair = halves.iter().filter(|(key, half)| is_alone(&flows, *key, half)).count();
    Ok(Found { halves: halves.len(), without_pair })
}

fn is_alone(
    flows: &HashMap<MapData, FlowKeyV4, FlowHalf>,
    key: FlowKeyV4,
    half: &FlowHalf,
) -> bool {
    let pair = half.pair_key(&FlowKey::from(key)).v4();
    pair.is_none_or(|pair| flows.get(&pair, 0).is_err())
}

/// The flow table (of IPv4) that was made last: the lane's own, as no other path is in force now.
pub fn newest_flow_table() -> Result<HashMap<MapData, FlowKeyV4, FlowHalf>> {
    let mut newest = None;
    for map in loaded_maps() {
        let map = map?;
        if map.name_as_str() == Some(name::FLOWS_V4) {
            newest = newest.max(Some(map.id()));
        }
    }
    let id = newest.context("no flow table is loaded")?;
    Ok(HashMap::try_from(Map::HashMap(MapData::from_id(id)?))?)
}
