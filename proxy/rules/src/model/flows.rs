//! The flow table: each flow once, found by the tuple of either direction.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use proxy_ebpf_common::FlowKey;

use crate::{
    Flow, FlowState, Protocol, RuleId, Series, Side,
    packet::{Headers, ICMPV6, flag},
};

/// A tuple as it arrives on a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// Source.
    pub src: SocketAddr,
    /// Destination.
    pub dst: SocketAddr,
    /// Protocol; ports are the identifier for ICMP.
    pub protocol: Protocol,
    /// Where it arrives.
    pub side: Side,
}

impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { src, dst, protocol, side } = self;
        write!(f, "{protocol} {src} -> {dst} from the {side} side")
    }
}

impl Tuple {
    /// The tuple of a packet, unless its protocol has none.
    pub fn of(headers: &Headers, side: Side) -> Option<Self> {
        let protocol = match headers.protocol {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            1 | ICMPV6 => Protocol::Icmp,
            _ => return None,
        };
        let src = SocketAddr::new(headers.src, headers.src_port);
        let dst = SocketAddr::new(headers.dst, headers.dst_port);
        Some(Self { src, dst, protocol, side })
    }

    /// As the hash function takes it.
    pub(super) fn map_key(&self) -> FlowKey {
        let address = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        FlowKey {
            src: address(self.src.ip()),
            dst: address(self.dst.ip()),
            src_port: self.src.port().to_be_bytes(),
            dst_port: self.dst.port().to_be_bytes(),
            protocol: self.protocol.number(),
            ..FlowKey::default()
        }
    }
}

/// One flow.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Original direction, as it arrives.
    pub(super) original: Tuple,
    /// Reply direction, as it arrives.
    pub(super) reply: Tuple,
    pub(super) rule: RuleId,
    /// The backend's port by the rule; `None` = the frontend's.
    pub(super) backend_port: Option<u16>,
    pub(super) is_dnat: bool,
    pub(super) series: Series,
    pub(super) mss: u16,
    /// What was seen: original, reply.
    pub(super) seen: [Seen; 2],
}

/// What was seen of one direction.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags of the protocol")]
pub(super) struct Seen {
    at: Option<Duration>,
    syn: bool,
    fin: bool,
    rst: bool,
    open: bool,
}

impl Seen {
    pub(super) fn note(&mut self, flags: Option<u8>, now: Duration) {
        self.at = Some(now);
        let Some(flags) = flags else { return };
        self.rst = flags & flag::RST != 0;
        if flags & flag::SYN != 0 {
            self.syn = true;
        } else if flags & flag::ACK != 0 {
            self.open = true;
        }
        self.fin |= flags & flag::FIN != 0;
    }
}

impl Entry {
    fn family(&self) -> Family {
        Family::of(self.original.dst.ip())
    }

    /// Reset, or ended by both sides.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state(), FlowState::Closed | FlowState::TimeWait)
    }

    pub(super) fn state(&self) -> FlowState {
        let [original, reply] = self.seen;
        if self.original.protocol != Protocol::Tcp {
            let both = original.at.is_some() && reply.at.is_some();
            return if both { FlowState::Replied } else { FlowState::Unreplied };
        }
        match () {
            () if original.rst || reply.rst => FlowState::Closed,
            () if original.fin && reply.fin => FlowState::TimeWait,
            () if original.fin || reply.fin => FlowState::FinWait,
            () if original.open && (reply.syn || reply.open) => FlowState::Established,
            () if reply.syn => FlowState::SynReceived,
            () => FlowState::SynSent,
        }
    }

    fn idle(&self, now: Duration) -> Duration {
        let last = self.seen.iter().filter_map(|seen| seen.at).max().unwrap_or_default();
        now.saturating_sub(last)
    }
}

/// A direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) id: u64,
    pub(super) is_reply: bool,
}

/// The flow table.
#[derive(Clone, Debug, Default)]
pub struct Flows {
    entries: BTreeMap<u64, Entry>,
    by_tuple: HashMap<Tuple, Place>,
    next: u64,
    /// Flows of IPv4 and of IPv6.
    live: [usize; 2],
}

/// Each family has a table of its own, as on the eBPF path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl Flows {
    /// How many flows.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many flows of a family.
    pub(super) fn len_of(&self, family: Family) -> usize {
        let [v4, v6] = self.live;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    fn live_mut(&mut self, family: Family) -> &mut usize {
        let [v4, v6] = &mut self.live;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn find(&self, tuple: &Tuple) -> Option<Place> {
        self.by_tuple.get(tuple).copied()
    }

    pub(super) fn entry(&self, id: u64) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(super) fn entry_mut(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    /// The side that a direction leaves by: where the other one arrives.
    pub(super) fn leaves_by(&self, place: Place) -> Option<Side> {
        let entry = self.entry(place.id)?;
        Some(if place.is_reply { entry.original.side } else { entry.reply.side })
    }

    pub(super) fn insert(&mut self, entry: Entry) -> Place {
        let id = self.next;
        self.next += 1;
        self.by_tuple.insert(entry.original, Place { id, is_reply: false });
        self.by_tuple.insert(entry.reply, Place { id, is_reply: true });
        *self.live_mut(entry.family()) += 1;
        self.entries.insert(id, entry);
        Place { id, is_reply: false }
    }

    pub(super) fn remove(&mut self, id: u64) {
        if let Some(entry) = self.entries.remove(&id) {
            self.by_tuple.remove(&entry.original);
            self.by_tuple.remove(&entry.reply);
            *self.live_mut(entry.family()) -= 1;
        }
    }

    pub(super) fn age(&mut self, now: Duration, capacity: u32) {
        let over = |entry: &Entry| entry.idle(now) > entry.state().timeout(entry.original.protocol);
        let old: Vec<u64> =
            self.entries.iter().filter(|(_, entry)| over(entry)).map(|(id, _)| *id).collect();
        for id in old {
            self.remove(id);
        }
        let full = capacity as usize / 10 * 9;
        for family in [Family::V4, Family::V6] {
            if self.len_of(family) <= full {
                continue;
            }
            let mut weak: Vec<(Duration, u64)> = self
                .entries
                .iter()
                .filter(|(_, entry)| entry.family() == family && !entry.state().is_assured())
                .map(|(id, entry)| (entry.idle(now), *id))
                .collect();
            weak.sort_unstable_by(|a, b| b.cmp(a));
            let surplus = self.len_of(family) - full;
            for (_, id) in weak.into_iter().take(surplus) {
                self.remove(id);
            }
        }
    }

    pub(super) fn export(&self, now: Duration) -> Vec<Flow> {
        let flow = |entry: &Entry| Flow {
            rule: Some(entry.rule.clone()),
            protocol: entry.original.protocol,
            from: entry.original.side,
            client: entry.original.src,
            frontend: entry.original.dst,
            source: entry.reply.dst,
            backend: entry.reply.src,
            state: entry.state(),
            idle: entry.idle(now),
        };
        self.entries.values().map(flow).collect()
    }
}
