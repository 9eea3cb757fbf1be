//! Programs on devices: tcx links where the kernel has them (6.6), else clsact filters; XDP only when asked for.

use std::{
    io,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    programs::{
        LinkOrder, ProgramError, SchedClassifier, TcAttachType, Xdp, XdpMode,
        links::{FdLink, PinnedLink},
        tc::{self, NlOptions, SchedClassifierLink, SchedClassifierLinkId, TcAttachOptions},
        xdp::{XdpLink, XdpLinkId},
    },
};
use proxy_ebpf_common::name;
use proxy_rules::{Interfaces, Side};

use super::{device::Device, load};
use crate::data_path::{ApplyError, Unsupported};

/// When XDP is used. It never is on a device without an Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpChoice {
    /// Never: on a veth it would cost TCP most of its throughput (segmentation offload goes off).
    #[default]
    Off,
    /// In the driver, where the driver can and is not a veth.
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the kernel's generic form.
    Generic,
}

/// How a device is attended to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The device.
    pub device: String,
    /// Its index.
    pub ifindex: u32,
    /// Its side.
    pub side: Side,
    /// `tcx`, `clsact`, and `xdp-native` or `xdp-generic` beside it.
    pub mode: &'static str,
    /// Whether it outlives the process.
    pub pinned: bool,
    /// What was asked for and could not be had, and why.
    pub notes: Vec<String>,
}

/// What must be kept, and undone at the end.
#[derive(Debug)]
struct Held {
    device: Device,
    pin: Option<PathBuf>,
    tc: Option<SchedClassifierLinkId>,
    /// It is a tcx link, which can be pinned, and not a clsact filter.
    tcx: bool,
    /// We have added the clsact qdisc.
    qdisc: bool,
    xdp: Option<XdpLinkId>,
    xdp_pin: Option<PathBuf>,
}

/// Every attachment of one data path.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    held: Vec<Held>,
    pub(super) report: Vec<Attachment>,
}

/// The TC program for a device.
fn tc_name(device: &Device) -> &'static str {
    tc_program(device.l3, device.side)
}

/// The TC programs that these devices need; those that are not there yet are tailscaled's, and have no Ethernet header.
pub(super) fn likely_programs(interfaces: &Interfaces) -> Vec<&'static str> {
    let of = |names: &[String], side| {
        let program = |name: &String| tc_program(super::device::is_l3(name).unwrap_or(true), side);
        names.iter().map(program).collect::<Vec<_>>()
    };
    let mut programs = of(&interfaces.tailnet, Side::Tailnet);
    programs.extend(of(&interfaces.cluster, Side::Cluster));
    programs.sort_unstable();
    programs.dedup();
    programs
}

fn tc_program(l3: bool, side: Side) -> &'static str {
    match (l3, side) {
        (false, Side::Tailnet) => name::TC_L2_TAILNET,
        (false, Side::Cluster) => name::TC_L2_CLUSTER,
        (true, Side::Tailnet) => name::TC_L3_TAILNET,
        (true, Side::Cluster) => name::TC_L3_CLUSTER,
    }
}

/// The XDP program for a device.
fn xdp_name(device: &Device) -> &'static str {
    match device.side {
        Side::Tailnet => name::XDP_TAILNET,
        Side::Cluster => name::XDP_CLUSTER,
    }
}

fn failed(device: &Device, error: impl std::error::Error + Send + Sync + 'static) -> ApplyError {
    ApplyError::step(format!("attaching to {}", device.name), error)
}

impl Attachments {
    /// Whether exactly these devices are attended to.
    pub(super) fn covers(&self, devices: &[Device]) -> bool {
        let key = |device: &Device| (device.ifindex, device.side, device.l3);
        self.held.len() == devices.len()
            && self.held.iter().zip(devices).all(|(held, device)| key(&held.device) == key(device))
    }

    /// Attaches to the devices that are new and leaves those that are gone.
    pub(super) fn update(
        &mut self,
        ebpf: &mut Ebpf,
        devices: &[Device],
        pins: Option<&Path>,
        xdp: XdpChoice,
    ) -> Result<(), ApplyError> {
        let same = |held: &Held, device: &Device| {
            (held.device.ifindex, held.device.side, held.device.l3)
                == (device.ifindex, device.side, device.l3)
        };
        let (keep, leave): (Vec<Held>, Vec<Held>) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|held| devices.iter().any(|device| same(held, device)));
        self.held = keep;
        for held in leave {
            self.report.retain(|report| report.ifindex != held.device.ifindex);
            release(ebpf, held);
        }
        for device in devices {
            if !self.held.iter().any(|held| same(held, device)) {
                self.attach(ebpf, device, pins, xdp)?;
            }
        }
        let place = |ifindex: u32| devices.iter().position(|device| device.ifindex == ifindex);
        self.held.sort_by_key(|held| place(held.device.ifindex));
        self.report.sort_by_key(|report| place(report.ifindex));
        Ok(())
    }

    fn attach(
        &mut self,
        ebpf: &mut Ebpf,
        device: &Device,
        pins: Option<&Path>,
        xdp: XdpChoice,
    ) -> Result<(), ApplyError> {
        let name = tc_name(device);
        load::load(ebpf, name)?;
        let mut notes = Vec::new();
        let mut held = Held {
            device: device.clone(),
            pin: None,
            tc: None,
            tcx: true,
            qdisc: false,
            xdp: None,
            xdp_pin: None,
        };
        let pin = pins.map(|pins| pins.join(format!("tc-{}", device.ifindex)));
        let program = classifier(ebpf, name)?;
        let mut mode = "tcx";
        match tcx(program, device, pin.as_deref()) {
            Ok(Tcx::Pinned) => held.pin = pin,
            Ok(Tcx::Held(link)) => held.tc = Some(link),
            Err(error) => {
                notes.push(format!("tcx: {error}"));
                mode = "clsact";
                held.tcx = false;
                (held.tc, held.qdisc) = clsact(program, device, name)?;
            }
        }
        if xdp != XdpChoice::Off {
            match attach_xdp(ebpf, device, pins, xdp, &mut held) {
                Ok(attached) => mode = attached,
                Err(reason) => notes.push(format!("xdp: {reason}")),
            }
        }
        self.report.push(Attachment {
            device: device.name.clone(),
            ifindex: device.ifindex,
            side: device.side,
            mode,
            pinned: held.pin.is_some(),
            notes,
        });
        self.held.push(held);
        Ok(())
    }

    /// Lets `other`, attached to the same devices, take over what both need.
    pub(super) fn hand_over(&mut self, other: &mut Self) {
        for held in &mut self.held {
            let same = |to: &&mut Held| to.device.ifindex == held.device.ifindex;
            if let Some(to) = other.held.iter_mut().find(same) {
                to.qdisc |= std::mem::take(&mut held.qdisc);
            }
        }
    }

    /// Takes XDP programs off and leaves the rest.
    pub(super) fn remove_xdp(&mut self, ebpf: &mut Ebpf) {
        for held in &mut self.held {
            let xdp_only = Held {
                device: held.device.clone(),
                pin: None,
                tc: None,
                tcx: false,
                qdisc: false,
                xdp: held.xdp.take(),
                xdp_pin: held.xdp_pin.take(),
            };
            release(ebpf, xdp_only);
        }
    }

    /// Pins what was attached without pins.
    pub(super) fn pin(&mut self, ebpf: &mut Ebpf, pins: &Path) -> Result<(), ProgramError> {
        let other =
            |error: aya::programs::links::LinkError| ProgramError::IOError(io::Error::other(error));
        let unpinned = |error: aya::pin::PinError| ProgramError::IOError(io::Error::other(error));
        for held in &mut self.held {
            let ifindex = held.device.ifindex;
            if held.tcx
                && let Some(id) = held.tc.take()
            {
                let program: &mut SchedClassifier = ebpf
                    .program_mut(tc_name(&held.device))
                    .and_then(|program| program.try_into().ok())
                    .ok_or(ProgramError::NotLoaded)?;
                let link = FdLink::try_from(program.take_link(id)?).map_err(other)?;
                let pin = pins.join(format!("tc-{ifindex}"));
                link.pin(&pin).map_err(unpinned)?;
                held.pin = Some(pin);
            }
            if let Some(id) = held.xdp.take() {
                let program: &mut Xdp = ebpf
                    .program_mut(xdp_name(&held.device))
                    .and_then(|program| program.try_into().ok())
                    .ok_or(ProgramError::NotLoaded)?;
                let link = FdLink::try_from(program.take_link(id)?).map_err(other)?;
                let pin = pins.join(format!("xdp-{ifindex}"));
                link.pin(&pin).map_err(unpinned)?;
                held.xdp_pin = Some(pin);
            }
            let pinned = held.pin.is_some();
            for report in self.report.iter_mut().filter(|report| report.ifindex == ifindex) {
                report.pinned = pinned;
            }
        }
        Ok(())
    }

    /// Detaches everywhere.
    pub(super) fn remove(&mut self, ebpf: &mut Ebpf) {
        for held in std::mem::take(&mut self.held) {
            release(ebpf, held);
        }
        self.report.clear();
    }
}

fn classifier<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, ApplyError> {
    ebpf.program_mut(name)
        .and_then(|program| <&mut SchedClassifier>::try_from(program).ok())
        .ok_or(ApplyError::Unsupported(Unsupported::BuiltWithout))
}

enum Tcx {
    Pinned,
    Held(SchedClassifierLinkId),
}

fn tcx(
    program: &mut SchedClassifier,
    device: &Device,
    pin: Option<&Path>,
) -> Result<Tcx, ProgramError> {
    let other =
        |error: aya::programs::links::LinkError| ProgramError::IOError(io::Error::other(error));
    if let Some(pin) = pin
        && let Ok(old) = PinnedLink::from_pin(pin)
    {
        // The kernel swaps the program of the link atomically: no packet passes unattended.
        let link = SchedClassifierLink::try_from(FdLink::from(old)).map_err(other)?;
        match program.attach_to_link(link) {
            Ok(id) => {
                drop(program.take_link(id)?);
                return Ok(Tcx::Pinned);
            }
            Err(error) => {
                tracing::warn!(%error, device = device.name, "a pinned link could not be taken over");
                let _gone = std::fs::remove_file(pin);
            }
        }
    }
    let options = TcAttachOptions::TcxOrder(LinkOrder::default());
    let id = program.attach_with_options(&device.name, TcAttachType::Ingress, options)?;
    let Some(pin) = pin else { return Ok(Tcx::Held(id)) };
    let link = FdLink::try_from(program.take_link(id)?).map_err(other)?;
    link.pin(pin).map_err(|error| ProgramError::IOError(io::Error::other(error)))?;
    Ok(Tcx::Pinned)
}

/// Attaches as a clsact filter in place of one that an earlier process has left.
fn clsact(
    program: &mut SchedClassifier,
    device: &Device,
    name: &str,
) -> Result<(Option<SchedClassifierLinkId>, bool), ApplyError> {
    let added = tc::qdisc_add_clsact(&device.name).is_ok();
    let _none = tc::qdisc_detach_program(&device.name, TcAttachType::Ingress, name);
    let options = TcAttachOptions::Netlink(NlOptions::default());
    let id = program
        .attach_with_options(&device.name, TcAttachType::Ingress, options)
        .map_err(|error| failed(device, error))?;
    Ok((Some(id), added))
}

fn attach_xdp(
    ebpf: &mut Ebpf,
    device: &Device,
    pins: Option<&Path>,
    choice: XdpChoice,
    held: &mut Held,
) -> Result<&'static str, String> {
    if device.l3 {
        return Err("the device has no Ethernet header".to_owned());
    }
    if choice == XdpChoice::Auto && is_veth(&device.name) {
        return Err(
            "not on a veth unless asked for by `native`: it would cost TCP most of its throughput"
                .to_owned(),
        );
    }
    let name = xdp_name(device);
    load::load(ebpf, name).map_err(|error| error.to_string())?;
    let program: &mut Xdp = ebpf
        .program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or("the program is missing")?;
    let (mode, label) = match choice {
        XdpChoice::Generic => (XdpMode::Skb, "xdp-generic"),
        _ => (XdpMode::Driver, "xdp-native"),
    };
    let pin = pins.map(|pins| pins.join(format!("xdp-{}", device.ifindex)));
    if let Some(pin) = &pin
        && let Ok(old) = PinnedLink::from_pin(pin)
        && let Ok(link) = XdpLink::try_from(FdLink::from(old))
        && let Ok(id) = program.attach_to_link(link)
    {
        drop(program.take_link(id));
        held.xdp_pin = Some(pin.clone());
        return Ok(label);
    }
    let id = program.attach(&device.name, mode).map_err(|error| chain(&error))?;
    match pin {
        Some(pin) => {
            let link = program.take_link(id).map_err(|error| chain(&error))?;
            let link = FdLink::try_from(link).map_err(|error| chain(&error))?;
            link.pin(&pin).map_err(|error| chain(&error))?;
            held.xdp_pin = Some(pin);
        }
        None => held.xdp = Some(id),
    }
    Ok(label)
}

pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Whether the device's driver is veth, by ethtool's driver information.
fn is_veth(name: &str) -> bool {
    super::device::driver(name).is_ok_and(|driver| driver == "veth")
}

fn release(ebpf: &mut Ebpf, held: Held) {
    for pin in [held.pin, held.xdp_pin].into_iter().flatten() {
        // The kernel gives an unpinned link up some time later; by then it must carry nothing.
        if let Err(error) = super::sys::detach_pinned(&pin) {
            tracing::debug!(%error, pin = %pin.display(), "detached when unpinned, not at once");
        }
        if let Err(error) = std::fs::remove_file(&pin) {
            tracing::warn!(%error, pin = %pin.display(), "a link could not be unpinned");
        }
    }
    if let Some(id) = held.tc
        && let Ok(program) = classifier(ebpf, tc_name(&held.device))
        && let Err(error) = program.detach(id)
    {
        tracing::debug!(%error, device = held.device.name, "already detached");
    }
    if let Some(id) = held.xdp
        && let Some(program) = ebpf.program_mut(xdp_name(&held.device))
        && let Ok(program) = <&mut Xdp>::try_from(program)
        && let Err(error) = program.detach(id)
    {
        tracing::debug!(%error, device = held.device.name, "already detached");
    }
    if held.qdisc
        && let Err(error) = super::neigh::remove_clsact(held.device.ifindex)
    {
        tracing::debug!(%error, device = held.device.name, "the clsact qdisc could not be removed");
    }
}

/// Removes what an earlier process may have left on a device: filters of our names.
pub(super) fn clean(device: &str) {
    for name in [name::TC_L2_TAILNET, name::TC_L2_CLUSTER, name::TC_L3_TAILNET, name::TC_L3_CLUSTER]
    {
        let _none = tc::qdisc_detach_program(device, TcAttachType::Ingress, name);
    }
}
