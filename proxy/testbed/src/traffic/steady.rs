//! Traffic that goes on while something is changed, and a record of what was lost.

use std::{
    collections::HashSet,
    io::{Read as _, Write as _},
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};

use crate::{DEADLINE, Namespace, poll_until, traffic::tcp::Client, traffic::udp::UdpClient};

/// Bytes of a numbered block.
const BLOCK: usize = 256;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Blocks echoed over TCP, in order and whole.
    pub blocks: u64,
    /// Connections that ended or brought something else, and why.
    pub broken: Vec<String>,
    /// Datagrams sent.
    pub datagrams: u64,
    /// Datagrams whose echo never came.
    pub lost: u64,
    /// Numbers of the first of them.
    pub missing: Vec<u64>,
    /// The longest time between two echoes.
    pub silence: Duration,
}

/// Many TCP connections that exchange numbered blocks, and a UDP stream of a thousand datagrams a second.
#[derive(Debug)]
pub struct Steady {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    tcp: JoinHandle<Report>,
    udp: Option<Stream>,
}

impl Steady {
    /// Opens the connections to [`super::tcp::TcpServer`]s and begins. UDP goes to an echo server, if wanted.
    pub fn start(
        namespace: &Namespace,
        connections: usize,
        tcp: &[SocketAddr],
        udp: Option<SocketAddr>,
    ) -> Result<Self> {
        let clients = (0..connections)
            .map(|number| {
                let to = tcp[number % tcp.len()];
                Client::connect(namespace, to)
                    .with_context(|| format!("connection {number} to {to}"))
            })
            .collect::<Result<Vec<_>>>()?;
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let udp = match udp {
            Some(to) => {
                let client = UdpClient::new(namespace, to)?;
                // What a flow's first packets meet, unresolved neighbours above all, is not the question here.
                client.echo(1, 8).with_context(|| format!("UDP to {to}"))?;
                Some(stream(client.socket, &stop)?)
            }
            None => None,
        };
        let (stopping, counting) = (Arc::clone(&stop), Arc::clone(&rounds));
        let tcp = std::thread::spawn(move || exchange(clients, &stopping, &counting));
        Ok(Self { stop, rounds, tcp, udp })
    }

    /// Waits until every connection has exchanged so many more blocks.
    pub fn await_rounds(&self, more: u64) -> Result<()> {
        let goal = self.rounds.load(Ordering::Relaxed) + more;
        poll_until(DEADLINE * 2, "rounds of steady traffic", || {
            self.rounds.load(Ordering::Relaxed) >= goal || self.tcp.is_finished()
        })
    }

    /// Ends the traffic and tells what was lost.
    pub fn finish(self) -> Result<Report> {
        self.stop.store(true, Ordering::Relaxed);
        let mut report = self.tcp.join().map_err(|_| anyhow!("the TCP thread died"))?;
        if let Some((sender, receiver, received)) = self.udp {
            report.datagrams = sender.join().map_err(|_| anyhow!("the UDP sender died"))?;
            let seen = receiver.join().map_err(|_| anyhow!("the UDP receiver died"))?;
            report.silence = seen.silence;
            report.lost = report.datagrams - received.load(Ordering::Relaxed);
            let lost = |number: &u64| !seen.numbers.contains(number);
            report.missing = (0..report.datagrams).filter(lost).take(10).collect();
        }
        Ok(report)
    }
}

fn exchange(mut clients: Vec<Client>, stop: &AtomicBool, rounds: &AtomicU64) -> Report {
    let mut report = Report::default();
    let mut round = 0_u64;
    while !stop.load(Ordering::Relaxed) && !clients.is_empty() {
        let mut block = [0; BLOCK];
        block[..8].copy_from_slice(&round.to_be_bytes());
        clients.retain_mut(|client| {
            let mut back = [0; BLOCK];
            let done =
                client.stream.write_all(&block).and_then(|()| client.stream.read_exact(&mut back));
            let fault = match done {
                Err(error) => Some(error.to_string()),
                Ok(()) => (back != block).then(|| "another block came back".to_owned()),
            };
            report.blocks += u64::from(fault.is_none());
            let whole = fault.is_none();
            report.broken.extend(fault.map(|fault| format!("{}: {fault}", client.seen)));
            whole
        });
        round += 1;
        rounds.store(round, Ordering::Relaxed);
    }
    report
}

/// What came back of a UDP stream.
#[derive(Debug, Default)]
struct Seen {
    numbers: HashSet<u64>,
    silence: Duration,
}

/// The sender, which counts; the receiver; how much has come back.
type Stream = (JoinHandle<u64>, JoinHandle<Seen>, Arc<AtomicU64>);

fn stream(socket: UdpSocket, stop: &Arc<AtomicBool>) -> Result<Stream> {
    let receiving = socket.try_clone()?;
    receiving.set_read_timeout(Some(Duration::from_millis(100)))?;
    let sent = Arc::new(AtomicU64::new(0));
    let received = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let (stopping, counting, ending) = (Arc::clone(stop), Arc::clone(&sent), Arc::clone(&over));
    let sender = std::thread::spawn(move || {
        let (start, mut number) = (Instant::now(), 0_u64);
        while !stopping.load(Ordering::Relaxed) {
            let due = start + Duration::from_millis(number);
            while let Some(left) = due.checked_duration_since(Instant::now()) {
                std::thread::park_timeout(left);
            }
            // A refused datagram (an ICMP error for an earlier one) counts as sent and lost.
            let _ = socket.send(&number.to_be_bytes());
            number += 1;
            counting.store(number, Ordering::Relaxed);
        }
        ending.store(true, Ordering::Release);
        number
    });
    let got = Arc::clone(&received);
    let receiver = std::thread::spawn(move || {
        let (mut buffer, mut end) = ([0; 64], None);
        let (mut last, mut seen) = (Instant::now(), Seen::default());
        loop {
            if receiving.recv(&mut buffer).is_ok() {
                let [a, b, c, d, e, f, g, h, ..] = buffer;
                if seen.numbers.insert(u64::from_be_bytes([a, b, c, d, e, f, g, h])) {
                    got.fetch_add(1, Ordering::Relaxed);
                }
                seen.silence = seen.silence.max(last.elapsed());
                last = Instant::now();
            } else if over.load(Ordering::Acquire) {
                // Over and silent for a while: what has not come is lost.
                let end = *end.get_or_insert_with(|| Instant::now() + Duration::from_millis(500));
                if Instant::now() >= end {
                    return seen;
                }
            }
            // In this order: what is sent last counts too.
            if over.load(Ordering::Acquire)
                && got.load(Ordering::Relaxed) == sent.load(Ordering::Relaxed)
            {
                return seen;
            }
        }
    });
    Ok((sender, receiver, received))
}
