//! The same question put to the kernel programs: loaded a second time with the same table, attached to nothing, and given
//! one packet in this process's network namespace, so that its local sockets count too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proxy_ebpf_common::DropReason;
use proxy_rules::{
    Protocol, RuleTable, Settings, Side,
    packet::{self, build::Build, flag},
};

use super::{BadQuestion, Question, end};
use crate::data_path::{
    ApplyError,
    ebpf::{
        device::{self, Device},
        shadow::{Shadow, ShadowLink},
    },
};

/// What a question costs in flows.
const FLOWS: u32 = 64;
/// Actions of a TC program (include/uapi/linux/pkt_cls.h).
const UNSPEC: i32 = -1;
const SHOT: i32 = 2;
const REDIRECT: i32 = 7;

/// Why the programs gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// The question is not one.
    #[error(transparent)]
    Question(#[from] BadQuestion),
    /// The programs could not be asked.
    #[error(transparent)]
    Programs(#[from] ApplyError),
}

/// What the programs do with the first packet of the flow.
pub fn ask(table: &RuleTable, question: &Question) -> Result<String, NoAnswer> {
    let Some(frame) = frame(question)? else {
        return Ok("not asked: the destination has no port".to_owned());
    };
    let settings = Settings { max_flows: FLOWS, ..table.settings().clone() };
    let addresses = device::addresses().map_err(|e| ApplyError::step("listing addresses", e))?;
    let found = device::devices(&settings.interfaces, &addresses)
        .map_err(|(name, e)| ApplyError::step(format!("looking at {name}"), e))?;
    let first = |side| found.iter().find(|device| device.side == side).map(link);
    let links: Vec<_> = [Side::Tailnet, Side::Cluster].into_iter().filter_map(first).collect();
    let local: Vec<IpAddr> = addresses.into_values().flatten().collect();
    let table = RuleTable::new(table.rules().to_vec(), settings);
    let mut shadow = Shadow::new(&table, &links, &local)?;
    let before = drops(&shadow)?;
    let verdict = shadow.run(question.from, &frame)?;
    let reason = before.iter().zip(drops(&shadow)?).find(|((_, old), (_, new))| old < new);
    let reason = reason.map_or("no reason given", |((reason, _), _)| reason.label());
    Ok(match verdict.action {
        UNSPEC => "left to the kernel".to_owned(),
        SHOT => format!("dropped: {reason}"),
        REDIRECT if reason != "no reason given" => {
            format!("refused, and the sender told: {reason}")
        }
        REDIRECT => format!("sent on as {}", ends(&verdict.frame)),
        other => format!("action {other}"),
    })
}

fn drops(shadow: &Shadow) -> Result<Vec<(DropReason, u64)>, ApplyError> {
    let count = |reason: &DropReason| shadow.drops(*reason).map(|packets| (*reason, packets));
    DropReason::ALL
        .iter()
        .map(count)
        .collect::<Result<_, _>>()
        .map_err(|error| ApplyError::step(error.step, error.source))
}

fn link(device: &Device) -> ShadowLink {
    let v4 = Ipv6Addr::from(device.link.address4).to_ipv4_mapped();
    let v6 = Ipv6Addr::from(device.link.address6);
    ShadowLink {
        side: device.side,
        l3: device.l3,
        mtu: device.link.mtu,
        address4: v4.filter(|address| *address != Ipv4Addr::UNSPECIFIED),
        address6: (v6 != Ipv6Addr::UNSPECIFIED).then_some(v6),
    }
}

/// The first packet of the flow. `None` without a port to send it to; any source port will do.
fn frame(question: &Question) -> Result<Option<Vec<u8>>, BadQuestion> {
    let protocol = question.protocol()?;
    let (mut src, dst) = (end(&question.src)?, end(&question.dst)?);
    if protocol != Protocol::Icmp && dst.1 == 0 {
        return Ok(None);
    }
    if src.1 == 0 {
        src.1 = 40_000;
    }
    let build = match protocol {
        Protocol::Tcp => Build::tcp(src.into(), dst.into(), flag::SYN),
        Protocol::Udp => Build::udp(src.into(), dst.into()),
        Protocol::Icmp => Build::echo(src.0, dst.0, 1, false),
    };
    Ok(Some(build.frame([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])))
}

/// The ends of a frame as they are now.
fn ends(frame: &[u8]) -> String {
    // A device without an Ethernet header takes the bare packet.
    let packet = packet::strip_ethernet(frame).unwrap_or(frame);
    match packet::parse(packet, None) {
        Ok(headers) if headers.src_port == 0 && headers.dst_port == 0 => {
            format!("{} -> {}", headers.src, headers.dst)
        }
        Ok(headers) => {
            let end = |address, port| std::net::SocketAddr::new(address, port);
            let (src, dst) =
                (end(headers.src, headers.src_port), end(headers.dst, headers.dst_port));
            format!("{src} -> {dst}")
        }
        Err(_) => "something that is not a packet".to_owned(),
    }
}
