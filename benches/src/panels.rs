//! What of the packet-rate benchmark is drawn.

use crate::{
    plot::{Bar, Kind, Panel, Picture},
    rung::Rung,
    series::{Measure, Series},
    stats,
};

/// Title, measure, flows, ports.
const PANELS: [(&str, Measure, u32, u16); 6] = [
    ("60-byte UDP, 1024 flows", Measure::Packet, 1024, 1),
    ("60-byte UDP, 1 M flows", Measure::Packet, 1 << 20, 2),
    ("from a TUN device: 46-byte UDP", Measure::TunUdp, 1, 1),
    ("from a TUN device: 16 KiB TCP super-packet", Measure::TunTcpGso, 1, 1),
    ("new TCP connections, 1 port", Measure::TcpCrr, 1, 1),
    ("new TCP connections, 1000 ports", Measure::TcpCrr, 1, 1000),
];

/// The run as a picture.
pub fn picture(all: &[Series]) -> Picture {
    let panel = |&(title, measure, flows, ports): &(&str, Measure, u32, u16)| {
        let bars = all
            .iter()
            .filter(|s| (s.measure, s.flows, s.ports) == (measure, flows, ports))
            .filter_map(|series| {
                let quartiles = stats::quartiles(&series.values)?;
                Some(Bar { label: series.rung.label(), kind: kind(series.rung), quartiles })
            });
        let better = if measure == Measure::TcpCrr { "more" } else { "less" };
        Panel {
            title: title.to_owned(),
            note: format!("{}, {better} is better", measure.unit()),
            digits: 0,
            bars: bars.collect(),
        }
    };
    Picture {
        title: "Sluice beside the kernel's own ways",
        panels: PANELS.iter().map(panel).collect(),
        row: 321,
    }
}

const fn kind(rung: Rung) -> Kind {
    match rung {
        rung if rung.is_ours() => Kind::Ours,
        Rung::XdpDrop | Rung::XdpRedirect => Kind::Bound,
        _ => Kind::Theirs,
    }
}
