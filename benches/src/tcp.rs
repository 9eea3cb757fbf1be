//! TCP through the lanes with sockets of our own: one stream, request-response, connect-request-response.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use proxy_rules::Protocol;
use socket2::{Domain, Socket, Type};

use crate::{
    affinity,
    generator::{BACKEND_PORT, FIRST_PORT, Path},
    plan::Plan,
    progress::Progress,
    rig::{CLIENTS, Entry, Lane, Rig},
    rung::{Fitting, Rung},
    series::{Measure, Series},
    sockets::{self, ECHO, ONCE, PATIENCE},
};

/// Rungs that carry TCP on veth pairs. XDP does not: it would meet sums that are not there yet.
pub const RUNGS: [(Rung, u16); 5] = [
    (Rung::SluiceTc, 1),
    (Rung::Raw, 1),
    (Rung::NftMap, 1),
    (Rung::NftUpstream, 1),
    (Rung::SluiceNft, 1),
];

/// The same with more ports: what a connection costs must not depend on how many others are published.
pub const MANY_PORTS: [(Rung, u16); 7] = [
    (Rung::SluiceTc, 1000),
    (Rung::NftMap, 1000),
    (Rung::NftUpstream, 1000),
    (Rung::SluiceNft, 1000),
    (Rung::SluiceTc, 10_000),
    (Rung::NftMap, 10_000),
    (Rung::NftUpstream, 10_000),
];

/// Connections that are open at once where connections are counted: of one at a time, most would be the two threads' waiting
/// for each other.
const IN_FLIGHT: usize = 16;
const CLIENT_PORTS: std::ops::Range<u16> = 1024..61_000;

/// What is exercised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Stream,
    Rr,
    Crr,
}

/// Measures one kind on every rung, each with so many published ports.
pub fn measure(
    kind: Kind,
    rungs: &[(Rung, u16)],
    plan: &Plan,
    bar: &Progress,
) -> Result<Vec<Series>> {
    let rig = Rig::new(rungs.len(), Entry::Sockets)?;
    prepare(&rig, kind)?;
    let mut stands = Vec::new();
    for (&(rung, ports), lane) in rungs.iter().zip(&rig.lanes) {
        let fitting = rung
            .install(lane, Protocol::Tcp, ports, 262_144)
            .with_context(|| format!("setting up {}", rung.label()))?;
        stands.push(Stand { rung, ports, fitting, lane, client: Client::new(lane, rung, ports) });
    }
    let mut all: Vec<Vec<Series>> = stands
        .iter()
        .map(|s| kind.measures().iter().map(|m| Series::new(*m, s.rung, 1, s.ports)).collect())
        .collect();
    for number in 0..=plan.rounds {
        for (stand, series) in stands.iter_mut().zip(&mut all) {
            bar.say(&format!("TCP {kind:?}, {} ports: {}", stand.ports, stand.rung.label()));
            let time = if number == 0 { plan.round / 4 } else { plan.round };
            let client = &mut stand.client;
            let values = rig
                .sender
                .run(|| {
                    kind.client_core()?;
                    client.run(kind, time)
                })
                .with_context(|| format!("TCP {kind:?} through {}", stand.rung.label()))?;
            if number > 0 {
                series.iter_mut().zip(values).for_each(|(s, value)| s.values.push(value));
                bar.step();
            }
        }
    }
    // Bad sums show up in the receiving stacks, not in the numbers.
    let wrong = checksum_errors(&rig)?;
    for (stand, series) in stands.iter().zip(&mut all) {
        for series in series {
            series.wrong = wrong;
            series.verified = 1;
            series.counted = match &stand.fitting.path {
                Some(path) => {
                    let counters = path.counters(&stand.lane.router)?;
                    Some(counters.series.values().map(|count| count.flows).sum())
                }
                None => None,
            };
        }
    }
    Ok(all.into_iter().flatten().collect())
}

/// Starts the backends of a rig's lanes.
pub fn prepare(rig: &Rig, kind: Kind) -> Result<()> {
    for side in [&rig.sender, &rig.receiver] {
        // Finished connections leave nothing behind, or a client would run out of ports.
        side.sysctl("net/ipv4/tcp_max_tw_buckets", "0")?;
    }
    rig.receiver.run(|| {
        let listener = listen()?;
        thread::spawn(move || serve(&listener, kind));
        Ok(())
    })
}

struct Stand<'a> {
    rung: Rung,
    ports: u16,
    fitting: Fitting,
    lane: &'a Lane,
    client: Client,
}

impl Kind {
    /// A stream's ends have a core each. The ends of transactions share one and hand it to each other: what wake-ups
    /// between cores cost in a virtual machine would hide everything else.
    fn client_core(self) -> Result<()> {
        match self {
            Self::Stream => affinity::pin(affinity::cores() - 1),
            Self::Rr | Self::Crr => affinity::own_a_core(),
        }
    }

    fn server_core(self) -> Result<()> {
        match self {
            Self::Stream => affinity::pin(0),
            Self::Rr | Self::Crr => affinity::own_a_core(),
        }
    }

    /// What a round of it gives.
    pub const fn measures(self) -> &'static [Measure] {
        match self {
            Self::Stream => &[Measure::TcpStream],
            Self::Rr => &[Measure::TcpRr, Measure::TcpRrP50, Measure::TcpRrP99, Measure::TcpRrP999],
            Self::Crr => {
                &[Measure::TcpCrr, Measure::TcpCrrP50, Measure::TcpCrrP99, Measure::TcpCrrP999]
            }
        }
    }
}

/// One lane's client: its next source address, source port and destination port.
pub struct Client {
    sources: Vec<Ipv4Addr>,
    target: Ipv4Addr,
    first_port: u16,
    ports: u16,
    connections: usize,
}

impl Client {
    /// A client that has not connected yet.
    pub fn new(lane: &Lane, rung: Rung, ports: u16) -> Self {
        let (target, first_port, ports) = match rung.path() {
            Path::Translated => (lane.frontend(), FIRST_PORT, ports),
            Path::Bridged | Path::Routed => (lane.backend(), BACKEND_PORT, 1),
        };
        let sources = (0..CLIENTS).map(|number| lane.client(number)).collect();
        Self { sources, target, first_port, ports, connections: 0 }
    }

    /// One round, on the calling thread.
    pub fn run(&mut self, kind: Kind, time: Duration) -> Result<Vec<f64>> {
        match kind {
            Kind::Stream => self.stream(time),
            Kind::Rr => self.rr(time),
            Kind::Crr => self.crr(time),
        }
    }

    /// The next connection: every source port of every address before one is used again.
    fn connect(&mut self) -> Result<TcpStream> {
        let number = self.connections;
        self.connections += 1;
        let span = usize::from(CLIENT_PORTS.end - CLIENT_PORTS.start);
        let source = self.sources.iter().cycle().nth(number / span % self.sources.len());
        let source = *source.context("a lane without clients")?;
        let source_port = CLIENT_PORTS.start + (number % span) as u16;
        let port = self.first_port + (number % usize::from(self.ports)) as u16;
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_tcp_nodelay(true)?;
        // Also the limit of `connect`, without the detour through a non-blocking socket.
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.bind(&SocketAddrV4::new(source, source_port).into())?;
        let target = SocketAddrV4::new(self.target, port);
        socket
            .connect(&target.into())
            .with_context(|| format!("{source}:{source_port} to {target}"))?;
        Ok(socket.into())
    }

    fn stream(&mut self, time: Duration) -> Result<Vec<f64>> {
        let sent = sockets::stream(&mut self.connect()?, time)?;
        Ok(vec![sent.gigabits()])
    }

    fn rr(&mut self, time: Duration) -> Result<Vec<f64>> {
        sockets::transactions(&mut self.connect()?, time)
    }

    fn crr(&mut self, time: Duration) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        let mut open = Vec::with_capacity(IN_FLIGHT);
        let start = Instant::now();
        while start.elapsed() < time {
            for _ in 0..IN_FLIGHT {
                let began = Instant::now();
                let mut connection = self.connect()?;
                connection.write_all(&[ONCE])?;
                open.push((began, connection));
            }
            for (began, mut connection) in open.drain(..) {
                connection.read_exact(&mut [0])?;
                times.push(began.elapsed().as_secs_f64() * 1e6);
            }
        }
        Ok(sockets::rate_and_times(&times, start.elapsed()))
    }
}

fn listen() -> Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, BACKEND_PORT)).into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// Serves every lane until the process ends. The first byte of a connection says what it is.
fn serve(listener: &TcpListener, kind: Kind) {
    if let Err(error) = kind.server_core() {
        eprintln!("the server does not start: {error:#}");
        return;
    }
    let mut answered = VecDeque::new();
    while let Ok((mut connection, _)) = listener.accept() {
        let mut kind = [0];
        // A client that has gone away is its own measurement's error.
        if connection.read_exact(&mut kind).is_err() {
            continue;
        }
        match kind {
            [ONCE] => {
                connection.write_all(&kind).ok();
                answered.push_back(connection);
                // Not before the client has closed: the flow then ends in order. The oldest is of a batch that is over.
                if answered.len() > IN_FLIGHT
                    && let Some(mut oldest) = answered.pop_front()
                {
                    oldest.read_exact(&mut kind).ok();
                }
            }
            [ECHO] => drop(thread::spawn(move || sockets::echo(connection))),
            _ => drop(thread::spawn(move || sockets::swallow(connection))),
        }
    }
}

/// `TcpInCsumErrors` and UDP's, at both ends.
fn checksum_errors(rig: &Rig) -> Result<u64> {
    let mut total = 0;
    for side in [&rig.sender, &rig.receiver] {
        let text = side.run(|| Ok(std::fs::read_to_string("/proc/thread-self/net/snmp")?))?;
        for lines in text.lines().collect::<Vec<_>>().chunks(2) {
            let [names, values] = lines else { continue };
            let pairs = names.split_whitespace().zip(values.split_whitespace());
            total += pairs
                .filter(|(name, _)| *name == "InCsumErrors")
                .filter_map(|(_, value)| value.parse::<u64>().ok())
                .sum::<u64>();
        }
    }
    Ok(total)
}
