//! Our user-space path beside tailscaled's: the same TUN device, the same client and backend, and what lies between
//! once the kernel's TCP with our relay, once gVisor's with tailscaled's.
//!
//! ```text
//! client - TUN | netstack pump  | TUN - kernel's TCP - our relay - kernel's TCP | veth - backend
//! client - TUN | netstack serve: gVisor's TCP - io.Copy - kernel's TCP          | veth - backend
//! ```
//!
//! The process at the client's TUN stands for tailscaled after decryption. `benches/netstack` is that process: gVisor
//! as tailscaled v1.102.5 pins and configures it. Left out on both sides: tunnel, encryption, packet filter.
//! - For the rival: super-packets reach gVisor whole, where tailscaled splits and merges them; sums are never checked;
//!   no queue and no goroutine lies between stack and device.
//! - Against ours: each packet crosses a second TUN device, as it must when tailscaled runs in kernel mode.
//! - For ours: the kernel's TCP on that device has segmentation offloads, as tailscaled's device has.

use std::{
    env,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};
use proxy_rules::Protocol;

use crate::{
    generator::BACKEND_PORT,
    netns::Netns,
    plan::Plan,
    progress::Progress,
    rig::{Entry, Lane, Rig},
    rung::{Fitting, Rung},
    series::Series,
    tcp::{self, Client, Kind},
    tun,
};

/// Where the rival is; `cargo xtask bench` builds it and says so here.
pub const PROGRAM: &str = "SLUICE_NETSTACK";

/// What is compared: a stream's rate, and connections a second.
const KINDS: [Kind; 2] = [Kind::Stream, Kind::Crr];
const RUNGS: [Rung; 2] = [Rung::SluiceUser, Rung::Netstack];

/// Rounds of this part that the progress bar counts.
pub const ROUNDS: usize = KINDS.len() * RUNGS.len();

/// Measures both, in turn. Nothing if the rival is not built.
pub fn measure(plan: &Plan, bar: &Progress) -> Result<Vec<Series>> {
    if env::var_os(PROGRAM).is_none() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for kind in KINDS {
        all.extend(measure_kind(kind, plan, bar)?);
    }
    Ok(all)
}

fn measure_kind(kind: Kind, plan: &Plan, bar: &Progress) -> Result<Vec<Series>> {
    let rig = Rig::new(RUNGS.len(), Entry::Tun)?;
    tcp::prepare(&rig, kind)?;
    let mut stands = Vec::new();
    for (rung, lane) in RUNGS.into_iter().zip(&rig.lanes) {
        let stand = Stand::new(rung, lane, &rig.sender)
            .with_context(|| format!("setting up {}", rung.label()))?;
        let series: Vec<_> = kind.measures().iter().map(|m| Series::new(*m, rung, 1, 1)).collect();
        stands.push((stand, series));
    }
    for number in 0..=plan.rounds {
        for (stand, series) in &mut stands {
            bar.say(&format!("TCP {kind:?}: {}", stand.rung.label()));
            let time = if number == 0 { plan.round / 4 } else { plan.round };
            let client = &mut stand.client;
            let values = rig
                .sender
                .run(|| client.run(kind, time))
                .with_context(|| format!("TCP {kind:?} through {}", stand.rung.label()))?;
            if number > 0 {
                series.iter_mut().zip(values).for_each(|(s, value)| s.values.push(value));
                bar.step();
            }
        }
    }
    Ok(stands.into_iter().flat_map(|(_, series)| series).collect())
}

struct Stand {
    rung: Rung,
    client: Client,
    /// Kept, not read: they carry while they live.
    _fitting: Fitting,
    _process: Process,
}

impl Stand {
    fn new(rung: Rung, lane: &Lane, sender: &Netns) -> Result<Self> {
        let near = sender.run(|| tun::open(&lane.sender_device()))?;
        lane.connect_tun(sender)?;
        // Both dial the backend from here.
        lane.router.sysctl("net/ipv4/tcp_max_tw_buckets", "0")?;
        let program = env::var_os(PROGRAM).context(PROGRAM)?;
        let mut command = Command::new(&program);
        command.stdin(near);
        let fitting = if rung == Rung::Netstack {
            let backend = format!("{}:{BACKEND_PORT}", lane.backend());
            command.args(["serve", "0", &backend]);
            Fitting::default()
        } else {
            let far = lane.router.run(|| tun::open("tn0"))?;
            lane.address_tun()?;
            command.args(["pump", "0", "1"]).stdout(Stdio::from(far));
            rung.install(lane, Protocol::Tcp, 1, 262_144)?
        };
        let process = lane.router.run(|| {
            let child = command.spawn();
            Ok(Process(child.with_context(|| format!("starting {}", program.display()))?))
        })?;
        Ok(Self { rung, client: Client::new(lane, rung, 1), _fitting: fitting, _process: process })
    }
}

/// A process that ends with the measurement.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
