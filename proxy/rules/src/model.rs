//! The specification: what a packet meets. Slow and obvious on purpose: rules are searched one after the other, and
//! checksums of whole packets are computed from scratch, so the output is defined for packets whose checksums are right.
//! It shares with the kernel programs only what is part of the table's meaning: drop reasons, the tuple hash, Maglev.
//!
//! Every data path must agree with it, byte for byte except for Ethernet addresses (zero here).

mod answer;
mod carry;
mod decide;
mod flows;
mod icmp;
mod nat;

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

pub use flows::{Flows, Tuple};

use crate::{
    DropReason, Flow, Fragments, Protocol, RuleTable, Series, Side, Snapshot,
    packet::{self, Fragment, Headers, Kind, Refusal},
};

/// The world around the table.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// The device of the tailnet side; `None` = there is none.
    pub tailnet: Option<Device>,
    /// The device of the cluster side.
    pub cluster: Option<Device>,
    /// Addresses of this host.
    pub local: HashSet<IpAddr>,
    /// Sockets of this host.
    pub sockets: Vec<Socket>,
    /// Packets of unknown flows are left to the kernel.
    pub known_flows_only: bool,
}

/// A network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its IPv4 address, for masquerade.
    pub address4: Option<Ipv4Addr>,
    /// Its IPv6 address, for masquerade.
    pub address6: Option<Ipv6Addr>,
    /// MTU.
    pub mtu: u16,
    /// Without Ethernet header.
    pub l3: bool,
}

/// A socket of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Its own address; an unspecified one stands for every address of its family.
    pub local: SocketAddr,
    /// The other end of a connected one.
    pub remote: Option<SocketAddr>,
}

impl Env {
    /// The device of a side.
    pub const fn device(&self, side: Side) -> Option<&Device> {
        match side {
            Side::Tailnet => self.tailnet.as_ref(),
            Side::Cluster => self.cluster.as_ref(),
        }
    }
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the kernel's.
    Pass,
    /// It leaves by the device of a side, as these bytes.
    Forward {
        /// Which side.
        side: Side,
        /// The packet, with Ethernet header (addresses zero) if the device has them.
        bytes: Vec<u8>,
    },
    /// It is dropped, and its sender is told with these bytes on the device it came from.
    Answer {
        /// The answer.
        bytes: Vec<u8>,
        /// Why.
        reason: DropReason,
    },
    /// It is dropped in silence.
    Drop(DropReason),
}

/// What becomes of a packet, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What.
    pub verdict: Verdict,
    /// The series that counted it, as carried or as dropped.
    pub series: Option<Series>,
    /// The steps that led there, for people.
    pub trace: Vec<String>,
}

/// The table in its world, with the flows so far.
#[derive(Clone, Debug)]
pub struct Model {
    table: RuleTable,
    env: Env,
    flows: Flows,
    fragments: HashMap<FragmentKey, (u16, u16)>,
    counters: Snapshot,
    now: Duration,
}

/// Where a packet is while it is looked at.
struct Step<'a> {
    headers: Headers,
    packet: &'a [u8],
    side: Side,
    series: Option<Series>,
    trace: Vec<String>,
}

/// How a step ends early.
#[derive(Debug)]
enum Stop {
    Pass,
    Drop(DropReason),
    /// Dropped, and the sender told where that is allowed.
    Answer(DropReason),
}

impl Model {
    /// No flows yet.
    pub fn new(table: RuleTable, env: Env) -> Self {
        Self {
            table,
            env,
            flows: Flows::default(),
            fragments: HashMap::new(),
            counters: Snapshot::default(),
            now: Duration::ZERO,
        }
    }

    /// Puts another table in force. Flows stay; those whose backend is gone end with their next packet.
    pub fn apply(&mut self, table: RuleTable) {
        self.table = table;
    }

    /// The world, to be changed.
    pub const fn env_mut(&mut self) -> &mut Env {
        &mut self.env
    }

    /// The table in force.
    pub const fn table(&self) -> &RuleTable {
        &self.table
    }

    /// Sets the clock and removes the flows whose time is over; if the table is over 90 % full, then unassured ones too,
    /// those idle longest first.
    pub fn age(&mut self, now: Duration) {
        self.now = now;
        self.flows.age(now, self.table.settings().max_flows);
    }

    /// The live flows.
    pub fn flows(&self) -> Vec<Flow> {
        self.flows.export(self.now)
    }

    /// What was counted so far.
    pub fn counters(&self) -> Snapshot {
        Snapshot {
            live_flows: Some(self.flows.len() as u64),
            max_flows: Some(self.table.settings().max_flows.into()),
            ..self.counters.clone()
        }
    }

    /// What becomes of a packet that arrives on the device of a side: an Ethernet frame, unless the device has none.
    pub fn process(&mut self, side: Side, bytes: &[u8]) -> Outcome {
        let is_l3 = self.env.device(side).is_none_or(|device| device.l3);
        let read = if is_l3 {
            packet::parse(bytes, None).map(|headers| (headers, bytes))
        } else {
            packet::strip_ethernet(bytes).and_then(|ip| {
                let v6 = packet::word(bytes, packet::ETHERNET - 2) == Some(0x86dd);
                packet::parse(ip, Some(v6)).map(|headers| (headers, ip))
            })
        };
        let (headers, packet) = match read {
            Ok(read) => read,
            Err(Refusal::NotIp) => {
                let trace = vec!["not IP, or not to this device: left to the kernel".to_owned()];
                return Outcome { verdict: Verdict::Pass, series: None, trace };
            }
            Err(Refusal::Malformed) => {
                let reason = DropReason::Malformed;
                self.count_drop(reason, None);
                let trace = vec!["the headers are cut short or contradict each other".to_owned()];
                return Outcome { verdict: Verdict::Drop(reason), series: None, trace };
            }
        };
        let mut step = Step { headers, packet, side, series: None, trace: Vec::new() };
        let verdict = match self.run(&mut step) {
            Ok((to, bytes)) => {
                step.say(format!("leaves by the {to} side"));
                Verdict::Forward { side: to, bytes: self.frame(to, bytes, headers.is_ipv6()) }
            }
            Err(Stop::Pass) => {
                step.say("left to the kernel");
                Verdict::Pass
            }
            Err(Stop::Drop(reason)) => {
                self.count_drop(reason, step.series.as_ref());
                step.say(format!("dropped: {}", reason.label()));
                Verdict::Drop(reason)
            }
            Err(Stop::Answer(reason)) => {
                self.count_drop(reason, step.series.as_ref());
                step.say(format!("dropped: {}", reason.label()));
                let mtu = self.env.device(self.way_out(&step)).map_or(0, |device| device.mtu);
                match answer::answer(&headers, packet, reason, mtu) {
                    Some(ip) => {
                        step.say("the sender is told");
                        let bytes = Self::answer_frame(is_l3, bytes, ip);
                        Verdict::Answer { bytes, reason }
                    }
                    None => Verdict::Drop(reason),
                }
            }
        };
        Outcome { verdict, series: step.series, trace: step.trace }
    }

    /// Steps 3 to 8: the packet as it leaves, and by which side.
    fn run(&mut self, step: &mut Step<'_>) -> Result<(Side, Vec<u8>), Stop> {
        let is_later = matches!(step.headers.fragment, Fragment::Later(_));
        match step.headers.kind {
            Kind::Other if !is_later => return Err(self.other(step)),
            Kind::Error => return self.icmp_error(step),
            _ => {}
        }
        self.fragment(step)?;
        let key = Tuple::of(&step.headers, step.side).ok_or(Stop::Pass)?;
        step.say(format!("{key}"));
        let mut found = self.flows.find(&key);
        if let Some(place) = found
            && self.life(step, place)?
        {
            self.flows.remove(place.id);
            found = None;
        }
        let place = match found {
            Some(place) => {
                step.say(if place.is_reply { "reply of a known flow" } else { "known flow" });
                place
            }
            None if is_later => return Err(self.orphan(step)),
            None => self.decide(step, key)?,
        };
        self.carry(step, place)
    }

    /// Packets that belong to no flow by nature.
    fn other(&self, step: &mut Step<'_>) -> Stop {
        let dst = step.headers.dst;
        let is_any = |rule: &&crate::Rule| {
            rule.from == step.side
                && rule.matches.protocol.is_none()
                && rule.matches.src.is_empty()
                && rule.matches.dst.contains(&dst)
        };
        let rule = self.table.rules().iter().find(is_any).filter(|_| !is_local_scope(dst));
        match rule {
            Some(rule) => {
                step.say(format!("rule `{}` cannot carry this protocol", rule.id));
                Stop::Drop(DropReason::UnsupportedProtocol)
            }
            None => Stop::Pass,
        }
    }

    /// Step 4: fragments take the ports of the first.
    fn fragment(&self, step: &mut Step<'_>) -> Result<(), Stop> {
        if step.headers.fragment == Fragment::Whole {
            return Ok(());
        }
        if self.table.settings().fragments == Fragments::Drop && self.is_named(step) {
            return Err(Stop::Drop(DropReason::FragmentsDisabled));
        }
        if let Fragment::Later(_) = step.headers.fragment {
            let key = fragment_key(step);
            let (src, dst) = *self.fragments.get(&key).ok_or_else(|| self.orphan(step))?;
            (step.headers.src_port, step.headers.dst_port) = (src, dst);
            step.say("ports of the first fragment");
        }
        Ok(())
    }

    fn orphan(&self, step: &Step<'_>) -> Stop {
        if self.is_named(step) { Stop::Drop(DropReason::FragmentWithoutFirst) } else { Stop::Pass }
    }

    /// Whether any rule of this side names the destination, whatever the port.
    fn is_named(&self, step: &Step<'_>) -> bool {
        let names = |rule: &crate::Rule| {
            rule.from == step.side && rule.matches.dst.contains(&step.headers.dst)
        };
        self.table.rules().iter().any(names)
    }

    fn way_out(&self, step: &Step<'_>) -> Side {
        let key = Tuple::of(&step.headers, step.side);
        key.and_then(|key| self.flows.find(&key))
            .and_then(|place| self.flows.leaves_by(place))
            .unwrap_or(step.side.other())
    }

    fn count_drop(&mut self, reason: DropReason, series: Option<&Series>) {
        *self.counters.drops.entry(reason).or_default() += 1;
        if let Some(series) = series {
            self.counters.series.entry(series.clone()).or_default().dropped += 1;
        }
    }

    fn frame(&self, side: Side, ip: Vec<u8>, v6: bool) -> Vec<u8> {
        if self.env.device(side).is_none_or(|device| device.l3) {
            return ip;
        }
        let ethertype: u16 = if v6 { 0x86dd } else { 0x0800 };
        [vec![0; 12], ethertype.to_be_bytes().to_vec(), ip].concat()
    }

    fn answer_frame(is_l3: bool, frame: &[u8], ip: Vec<u8>) -> Vec<u8> {
        if is_l3 {
            return ip;
        }
        let part = |from: usize, to: usize| frame.get(from..to).unwrap_or_default();
        [part(6, 12), part(0, 6), part(12, 14), &ip].concat()
    }
}

impl Step<'_> {
    fn say(&mut self, text: impl Into<String>) {
        self.trace.push(text.into());
    }
}

/// What the fragments of a datagram have in common: source, destination, identification, protocol; and the side.
type FragmentKey = (IpAddr, IpAddr, u32, u8, Side);

fn fragment_key(step: &Step<'_>) -> FragmentKey {
    let h = &step.headers;
    let id = match h.fragment {
        Fragment::Whole => 0,
        Fragment::First(id) | Fragment::Later(id) => id,
    };
    (h.src, h.dst, id, h.protocol, step.side)
}

/// Multicast, link-local and broadcast destinations, which no rule can name.
fn is_local_scope(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets().first().is_some_and(|first| *first >= 224),
        IpAddr::V6(v6) => v6.is_multicast() || v6.is_unicast_link_local(),
    }
}
