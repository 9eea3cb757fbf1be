//! Makes packets: frames that a program in the sender's namespace writes and sends, as fast as one core can.
//!
//! `BPF_PROG_TEST_RUN` with live frames sends batches of 64. The veth's receive path, the router and the sink run in the
//! softirq that ends each batch, on the same core: time / packets is the whole cost of one packet, and nothing is
//! dropped for want of a CPU. The thread is pinned and real-time, so that other work stays away.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use aya::programs::{TestRun, TestRunAttrs, TestRunOptions};

use crate::{
    affinity,
    kernel::{Config, Kernel},
    rig::{Lane, Rig, SOURCES},
};

/// Bytes of a frame without check sequence: the shortest that Ethernet has.
const FRAME: usize = 60;
const BATCH: u32 = 64;
/// Frames of a round's first system call, which tells how many the second needs to fill the time. Few calls, since
/// each waits for an RCU grace period before it starts; the kernel's own clock leaves that out.
const FIRST: u32 = 1 << 15;
/// The first published port.
pub const FIRST_PORT: u16 = 10_000;
/// The port that backends listen on.
pub const BACKEND_PORT: u16 = 9_000;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Flows, sent in turn.
    pub flows: u32,
    /// Destination ports, used in turn by the flows.
    pub ports: u16,
}

/// How it went.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub sent: u64,
    pub received: u64,
    pub wrong: u64,
    pub seconds: f64,
}

impl Round {
    /// Time for one packet on its way through everything.
    pub fn nanoseconds(&self) -> f64 {
        self.seconds * 1e9 / self.received.max(1) as f64
    }

    /// Packets a second.
    pub fn rate(&self) -> f64 {
        self.received as f64 / self.seconds
    }
}

/// The generator of a rig.
pub struct Generator {
    kernel: Kernel,
}

/// Where packets of a lane are sent to, and what must come out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// To the receiver; nothing but Ethernet addresses changes.
    Bridged,
    /// To the receiver's address, forwarded by the router.
    Routed,
    /// To the router's address, translated to the receiver's.
    Translated,
}

impl Generator {
    /// Loads the program.
    pub fn new() -> Result<Self> {
        let mut kernel = Kernel::load()?;
        kernel.xdp("bench_generate")?;
        Ok(Self { kernel })
    }

    /// Sends on one lane for a while and counts what arrives at `sink`.
    pub fn run(
        &mut self,
        rig: &Rig,
        lane: &Lane,
        path: Path,
        workload: Workload,
        limit: Limit,
        sink: &Kernel,
    ) -> Result<Round> {
        self.kernel.configure(sent(rig, lane, path, workload)?)?;
        let program = self.kernel.xdp("bench_generate")?;
        let before = sink.tally()?;
        let (sent, elapsed) = rig.sender.run(|| {
            affinity::own_a_core()?;
            let frame = [0; FRAME];
            let (mut sent, mut elapsed) = (0, Duration::ZERO);
            while let Some(repeat) = limit.more(sent, elapsed) {
                let options = TestRunOptions {
                    data_in: Some(&frame),
                    repeat,
                    attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                    ..TestRunOptions::new()
                };
                let result =
                    program.test_run(options).context("sending live frames (needs kernel 5.18)")?;
                sent += u64::from(repeat);
                elapsed += result.duration * repeat;
            }
            Ok((sent, elapsed))
        })?;
        let after = sink.settled()?;
        ensure!(after.packets > before.packets, "lane {}: nothing arrived", lane.index);
        Ok(Round {
            sent,
            received: after.packets - before.packets,
            wrong: after.wrong - before.wrong,
            seconds: elapsed.as_secs_f64(),
        })
    }
}

/// When a round ends.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Time(Duration),
    Packets(u64),
}

impl Limit {
    /// How many frames to send next; `None` when the round is over.
    fn more(self, sent: u64, elapsed: Duration) -> Option<u32> {
        let frames = match self {
            Self::Time(_) if sent == 0 => return Some(FIRST),
            Self::Time(time) => {
                let left = time.saturating_sub(elapsed).as_secs_f64();
                // Less than a first call's worth is not worth a grace period.
                let frames = left / elapsed.as_secs_f64() * sent as f64;
                if frames < f64::from(FIRST) { 0 } else { frames as u64 }
            }
            Self::Packets(packets) => packets.saturating_sub(sent),
        };
        (frames > 0).then(|| u32::try_from(frames).unwrap_or(u32::MAX))
    }
}

/// The header that the generator sends.
fn sent(rig: &Rig, lane: &Lane, path: Path, workload: Workload) -> Result<Config> {
    let device = lane.sender_device();
    let ifindex = rig.sender.run(|| Ok(nix::net::if_::if_nametoindex(device.as_str())?))?;
    let destination = match path {
        Path::Bridged | Path::Routed => lane.backend(),
        Path::Translated => lane.frontend(),
    };
    let mut config = header(lane.mac(1), lane.mac(0), 64, destination.octets(), FIRST_PORT);
    config.ifindex = ifindex;
    config.flows = workload.flows;
    config.ports = u32::from(workload.ports);
    Ok(config)
}

/// What the sink must see: with `flows` set, it looks at each frame.
pub fn expected(lane: &Lane, path: Path, workload: Workload) -> Config {
    let (ttl, port) = match path {
        Path::Bridged => (64, FIRST_PORT),
        Path::Routed => (63, FIRST_PORT),
        Path::Translated => (63, BACKEND_PORT),
    };
    let mut config = header(lane.mac(3), lane.mac(2), ttl, lane.backend().octets(), port);
    config.flows = workload.flows;
    // Without translation the ports stay as they were: as many as were sent to.
    config.ports = if path == Path::Translated { 1 } else { u32::from(workload.ports) };
    config
}

/// What a plain redirect writes.
pub fn redirected(lane: &Lane, ifindex: u32) -> Config {
    let mut config = header(lane.mac(3), lane.mac(2), 64, [0; 4], 0);
    config.ifindex = ifindex;
    config
}

/// A sink that only counts.
pub fn counting() -> Config {
    Config { header: [0; 42], reserved: 0, flows: 0, ports: 0, ifindex: 0, ip_sum: 0, udp_sum: 0 }
}

fn header(to: [u8; 6], from: [u8; 6], ttl: u8, destination: [u8; 4], port: u16) -> Config {
    let ip_length = (FRAME - 14) as u16;
    let udp_length = ip_length - 20;
    let mut header = Vec::with_capacity(42);
    header.extend(to);
    header.extend(from);
    header.extend([8, 0, 0x45, 0]);
    header.extend(ip_length.to_be_bytes());
    header.extend([0, 0, 0x40, 0, ttl, 17, 0, 0]);
    header.extend(SOURCES.octets());
    header.extend(destination);
    header.extend([0, 0]);
    header.extend(port.to_be_bytes());
    header.extend(udp_length.to_be_bytes());
    header.extend([0, 0]);
    let (_, ip) = header.split_at(14);
    let (fixed, addresses) = ip.split_at(12);
    let (addresses, _) = addresses.split_at(8);
    let (_, to) = addresses.split_at(4);
    let ip_sum = words(fixed) + words(to);
    // Length counts twice: in the pseudo-header and in the header.
    let udp_sum = words(to) + 17 + 2 * u32::from(udp_length);
    let mut config = Config { ip_sum: fold(ip_sum), udp_sum: fold(udp_sum), ..counting() };
    config.header.copy_from_slice(&header);
    config
}

fn words(data: &[u8]) -> u32 {
    data.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum()
}

fn fold(sum: u32) -> u32 {
    (sum & 0xffff) + (sum >> 16)
}
