//! The `settings` section.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use super::{
    error::{Path, Report, shown},
    leaf,
};
use crate::{
    Fragments, Interfaces, Settings, SnatPorts, Unmatched,
    config::{self, DataPath, Options, PathKind, WireFragments, WireInterfaces, WireUnmatched},
};

const SECTION: Path<'static> = Path::Field(&Path::Root, "settings");

/// The settings of the table.
pub(super) fn settings(wire: &config::Settings, report: &mut Report) -> Settings {
    let path = SECTION.field("protectedSources");
    Settings {
        interfaces: interfaces(&wire.interfaces, report),
        protected: leaf::networks(&wire.protected_sources, &path, report),
        unmatched: match wire.unmatched {
            WireUnmatched::Pass => Unmatched::Pass,
            WireUnmatched::Drop => Unmatched::Drop,
        },
        fragments: match wire.fragments {
            WireFragments::Track => Fragments::Track,
            WireFragments::Drop => Fragments::Drop,
        },
        snat_ports: snat_ports(&wire.snat_ports, report),
        max_flows: wire.max_flows,
    }
}

fn interfaces(wire: &WireInterfaces, report: &mut Report) -> Interfaces {
    let path = SECTION.field("interfaces");
    let mut seen = HashSet::new();
    let mut side = |names: &[String], side: &str| {
        let path = path.field(side);
        let mut list = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let path = path.index(index);
            let Some(name) = leaf::interface(name, &path, report) else { continue };
            if !seen.insert(name.clone()) {
                report.add(path, format!("{name} is given twice"), "a device is on one side, once");
            }
            list.push(name);
        }
        list
    };
    Interfaces { tailnet: side(&wire.tailnet, "tailnet"), cluster: side(&wire.cluster, "cluster") }
}

fn snat_ports(wire: &config::SnatPorts, report: &mut Report) -> SnatPorts {
    let path = SECTION.field("snatPorts");
    let default = Settings::default().snat_ports;
    let range = leaf::port_text(&wire.range, &path.field("range"), report);
    let (first, last) = range.map_or((default.first, default.last), |r| (r.first(), r.last()));
    let list = path.field("reserved");
    let mut is_reserved = vec![false; usize::from(u16::MAX) + 1];
    for (index, spec) in wire.reserved.iter().enumerate() {
        let Some(range) = leaf::ports(spec, &list.index(index), report) else { continue };
        for port in range.first()..=range.last() {
            if let Some(slot) = is_reserved.get_mut(usize::from(port)) {
                *slot = true;
            }
        }
    }
    let chosen = |port: &u16| is_reserved.get(usize::from(*port)).copied().unwrap_or_default();
    let reserved: Vec<u16> = (1..=u16::MAX).filter(chosen).collect();
    if (first..=last).all(|port| chosen(&port)) {
        let problem = format!("every port of {first}-{last} is reserved");
        report.add(list, problem, "reserve fewer ports or widen settings.snatPorts.range");
    }
    SnatPorts { first, last, reserved, tries: wire.tries }
}

/// The options of the process.
pub(super) fn options(wire: &config::Settings, report: &mut Report) -> Options {
    let data_paths = match &wire.data_path {
        DataPath::Word(_) => PathKind::ALL.to_vec(),
        DataPath::List(list) => {
            let path = SECTION.field("dataPath");
            for (index, kind) in list.iter().enumerate() {
                if list.iter().take(index.min(PathKind::ALL.len())).any(|other| other == kind) {
                    let problem = format!("{kind} is given twice");
                    report.add(path.index(index), problem, "name each data path once");
                }
            }
            list.clone()
        }
    };
    let bpffs = wire.bpffs.as_deref().filter(|text| !text.is_empty()).map(PathBuf::from);
    if let Some(relative) = bpffs.as_ref().filter(|path| !path.is_absolute()) {
        let problem = format!("`{}` is not an absolute path", shown(&relative.to_string_lossy()));
        report.add(SECTION.field("bpffs"), problem, "use a directory on a bpffs: /sys/fs/bpf/NAME");
    }
    Options {
        data_paths,
        xdp: wire.xdp,
        bpffs,
        admin: admin(&wire.admin_address, report),
        drain: Duration::from_secs(wire.drain_seconds.into()),
    }
}

fn admin(text: &str, report: &mut Report) -> SocketAddr {
    let default = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9002);
    if text.is_empty() {
        return default;
    }
    text.parse().unwrap_or_else(|_| {
        let problem = format!("`{}` is not an address with a port", shown(text));
        let remedy = "use address:port, such as 127.0.0.1:9002 or [::]:9002";
        report.add(SECTION.field("adminAddress"), problem, remedy);
        default
    })
}
