//! Ageing: the flow table is walked a stretch a second, in batches, whole flows at a time.

use std::{io, mem};

use proxy_ebpf_common::{FlowHalf, FlowKey, clock, half};

use super::{
    flow_table::{Family, Walk},
    flows,
    maps::Maps,
};

/// Entries looked at in one turn: a few milliseconds.
const STRETCH: usize = 32_768;
/// Ticks just below the shortest time-out (`FlowState::Closed`): younger entries are not looked at further.
const SHORTEST: u32 = 9;

/// What becomes of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It stays.
    Keep,
    /// Its time is over, or the table is full and it is not assured.
    Remove,
}

/// Decides on a whole flow.
pub(super) fn fate(
    key: &FlowKey,
    original: &FlowHalf,
    reply: Option<&FlowHalf>,
    now: u32,
    crowded: bool,
) -> Fate {
    let Some(protocol) = flows::protocol(key) else { return Fate::Remove };
    let state = flows::state(key, original, reply);
    let idle = clock::seconds(now.saturating_sub(flows::last_seen(original, reply)));
    if idle >= state.timeout(protocol).as_secs() || (crowded && !state.is_assured() && idle >= 1) {
        Fate::Remove
    } else {
        Fate::Keep
    }
}

/// Walks through the flow table.
#[derive(Debug, Default)]
pub(super) struct Ager {
    walk: Walk,
    /// The two families' maps fill up apart.
    v4: Seen,
    v6: Seen,
    /// Flows removed since the start.
    pub(super) removed: u64,
    /// Halves rebuilt since the start.
    pub(super) rebuilt: u64,
}

/// Flows seen so far in this round, and in the last whole one.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    now: u64,
    live: Option<u64>,
}

impl Seen {
    fn is_crowded(self, max_flows: u64) -> bool {
        self.live.unwrap_or(0).max(self.now).saturating_mul(10) > max_flows.saturating_mul(9)
    }
}

impl Ager {
    /// Live flows, as of the last whole round; `None` before the first.
    pub(super) fn live(&self) -> Option<u64> {
        Some(self.v4.live? + self.v6.live?)
    }

    fn seen(&mut self) -> &mut Seen {
        match self.walk.family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// One turn; whether it ended a round. `max_flows`: of each family.
    pub(super) fn turn(&mut self, maps: &Maps, now: u32, max_flows: u64) -> io::Result<bool> {
        let mut looked_at = 0;
        while looked_at < STRETCH {
            let crowded = self.seen().is_crowded(max_flows);
            let over = maps.flows.step(&mut self.walk)?;
            looked_at += self.walk.found.len();
            let found = mem::take(&mut self.walk.found);
            for (key, value) in &found {
                self.entry(maps, key, value, now, crowded)?;
            }
            self.walk.found = found;
            if over {
                let seen = self.seen();
                *seen = Seen { now: 0, live: Some(seen.now) };
                if self.walk.turn_to_other() == Family::V4 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn entry(
        &mut self,
        maps: &Maps,
        key: &FlowKey,
        value: &FlowHalf,
        now: u32,
        crowded: bool,
    ) -> io::Result<()> {
        let is_original = value.flags & half::REPLY == 0;
        self.seen().now += u64::from(is_original);
        if now.saturating_sub(value.last_seen) < SHORTEST && !crowded {
            return Ok(());
        }
        let pair_key = value.pair_key(key);
        let pair = maps.flows.get(&pair_key)?;
        if is_original {
            if fate(key, value, pair.as_ref(), now, crowded) == Fate::Remove {
                // The reply half first: a flow without it is rebuilt, one without the original half is not found.
                maps.flows.remove(&pair_key)?;
                maps.flows.remove(key)?;
                self.removed += 1;
                let seen = self.seen();
                seen.now = seen.now.saturating_sub(1);
                // A crowded table gives up what is too much, not all that may be given up.
                seen.live = seen.live.map(|live| live.saturating_sub(1));
            } else if pair.is_none() {
                self.rebuild(maps, key, value)?;
            }
        } else if pair.is_none() {
            // A reply half that never carried a packet is what a refused or killed creation leaves behind.
            if value.last_seen == 0 || now.saturating_sub(value.last_seen) >= 120 {
                maps.flows.remove(key)?;
            } else {
                self.rebuild(maps, key, value)?;
            }
        }
        Ok(())
    }

    fn rebuild(&mut self, maps: &Maps, key: &FlowKey, value: &FlowHalf) -> io::Result<()> {
        // What was read with a batch may be gone since: with the flow, removed when its other half came up in the batch.
        if maps.flows.get(key)?.is_none() {
            return Ok(());
        }
        let pair = FlowHalf {
            src: key.dst,
            dst: key.src,
            src_port: key.dst_port,
            dst_port: key.src_port,
            flags: value.flags ^ half::REPLY,
            tcp: 0,
            last_seen: 0,
            mtu: 0,
            hop: proxy_ebpf_common::Hop::default(),
            ..*value
        };
        if maps.flows.insert_new(&value.pair_key(key), &pair)? {
            self.rebuilt += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
