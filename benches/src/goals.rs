//! The goals, worked out of the series: ratios within one run, never absolute figures.

use serde::Serialize;

use crate::{
    netstack,
    pairs::Found,
    rung::Rung,
    series::{Measure, Series},
    stats::{self, Quartiles},
};

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
}

/// One figure that must be reached.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    pub id: &'static str,
    pub what: &'static str,
    /// The median of what each round gives; `None`: not measured.
    pub value: Option<f64>,
    pub quartiles: Option<Quartiles>,
    pub floor: f64,
    pub aim: f64,
    pub better: Better,
    pub not_measured: Option<&'static str>,
}

impl Goal {
    /// Judged by the median of what each round gave.
    pub fn new(
        id: &'static str,
        what: &'static str,
        sample: &[f64],
        floor: f64,
        aim: f64,
        better: Better,
    ) -> Self {
        Self {
            id,
            what,
            value: stats::quantile(sample, 0.5),
            quartiles: stats::quartiles(sample),
            floor,
            aim,
            better,
            not_measured: sample.is_empty().then_some("left out of this run"),
        }
    }

    /// Whether it was measured and does not reach its floor.
    pub fn is_missed(&self) -> bool {
        self.value.is_some_and(|value| !reaches(value, self.floor, self.better))
    }

    /// How far it has come.
    pub fn verdict(&self) -> &'static str {
        match self.value {
            None => "not measured",
            Some(value) if reaches(value, self.aim, self.better) => "aim",
            Some(value) if reaches(value, self.floor, self.better) => "floor",
            Some(_) => "MISSED",
        }
    }
}

fn reaches(value: f64, mark: f64, better: Better) -> bool {
    match better {
        Better::Higher => value >= mark,
        Better::Lower => value <= mark,
    }
}

/// Everything a run has measured.
pub struct Book<'a> {
    pub series: &'a [Series],
    pub found: Option<Found>,
    /// Resident memory of the agent, MB.
    pub resident: Option<f64>,
}

impl Book<'_> {
    fn values(&self, measure: Measure, rung: Rung, flows: u32, ports: u16) -> &[f64] {
        let found = self
            .series
            .iter()
            .find(|s| (s.measure, s.rung, s.flows, s.ports) == (measure, rung, flows, ports));
        found.map_or(&[], |series| &series.values)
    }

    fn packet(&self, rung: Rung) -> &[f64] {
        self.values(Measure::Packet, rung, 1024, 1)
    }

    /// Packet rates' quotient: the inverse of the times'.
    fn rate(&self, of: Rung, to: Rung) -> Vec<f64> {
        stats::ratios(self.packet(to), self.packet(of))
    }

    fn crr(&self, rung: Rung, ports: u16) -> &[f64] {
        self.values(Measure::TcpCrr, rung, 1, ports)
    }

    /// Lost, wrong or uncounted packets of our paths.
    fn errors(&self) -> Option<f64> {
        let mut ours = self.series.iter().filter(|s| s.rung.is_ours() && s.sent > 0).peekable();
        ours.peek()?;
        let errors = ours.map(|series| {
            series.lost + series.wrong + series.counted.map_or(0, |n| n.abs_diff(series.sent))
        });
        Some(errors.sum::<u64>() as f64)
    }

    /// Every goal.
    pub fn goals(&self) -> Vec<Goal> {
        use Better::{Higher, Lower};
        use Rung::{
            Netstack, NftMap, NftUpstream, Raw, SluiceNft, SluiceTc, SluiceUser, SluiceXdp,
            XdpDrop, XdpRedirect,
        };
        let tun = |measure, rung| self.values(measure, rung, 1, 1);
        let marginal = |rung| {
            let over = self.packet(rung).iter().zip(self.packet(XdpDrop));
            over.map(|(all, ceiling)| all - ceiling).collect::<Vec<_>>()
        };
        let added: Vec<f64> = (self.values(Measure::TcpRrP99, SluiceTc, 1, 1).iter())
            .zip(self.values(Measure::TcpRrP99, Raw, 1, 1))
            .map(|(ours, raw)| ours - raw)
            .collect();
        let stream = |rung| self.values(Measure::TcpStream, rung, 1, 1);
        let at = |flows| self.values(Measure::Packet, SluiceTc, flows, 2);
        let cold = |ports| self.values(Measure::ApplyCold, SluiceTc, 0, ports);
        let change = self.values(Measure::ApplyChange, SluiceTc, 0, 1000);
        let half_pairs: Vec<f64> = self.found.iter().map(|f| f.without_pair as f64).collect();
        let errors: Vec<f64> = self.errors().into_iter().collect();
        let resident: Vec<f64> = self.resident.into_iter().collect();
        let goal = Goal::new;
        let mut goals = vec![
            goal(
                "G1",
                "packet rate, XDP / nft map, 1024 flows",
                &self.rate(SluiceXdp, NftMap),
                1.9,
                2.5,
                Higher,
            ),
            goal(
                "G2",
                "packet rate, XDP / plain XDP redirect",
                &self.rate(SluiceXdp, XdpRedirect),
                0.75,
                0.9,
                Higher,
            ),
            goal(
                "G3",
                "cost over XDP_DROP, XDP / nft map",
                &stats::ratios(&marginal(SluiceXdp), &marginal(NftMap)),
                0.2,
                0.125,
                Lower,
            ),
            goal("G4", "packet rate, TC / nft map", &self.rate(SluiceTc, NftMap), 1.2, 1.6, Higher),
            goal(
                "G5",
                "packet rate, TC / raw forwarding",
                &self.rate(SluiceTc, Raw),
                1.0,
                1.15,
                Higher,
            ),
            goal(
                "G6",
                "one TCP stream, TC / raw forwarding",
                &stats::ratios(stream(SluiceTc), stream(Raw)),
                0.95,
                1.0,
                Higher,
            ),
            goal(
                "G7",
                "TUN, 16 KiB GSO: time, ours / nft map",
                &stats::ratios(tun(Measure::TunTcpGso, SluiceTc), tun(Measure::TunTcpGso, NftMap)),
                0.75,
                0.65,
                Lower,
            ),
            goal(
                "G8",
                "TUN, small UDP: time, ours / raw forwarding",
                &stats::ratios(tun(Measure::TunUdp, SluiceTc), tun(Measure::TunUdp, Raw)),
                1.0,
                0.9,
                Lower,
            ),
            goal(
                "G9",
                "connections a second, TC / nft map, 1 port",
                &stats::ratios(self.crr(SluiceTc, 1), self.crr(NftMap, 1)),
                1.1,
                1.3,
                Higher,
            ),
            goal(
                "G10a",
                "connections a second, TC / upstream layout, 1000 ports",
                &stats::ratios(self.crr(SluiceTc, 1000), self.crr(NftUpstream, 1000)),
                1.9,
                2.5,
                Higher,
            ),
            goal(
                "G10b",
                "connections a second, TC, 10 000 ports / 1 port",
                &stats::ratios(self.crr(SluiceTc, 10_000), self.crr(SluiceTc, 1)),
                0.9,
                0.98,
                Higher,
            ),
            goal(
                "G11",
                "connections a second, 1000 ports, our nftables / our TC",
                &stats::ratios(self.crr(SluiceNft, 1000), self.crr(SluiceTc, 1000)),
                0.8,
                0.9,
                Higher,
            ),
            goal("G12", "request-response p99 over raw, us", &added, 5.0, 2.0, Lower),
            goal(
                "G13a",
                "packet rate, TC, 1 M live flows / 1024",
                &stats::ratios(at(1024), at(1 << 20)),
                0.6,
                0.8,
                Higher,
            ),
            goal("G13b", "lost, wrong or uncounted packets of our paths", &errors, 0.0, 0.0, Lower),
            goal("G13c", "half pairs after twice the capacity", &half_pairs, 0.0, 0.0, Lower),
            goal("G14a", "apply 1000 ports from empty, ms", cold(1000), 100.0, 20.0, Lower),
            goal("G14b", "apply one change among 1000 ports, ms", change, 2.0, 0.3, Lower),
            goal("G14c", "apply 10 000 ports from empty, ms", cold(10_000), 1000.0, 200.0, Lower),
            goal(
                "G15",
                "one TCP stream, user space / tailscaled's netstack",
                &stats::ratios(stream(SluiceUser), stream(Netstack)),
                1.0,
                2.0,
                Higher,
            ),
            goal(
                "G16",
                "agent's resident memory, 1000 ports, 64 k flows, MB",
                &resident,
                20.0,
                10.0,
                Lower,
            ),
        ];
        for goal in &mut goals {
            if goal.id == "G15" && std::env::var_os(netstack::PROGRAM).is_none() {
                goal.not_measured = Some("needs Go 1.26 or newer, to build tailscaled's netstack");
            }
        }
        goals
    }
}
