//! Many flows: each made by the loaded programs from the packets that make it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use proxy::data_path::ebpf::shadow::{Shadow, ShadowLink};
use proxy_rules::{
    Action, Affinity, Backend, BackendState, Backends, Match, PortRange, Protocol, Rule, RuleId,
    RuleTable, Settings, Side, Snat,
    packet::{Build, flag},
};

pub(crate) const PORTS: u32 = 10_000;
pub(crate) const DROP: i32 = 2;
pub(crate) const REDIRECT: i32 = 7;

const FRONTEND: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const BACKEND: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
/// Clients: the benchmarking range 198.18.0.0/15 has 131 072 addresses.
const CLIENTS: u32 = 100_000;

/// How far a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// TCP: lives five days without a packet.
    Established,
    /// UDP, answered: two minutes, and not given up when the table is crowded.
    Replied,
    /// TCP: two minutes.
    Opening,
    /// UDP: half a minute.
    Unreplied,
}

/// A flow's number says everything about it. A port has one protocol, so the port decides the state.
pub(crate) const fn state(number: u32) -> State {
    match number % 20 {
        0 => State::Established,
        1 | 2 => State::Replied,
        3..=8 => State::Opening,
        _ => State::Unreplied,
    }
}

const fn protocol(number: u32) -> Protocol {
    match state(number) {
        State::Established | State::Opening => Protocol::Tcp,
        State::Replied | State::Unreplied => Protocol::Udp,
    }
}

/// One rule a port.
pub(crate) fn table(max_flows: u32) -> RuleTable {
    let rule = |number: u32| {
        let backend = Backend {
            address: IpAddr::V4(BACKEND),
            port: None,
            weight: 1,
            state: BackendState::Ready,
        };
        let backends = Backends { list: vec![backend], affinity: Affinity::Flow };
        let matches = Match {
            protocol: Some(protocol(number)),
            dst: IpAddr::V4(FRONTEND).into(),
            ports: PortRange::single(port(number)).unwrap(),
            src: Vec::new(),
        };
        Rule {
            id: RuleId::new("web"),
            from: Side::Tailnet,
            matches,
            action: Action::Dnat { backends, snat: Snat::Keep, proxy_protocol: false },
            count_per_port: false,
        }
    };
    RuleTable::new((0..PORTS).map(rule).collect(), Settings { max_flows, ..Settings::default() })
}

const fn port(number: u32) -> u16 {
    (number % PORTS + 1) as u16
}

/// The programs, and the frames that flows are made with; only addresses and ports are written anew for each flow.
pub(crate) struct Crowd {
    pub(crate) shadow: Shadow,
    datagram: [Vec<u8>; 2],
    syn: [Vec<u8>; 2],
    ack: Vec<u8>,
}

fn frame(build: Build) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0], build.bytes().as_slice()].concat()
}

impl Crowd {
    pub(crate) fn new(max_flows: u32) -> Self {
        let link = |side| ShadowLink {
            side,
            l3: false,
            mtu: 1500,
            address4: Some(Ipv4Addr::new(192, 0, 2, 1)),
            address6: None,
        };
        let links = [link(Side::Tailnet), link(Side::Cluster)];
        let shadow = Shadow::new(&table(max_flows), &links, &[]).expect("the programs load");
        let (client, front, back) =
            ("198.18.0.0:1", SocketAddr::from((FRONTEND, 1)), SocketAddr::from((BACKEND, 1)));
        let client: SocketAddr = client.parse().unwrap();
        // Without a checksum, which would have to be written anew too.
        let datagram = [(client, front), (back, client)]
            .map(|(from, to)| frame(Build::udp(from, to).no_checksum()));
        let syn = [
            frame(Build::syn(client, front)),
            frame(Build::tcp(back, client, flag::SYN | flag::ACK)),
        ];
        Self { shadow, datagram, syn, ack: frame(Build::tcp(client, front, flag::ACK)) }
    }

    /// The packets that bring a flow to its state, and what became of the first that was not carried.
    pub(crate) fn open(&mut self, number: u32) -> Result<(), i32> {
        let (there, back) = (Side::Tailnet, Side::Cluster);
        let Self { shadow, datagram: [ask, tell], syn: [syn, answer], ack } = self;
        let script: &mut [(Side, &mut Vec<u8>)] = match state(number) {
            State::Established => &mut [(there, syn), (back, answer), (there, ack)],
            State::Replied => &mut [(there, ask), (back, tell)],
            State::Opening => &mut [(there, syn)],
            State::Unreplied => &mut [(there, ask)],
        };
        script.iter_mut().try_for_each(|(side, frame)| send(shadow, *side, frame, number))
    }

    /// One more packet from the client.
    pub(crate) fn go_on(&mut self, number: u32) -> Result<(), i32> {
        let frame = match protocol(number) {
            Protocol::Tcp => &mut self.ack,
            _ => &mut self.datagram[0],
        };
        send(&mut self.shadow, Side::Tailnet, frame, number)
    }

    /// Whole flows; a half without the other is an error at any time.
    pub(crate) fn flows(&self) -> u64 {
        let (pairs, alone) = self.shadow.flow_pairs().unwrap();
        assert_eq!(alone, 0, "halves without the other");
        pairs
    }
}

fn send(shadow: &mut Shadow, side: Side, frame: &mut [u8], number: u32) -> Result<(), i32> {
    let host = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number % CLIENTS;
    let own = (1024 + number / CLIENTS) as u16;
    let (address, client, service) =
        if side == Side::Tailnet { (26, 34, 36) } else { (30, 36, 34) };
    frame[address..address + 4].copy_from_slice(&host.to_be_bytes());
    frame[client..client + 2].copy_from_slice(&own.to_be_bytes());
    frame[service..service + 2].copy_from_slice(&port(number).to_be_bytes());
    match shadow.run(side, frame).unwrap().action {
        REDIRECT => Ok(()),
        other => Err(other),
    }
}
