//! One world for all fixtures: a client on the tailnet, a frontend, a backend in the cluster, both families.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::{Deref, DerefMut},
    sync::Mutex,
};

use proxy::data_path::ebpf::shadow::{Shadow, ShadowLink, Verdict};
use proxy_rules::{
    Action, Affinity, Backend, BackendState, Backends, Count, DropReason, Match, PortRange,
    Protocol, Rule, RuleId, RuleTable, Settings, Side, Snat, packet::Build,
};

pub(crate) const PASS: i32 = -1;
pub(crate) const DROP: i32 = 2;
pub(crate) const REDIRECT: i32 = 7;
pub(crate) const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The addresses of one family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) client: IpAddr,
    pub(crate) frontend: IpAddr,
    pub(crate) backend: IpAddr,
    /// The cluster link's own.
    pub(crate) masquerade: IpAddr,
}

pub(crate) const V4: Family = Family {
    client: IpAddr::V4(Ipv4Addr::new(100, 64, 0, 9)),
    frontend: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 10)),
    backend: IpAddr::V4(Ipv4Addr::new(203, 0, 113, 20)),
    masquerade: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
};
pub(crate) const V6: Family = Family {
    client: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0x64, 0, 0, 0, 0, 9)),
    frontend: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 0x10)),
    backend: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xb, 0, 0, 0, 0, 0x20)),
    masquerade: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, 1)),
};
pub(crate) const FAMILIES: [Family; 2] = [V4, V6];

pub(crate) const LINKS: [ShadowLink; 2] = [
    ShadowLink {
        side: Side::Tailnet,
        l3: false,
        mtu: 1280,
        address4: Some(Ipv4Addr::new(100, 64, 0, 1)),
        address6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0x64, 0, 0, 0, 0, 1)),
    },
    ShadowLink {
        side: Side::Cluster,
        l3: false,
        mtu: 1500,
        address4: Some(Ipv4Addr::new(192, 0, 2, 1)),
        address6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, 1)),
    },
];

impl Family {
    pub(crate) fn client(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.client, port)
    }
    pub(crate) fn frontend(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.frontend, port)
    }
    pub(crate) fn backend(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.backend, port)
    }
    pub(crate) fn masquerade(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.masquerade, port)
    }
    pub(crate) const fn is_v6(&self) -> bool {
        self.client.is_ipv6()
    }
}

pub(crate) fn backend(address: IpAddr, port: Option<u16>) -> Backend {
    Backend { address, port, weight: 1, state: BackendState::Ready }
}

pub(crate) fn action(list: Vec<Backend>, snat: Snat) -> Action {
    let backends = Backends { list, affinity: Affinity::Flow };
    Action::Dnat { backends, snat, proxy_protocol: false }
}

/// A rule on packets from the tailnet to one address.
pub(crate) fn rule(
    id: &str,
    protocol: Option<Protocol>,
    dst: IpAddr,
    ports: PortRange,
    action: Action,
) -> Rule {
    let matches = Match { protocol, dst: dst.into(), ports, src: Vec::new() };
    Rule { id: RuleId::new(id), from: Side::Tailnet, matches, action, count_per_port: false }
}

pub(crate) fn port(port: u16) -> PortRange {
    PortRange::single(port).unwrap()
}

/// Both families: TCP and UDP port 80 to port 8080, and echoes, to the backend.
pub(crate) fn service(snat: Snat) -> Vec<Rule> {
    let mut rules = Vec::new();
    for family in FAMILIES {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let to = action(vec![backend(family.backend, Some(8080))], snat);
            rules.push(rule("web", Some(protocol), family.frontend, port(80), to));
        }
        let to = action(vec![backend(family.backend, None)], snat);
        rules.push(rule("ping", Some(Protocol::Icmp), family.frontend, PortRange::ANY, to));
    }
    rules
}

/// Loaded programs that no test has in use. Loading is what takes time: on an emulated machine seconds for each.
static IDLE: Mutex<Vec<Shadow>> = Mutex::new(Vec::new());

/// Loaded programs that go back to [`IDLE`]. Those of a test that fails do not: what they hold may be wrong.
pub(crate) struct World(Option<Shadow>);

impl Deref for World {
    type Target = Shadow;
    fn deref(&self) -> &Shadow {
        self.0.as_ref().unwrap()
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Shadow {
        self.0.as_mut().unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            IDLE.lock().unwrap().extend(self.0.take());
        }
    }
}

pub(crate) fn world(rules: Vec<Rule>) -> World {
    world_with(rules, Settings::default())
}

pub(crate) fn world_with(rules: Vec<Rule>, settings: Settings) -> World {
    let settings = Settings { max_flows: settings.max_flows.min(4096), ..settings };
    world_of(&RuleTable::new(rules, settings))
}

pub(crate) fn world_of(table: &RuleTable) -> World {
    let mut idle = IDLE.lock().unwrap();
    let suits = (0..idle.len()).find(|index| idle[*index].start_over(table).is_ok());
    let world = suits.map(|index| idle.swap_remove(index));
    drop(idle);
    World(Some(
        world.unwrap_or_else(|| Shadow::new(table, &LINKS, &[]).expect("the programs load")),
    ))
}

/// By how much this machine says that it is slower than a real one: time limits grow by it, random tests shrink.
pub(crate) fn slowness() -> u64 {
    std::env::var("SLUICE_SLOW").map_or(1, |times| times.parse().expect("SLUICE_SLOW is a number"))
}

pub(crate) fn frame(ip: &[u8]) -> Vec<u8> {
    let ethertype: [u8; 2] =
        if ip.first().is_some_and(|b| b >> 4 == 6) { [0x86, 0xdd] } else { [8, 0] };
    [&OUR_MAC[..], &PEER_MAC, &ethertype, ip].concat()
}

/// What the programs did, and for what reasons they counted a drop meanwhile.
pub(crate) fn ask(shadow: &mut Shadow, side: Side, ip: &[u8]) -> (Verdict, Vec<DropReason>) {
    let before = shadow.counters().unwrap().drops;
    let verdict = shadow.run(side, &frame(ip)).expect("the program runs");
    let after = shadow.counters().unwrap().drops;
    let reasons = after.iter().flat_map(|(reason, n)| vec![*reason; (n - before[reason]) as usize]);
    (verdict, reasons.collect())
}

/// The packet as it was carried.
#[track_caller]
pub(crate) fn carried(shadow: &mut Shadow, side: Side, ip: impl Into<Vec<u8>>) -> Vec<u8> {
    let (verdict, drops) = ask(shadow, side, &ip.into());
    assert_eq!((verdict.action, drops), (REDIRECT, vec![]), "not carried");
    verdict.frame[14..].to_vec()
}

/// Asserts that a packet is carried as exactly these bytes.
#[track_caller]
pub(crate) fn carries(shadow: &mut Shadow, side: Side, sent: Build, expected: Build) {
    let (got, expected) = (carried(shadow, side, sent.bytes()), expected.bytes());
    assert_eq!(hex(&got), hex(&expected));
}

/// The answer to a packet that was dropped for this reason; it goes back to where the packet came from.
#[track_caller]
pub(crate) fn answered(shadow: &mut Shadow, side: Side, ip: &[u8], reason: DropReason) -> Vec<u8> {
    let (verdict, drops) = ask(shadow, side, ip);
    assert_eq!((verdict.action, drops), (REDIRECT, vec![reason]), "not answered");
    assert_eq!(verdict.frame[..12], [PEER_MAC, OUR_MAC].concat());
    verdict.frame[14..].to_vec()
}

#[track_caller]
pub(crate) fn dropped(shadow: &mut Shadow, side: Side, ip: impl Into<Vec<u8>>, reason: DropReason) {
    let (verdict, drops) = ask(shadow, side, &ip.into());
    assert_eq!((verdict.action, drops), (DROP, vec![reason]), "not dropped in silence");
}

#[track_caller]
pub(crate) fn passed(shadow: &mut Shadow, side: Side, ip: impl Into<Vec<u8>>) {
    let ip = ip.into();
    let (verdict, drops) = ask(shadow, side, &ip);
    assert_eq!((verdict.action, drops), (PASS, vec![]), "not left to the kernel");
    assert_eq!(hex(&verdict.frame), hex(&frame(&ip)), "changed all the same");
}

/// The sum of a rule's counts over protocols and ports.
pub(crate) fn count(shadow: &Shadow, id: &str) -> Count {
    let series = shadow.counters().unwrap().series;
    let ours = series.iter().filter(|(series, _)| series.rule.as_str() == id);
    ours.fold(Count::default(), |sum, (_, count)| sum.plus(*count))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().enumerate().fold(String::new(), |mut text, (index, byte)| {
        let space = if index % 4 == 0 && index > 0 { " " } else { "" };
        write!(text, "{space}{byte:02x}").expect("a string takes everything");
        text
    })
}
