//! The user side of the benchmark's own kernel programs (`benches/ebpf`).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, PerCpuArray},
    programs::{SchedClassifier, TcAttachType, Xdp, XdpMode},
};

use crate::{affinity, netns::Netns};

/// Aligned as the ELF parser expects.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/benches-ebpf.o"));

/// What the programs of one instance do; the layout of `benches/ebpf/src/maps.rs`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub header: [u8; 42],
    pub reserved: u16,
    pub flows: u32,
    pub ports: u32,
    pub ifindex: u32,
    pub ip_sum: u32,
    pub udp_sum: u32,
}

// SAFETY: integers only, and without padding: 42 + 2 bytes, then five aligned words.
unsafe impl Pod for Config {}

/// What the programs have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub packets: u64,
    pub bytes: u64,
    pub wrong: u64,
}

/// One loaded instance: programs with maps of their own.
pub struct Kernel {
    ebpf: Ebpf,
}

impl Kernel {
    /// Loads the object; no program is loaded yet.
    pub fn load() -> Result<Self> {
        ensure!(
            !OBJECT.is_empty(),
            "built without the benchmark's kernel programs: run `cargo xtask setup`, then build again"
        );
        let ebpf = EbpfLoader::new().load(OBJECT).context("loading the benchmark's programs")?;
        Ok(Self { ebpf })
    }

    /// Sets what the programs do from now on.
    pub fn configure(&mut self, config: Config) -> Result<()> {
        let map = self.ebpf.map_mut("bench_config").context("no map bench_config")?;
        Array::<_, Config>::try_from(map)?.set(0, config, 0)?;
        Ok(())
    }

    /// Loads an XDP program.
    pub fn xdp(&mut self, name: &str) -> Result<&mut Xdp> {
        let program = self.ebpf.program_mut(name).with_context(|| format!("no program {name}"))?;
        let program: &mut Xdp = program.try_into()?;
        if program.fd().is_err() {
            program.load()?;
        }
        Ok(program)
    }

    /// Loads an XDP program and attaches it to a device, in the driver.
    pub fn attach_xdp(&mut self, name: &str, netns: &Netns, device: &str) -> Result<()> {
        let program = self.xdp(name)?;
        netns.run(|| {
            let attached = program.attach(device, XdpMode::Driver);
            attached.map(drop).with_context(|| format!("attaching {name} to {device}"))
        })
    }

    /// Loads a TC program and attaches it to a device's ingress.
    pub fn attach_tc(&mut self, name: &str, netns: &Netns, device: &str) -> Result<()> {
        let program = self.ebpf.program_mut(name).with_context(|| format!("no program {name}"))?;
        let program: &mut SchedClassifier = program.try_into()?;
        program.load()?;
        netns.run(|| {
            // An error means that the kernel is old and the qdisc there already; attaching tells.
            drop(aya::programs::tc::qdisc_add_clsact(device));
            let attached = program.attach(device, TcAttachType::Ingress);
            attached.map(drop).with_context(|| format!("attaching {name} to {device}"))
        })
    }

    /// Reads the counters, summed over CPUs.
    pub fn tally(&self) -> Result<Tally> {
        let map = self.ebpf.map("bench_tally").context("no map bench_tally")?;
        let slots = PerCpuArray::<_, u64>::try_from(map)?;
        let sum = |slot| anyhow::Ok(slots.get(&slot, 0)?.iter().sum());
        Ok(Tally { packets: sum(0)?, bytes: sum(1)?, wrong: sum(2)? })
    }

    /// The counters once they have stopped growing.
    pub fn settled(&self) -> Result<Tally> {
        let mut last = self.tally()?;
        loop {
            affinity::pause(Duration::from_millis(2));
            let now = self.tally()?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
    }
}
