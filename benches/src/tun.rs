//! The TUN rig: a writer that owns the router's TUN device, as a tunnel's process does, and hands the kernel packets
//! with a virtio header: small ones, and GSO super-packets with sums left to the kernel.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    net::Ipv4Addr,
    os::fd::AsRawFd,
    ptr::from_mut,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use proxy_rules::Protocol;

use crate::{
    affinity,
    generator::{BACKEND_PORT, FIRST_PORT, Path},
    kernel::Kernel,
    plan::Plan,
    progress::Progress,
    rig::{Entry, Lane, Rig, SOURCES},
    rung::{Fitting, Rung},
    series::{Measure, Series},
};

/// Rungs that a TUN device has: XDP needs an Ethernet header.
pub const RUNGS: [Rung; 6] =
    [Rung::SluiceTc, Rung::Raw, Rung::NftMap, Rung::NftUpstream, Rung::Iptables, Rung::SluiceNft];

/// Packets between two looks at the clock.
const BURST: u64 = 256;
const ETHERNET: u64 = 14;

/// Measures one kind of packet on every rung.
pub fn measure(
    measure: Measure,
    rungs: &[Rung],
    plan: &Plan,
    bar: &Progress,
) -> Result<Vec<Series>> {
    let rig = Rig::new(rungs.len(), Entry::Tun)?;
    let protocol = if measure == Measure::TunTcpGso { Protocol::Tcp } else { Protocol::Udp };
    let mut stands = Vec::new();
    for (&rung, lane) in rungs.iter().zip(&rig.lanes) {
        let tun = lane.router.run(|| open("tn0"))?;
        lane.address_tun()?;
        let fitting = rung
            .install(lane, protocol, 1, 262_144)
            .with_context(|| format!("setting up {}", rung.label()))?;
        let mut sink = Kernel::load()?;
        sink.attach_tc("bench_tc_sink", &rig.receiver, &lane.receiver_device())?;
        let packet = packet(measure, lane, rung);
        let series = Series::new(measure, rung, 1, 1);
        stands.push(Stand { rung, _fitting: fitting, sink, tun, packet, series });
    }
    for number in 0..=plan.rounds {
        for stand in &mut stands {
            bar.say(&format!("{}: {}", measure.label(), stand.rung.label()));
            // The first round creates the flow and fills the caches.
            stand.round(plan, number > 0)?;
            if number > 0 {
                bar.step();
            }
        }
    }
    Ok(stands.into_iter().map(|stand| stand.series).collect())
}

struct Stand {
    rung: Rung,
    /// Kept, not read: the lane forwards while it lives.
    _fitting: Fitting,
    sink: Kernel,
    tun: File,
    packet: Vec<u8>,
    series: Series,
}

impl Stand {
    fn round(&mut self, plan: &Plan, keep: bool) -> Result<()> {
        let before = self.sink.tally()?;
        let (tun, packet) = (&mut self.tun, &self.packet);
        let (sent, elapsed) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                affinity::own_a_core()?;
                let (start, mut sent) = (Instant::now(), 0);
                while start.elapsed() < plan.round {
                    for _ in 0..BURST {
                        tun.write_all(packet)?;
                    }
                    sent += BURST;
                }
                anyhow::Ok((sent, start.elapsed()))
            });
            writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?
        })?;
        let after = self.sink.settled()?;
        let received = after.packets - before.packets;
        ensure!(received > 0, "{}: nothing arrived", self.rung.label());
        let length = self.packet.len() as u64 - HEADER as u64 + ETHERNET;
        self.series.sent += sent;
        self.series.lost += sent.saturating_sub(received);
        self.series.verified += received;
        if after.bytes - before.bytes != received * length {
            self.series.wrong += 1;
        }
        if keep {
            self.series.values.push(elapsed.as_secs_f64() * 1e9 / received as f64);
        }
        Ok(())
    }
}

const HEADER: usize = 10;
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
/// Sums, TCP segmentation for both families, UDP segmentation for both families (6.2).
const OFFLOADS: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x20 | 0x40;

/// Opens a TUN device with virtio header in the calling thread's namespace.
pub fn open(name: &str) -> Result<File> {
    let tun = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .context("/dev/net/tun does not open: the benchmark needs a TUN device")?;
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags as libc::c_short },
    };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the request outlives the call and has the layout that the command expects.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFF, from_mut(&mut request)) };
    ensure!(result == 0, "creating {name}: {}", io::Error::last_os_error());
    // SAFETY: the command takes its argument by value.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETOFFLOAD, OFFLOADS) };
    ensure!(result == 0, "offloads of {name} (kernel 6.2): {}", io::Error::last_os_error());
    Ok(tun)
}

/// The packet with its virtio header.
fn packet(measure: Measure, lane: &Lane, rung: Rung) -> Vec<u8> {
    let (destination, port) = match rung.path() {
        Path::Translated => (lane.frontend(), FIRST_PORT),
        Path::Bridged | Path::Routed => (lane.backend(), BACKEND_PORT),
    };
    let source = Ipv4Addr::from(u32::from(SOURCES) + 1);
    // (virtio's GSO type, bytes a segment, payload, sum offset, protocol, transport header)
    let (gso, segment, payload, protocol) = match measure {
        Measure::TunTcpGso => (1_u8, 1240_u16, 16_384_usize, 6_u8),
        Measure::TunUdpUso => (5, 1200, 6_000, 17),
        _ => (0, 0, 18, 17),
    };
    let transport = if protocol == 6 { 20_u16 } else { 8 };
    let length = transport + payload as u16;
    let sum_at = if protocol == 6 { 16_u16 } else { 6 };

    let mut packet = Vec::with_capacity(HEADER + 20 + usize::from(length));
    // Sums are left to the kernel only for super-packets, as a tunnel does it.
    packet.extend([u8::from(gso > 0), gso]);
    for field in [20 + transport, segment, 20, sum_at] {
        packet.extend(if gso > 0 { field } else { 0 }.to_ne_bytes());
    }
    let mut ip = vec![0x45, 0];
    ip.extend((20 + length).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    ip.extend(source.octets());
    ip.extend(destination.octets());
    let sum = !fold(words(&ip));
    ip.splice(10..12, sum.to_be_bytes());
    packet.extend(&ip);

    let addresses = words(&source.octets()) + words(&destination.octets());
    let pseudo = addresses + u32::from(protocol) + u32::from(length);
    let mut segment = Vec::with_capacity(usize::from(length));
    segment.extend(10_000_u16.to_be_bytes());
    segment.extend(port.to_be_bytes());
    if protocol == 6 {
        // Sequence 1, acknowledgement 1, header of five words, ACK and PSH, window.
        segment.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    } else {
        segment.extend(length.to_be_bytes());
        segment.extend([0, 0]);
    }
    segment.resize(usize::from(length), 0);
    let sum = if gso > 0 { fold(pseudo) } else { !fold(pseudo + words(&segment)) };
    let at = usize::from(sum_at);
    segment.splice(at..at + 2, sum.to_be_bytes());
    packet.extend(segment);
    packet
}

fn words(data: &[u8]) -> u32 {
    data.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum()
}

fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
