//! The traffic: real sockets at both ends.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::ValueEnum;
use proxy_testbed::{
    Namespace,
    traffic::udp::{Answer, UdpClient, UdpServer},
};
use socket2::SockRef;

use super::series::Measure;
use crate::{
    affinity,
    sockets::{self, Carried, ECHO, ONCE, PATIENCE},
};

/// Where all servers listen, TCP and UDP.
pub const PORT: u16 = 8080;
/// Clients that connect beside each other: one alone would measure little but waiting.
const CONNECTING: usize = 8;
/// Threads that accept and serve, one connection at a time each: more than there are connections.
const SERVING: usize = 4 * CONNECTING;
/// The steady pace of datagrams: so many each millisecond, of this size.
const PACE: (usize, usize) = (20, 200);
/// Datagrams of the flood: as large as fits the tunnel, with some room.
const FLOOD_BYTES: usize = 1200;

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// One TCP stream, from the client.
    Stream,
    /// Eight.
    Streams,
    /// Datagrams at a steady pace.
    Udp,
    /// Datagrams as fast as the sender can.
    Flood,
    /// One byte there and back on one connection.
    Rr,
    /// A connection for each request.
    Crr,
}

/// The measures of what a gigabyte costs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub tailscaled: Measure,
    pub agent: Measure,
    pub machine: Measure,
}

/// What a round gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub values: Vec<(Measure, f64)>,
    /// What streams have carried.
    pub bytes: Option<u64>,
}

impl Outcome {
    fn of(measures: &[Measure], values: impl IntoIterator<Item = f64>) -> Self {
        Self { values: measures.iter().copied().zip(values).collect(), bytes: None }
    }
}

impl Load {
    /// What people call it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Stream => "TCP, 1 stream",
            Self::Streams => "TCP, 8 streams",
            Self::Udp => "UDP, steady",
            Self::Flood => "UDP, flood",
            Self::Rr => "request-response",
            Self::Crr => "connect-request-response",
        }
    }

    /// Where its cost belongs; `None`: it is not worth a number.
    pub const fn cost(self) -> Option<Cost> {
        match self {
            Self::Stream => Some(Cost {
                tailscaled: Measure::Cpu1Tailscaled,
                agent: Measure::Cpu1Agent,
                machine: Measure::Cpu1Machine,
            }),
            Self::Streams => Some(Cost {
                tailscaled: Measure::Cpu8Tailscaled,
                agent: Measure::Cpu8Agent,
                machine: Measure::Cpu8Machine,
            }),
            _ => None,
        }
    }

    /// One round.
    pub fn run(
        self,
        client: &Namespace,
        servers: &Servers,
        to: SocketAddr,
        time: Duration,
    ) -> Result<Outcome> {
        match self {
            Self::Stream => streams(client, to, 1, time, Measure::Stream1),
            Self::Streams => streams(client, to, 8, time, Measure::Stream8),
            Self::Udp => {
                let (sent, received, _) = datagrams(client, servers, to, time, PACE.1, true)?;
                let lost = 100.0 * (1.0 - received as f64 / sent as f64);
                Ok(Outcome::of(&[Measure::UdpLost], [lost]))
            }
            Self::Flood => {
                let (_, received, seconds) =
                    datagrams(client, servers, to, time, FLOOD_BYTES, false)?;
                Ok(Outcome::of(&[Measure::UdpFlood], [received as f64 / seconds]))
            }
            Self::Rr => {
                let values =
                    client.enter(|| sockets::transactions(&mut connect(to, PATIENCE)?, time))?;
                Ok(Outcome::of(&[Measure::Rr, Measure::RrP50, Measure::RrP99], values))
            }
            Self::Crr => {
                let values = client.enter(|| connections(to, time))?;
                Ok(Outcome::of(&[Measure::Crr, Measure::CrrP50, Measure::CrrP99], values))
            }
        }
    }
}

fn streams(
    client: &Namespace,
    to: SocketAddr,
    count: usize,
    time: Duration,
    measure: Measure,
) -> Result<Outcome> {
    let all: Vec<Carried> =
        client.enter(|| beside(count, || sockets::stream(&mut connect(to, PATIENCE)?, time)))?;
    let bytes = all.iter().map(|one| one.bytes).sum();
    let seconds = all.iter().map(|one| one.seconds).fold(0.0, f64::max);
    let rate = Carried { bytes, seconds }.gigabits();
    Ok(Outcome { bytes: Some(bytes), ..Outcome::of(&[measure], [rate]) })
}

/// Connects, asks, closes, again and again.
fn connections(to: SocketAddr, time: Duration) -> Result<Vec<f64>> {
    let start = Instant::now();
    let times = beside(CONNECTING, || {
        let mut times = Vec::new();
        while start.elapsed() < time {
            let began = Instant::now();
            once(to, PATIENCE)?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    })?;
    Ok(sockets::rate_and_times(&times.concat(), start.elapsed()))
}

/// Connects and has one byte returned.
pub fn once(to: SocketAddr, patience: Duration) -> Result<()> {
    let mut connection = connect(to, patience)?;
    connection.write_all(&[ONCE])?;
    connection.read_exact(&mut [0])?;
    Ok(())
}

fn connect(to: SocketAddr, patience: Duration) -> Result<TcpStream> {
    let stream =
        TcpStream::connect_timeout(&to, patience).with_context(|| format!("connecting to {to}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// Runs it on so many threads at once.
fn beside<T: Send>(count: usize, work: impl Fn() -> Result<T> + Sync) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(&work)).collect();
        let ended = threads.into_iter().map(|thread| {
            thread.join().map_err(|_| anyhow::anyhow!("a client's thread panicked"))?
        });
        ended.collect()
    })
}

/// Sent, received, and for how many seconds was sent.
fn datagrams(
    client: &Namespace,
    servers: &Servers,
    to: SocketAddr,
    time: Duration,
    size: usize,
    steady: bool,
) -> Result<(u64, u64, f64)> {
    let socket = UdpClient::new(client, to)?.socket;
    let before = servers.udp.received();
    let (payload, start) = (vec![0; size], Instant::now());
    let (mut sent, mut milliseconds) = (0, 0);
    while start.elapsed() < time {
        for _ in 0..PACE.0 {
            socket.send(&payload).with_context(|| format!("sending datagrams to {to}"))?;
            sent += 1;
        }
        milliseconds += 1;
        let due = Duration::from_millis(milliseconds);
        if steady && let Some(early) = due.checked_sub(start.elapsed()) {
            affinity::pause(early);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok((sent, servers.settled() - before, seconds))
}

/// Servers of one namespace, until dropped.
pub struct Servers {
    listener: TcpListener,
    udp: UdpServer,
}

impl Servers {
    /// Serves on every address of the namespace.
    pub fn new(namespace: &Namespace) -> Result<Self> {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
        let listener = namespace.enter(|| TcpListener::bind(any)).context("listening")?;
        for _ in 0..SERVING {
            let listener = listener.try_clone()?;
            thread::spawn(move || serve(&listener));
        }
        Ok(Self { listener, udp: UdpServer::new(namespace, &any.to_string(), Answer::Nothing)? })
    }

    /// How many datagrams have come, once no more come.
    fn settled(&self) -> u64 {
        let mut last = self.udp.received();
        loop {
            affinity::pause(Duration::from_millis(100));
            let now = self.udp.received();
            if now == last {
                return now;
            }
            last = now;
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Ends every `accept`.
        SockRef::from(&self.listener).shutdown(Shutdown::Both).ok();
    }
}

fn serve(listener: &TcpListener) {
    while let Ok((mut connection, _)) = listener.accept() {
        let mut kind = [0];
        // A client may have gone together with its way here.
        connection.set_read_timeout(Some(PATIENCE)).ok();
        if connection.read_exact(&mut kind).is_err() {
            continue;
        }
        match kind {
            [ONCE] => {
                connection.write_all(&kind).ok();
                // The client closes first: the flow ends in order.
                connection.read_exact(&mut kind).ok();
            }
            [ECHO] => sockets::echo(connection),
            _ => sockets::swallow(connection),
        }
    }
}
