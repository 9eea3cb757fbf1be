//! Goals G17a to G17c: ours on eBPF beside upstream on nftables, round by round.

use super::{
    book::Book,
    series::Measure,
    way::{Role, Way},
};
use crate::{
    goals::{
        Better::{self, Higher, Lower},
        Goal,
    },
    stats,
};

const OURS: Way = Way::SluiceEbpf;
const THEIRS: Way = Way::UpstreamNft;

/// What is compared.
#[derive(Clone, Copy)]
enum Of {
    /// Ours by theirs, of the sums of these.
    Ratio(&'static [Measure]),
    /// Ours alone.
    Value(Measure),
}

struct Wanted {
    id: &'static str,
    /// Ingress, then egress.
    what: [&'static str; 2],
    of: Of,
    floor: f64,
    aim: f64,
    better: Better,
}

const WANTED: [Wanted; 8] = [
    Wanted {
        id: "G17a",
        what: [
            "ingress, 1 TCP stream, ours / containerboot",
            "egress, 1 TCP stream, ours / containerboot",
        ],
        of: Of::Ratio(&[Measure::Stream1]),
        floor: 1.0,
        aim: 1.1,
        better: Higher,
    },
    Wanted {
        id: "G17a",
        what: [
            "ingress, 8 TCP streams, ours / containerboot",
            "egress, 8 TCP streams, ours / containerboot",
        ],
        of: Of::Ratio(&[Measure::Stream8]),
        floor: 1.0,
        aim: 1.1,
        better: Higher,
    },
    Wanted {
        id: "G17a",
        what: [
            "ingress, pod's CPU per GB, 1 stream, ours / containerboot",
            "egress, pod's CPU per GB, 1 stream, ours / containerboot",
        ],
        of: Of::Ratio(&[Measure::Cpu1Tailscaled, Measure::Cpu1Agent]),
        floor: 0.95,
        aim: 0.85,
        better: Lower,
    },
    Wanted {
        id: "G17a",
        what: [
            "ingress, pod's CPU per GB, 8 streams, ours / containerboot",
            "egress, pod's CPU per GB, 8 streams, ours / containerboot",
        ],
        of: Of::Ratio(&[Measure::Cpu8Tailscaled, Measure::Cpu8Agent]),
        floor: 0.95,
        aim: 0.85,
        better: Lower,
    },
    Wanted {
        id: "G17b",
        what: [
            "ingress, connections a second, ours / containerboot",
            "egress, connections a second, ours / containerboot",
        ],
        of: Of::Ratio(&[Measure::Crr]),
        floor: 1.15,
        aim: 1.4,
        better: Higher,
    },
    Wanted {
        id: "G17b",
        what: [
            "ingress, request-response p99, ours / containerboot",
            "egress, request-response p99, ours / containerboot",
        ],
        of: Of::Ratio(&[Measure::RrP99]),
        floor: 1.0,
        aim: 0.8,
        better: Lower,
    },
    Wanted {
        id: "G17c",
        what: ["ingress, agent's resident memory, MB", "egress, agent's resident memory, MB"],
        of: Of::Value(Measure::MemoryAgent),
        floor: 15.0,
        aim: 8.0,
        better: Lower,
    },
    Wanted {
        id: "G17c",
        what: [
            "ingress, start to first byte, ours / containerboot",
            "egress, start to first byte, ours / containerboot",
        ],
        of: Of::Ratio(&[Measure::Start]),
        floor: 1.0,
        aim: 0.7,
        better: Lower,
    },
];

/// Every goal, ingress before egress.
pub fn goals(book: &Book) -> Vec<Goal> {
    let of_role = |role: Role, number: usize| {
        WANTED.iter().map(move |wanted| {
            let sample = match wanted.of {
                Of::Ratio(measures) => stats::ratios(
                    &sum(book, measures, OURS, role),
                    &sum(book, measures, THEIRS, role),
                ),
                Of::Value(measure) => book.values(measure, OURS, role).to_vec(),
            };
            let what = wanted.what.get(number).copied().unwrap_or_default();
            Goal::new(wanted.id, what, &sample, wanted.floor, wanted.aim, wanted.better)
        })
    };
    Role::ALL.into_iter().enumerate().flat_map(|(number, role)| of_role(role, number)).collect()
}

/// Round by round.
fn sum(book: &Book, measures: &[Measure], way: Way, role: Role) -> Vec<f64> {
    let mut all = measures.iter().map(|measure| book.values(*measure, way, role));
    let first = all.next().unwrap_or_default().to_vec();
    all.fold(first, |sum, more| sum.iter().zip(more).map(|(a, b)| a + b).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_sums_in_the_same_round() {
        let mut book = Book::default();
        let mut add = |measure, way, values: [f64; 2]| {
            for value in values {
                book.add(measure, way, Some(Role::Ingress), value);
            }
        };
        add(Measure::Cpu1Tailscaled, Way::SluiceEbpf, [1.0, 7.0]);
        add(Measure::Cpu1Agent, Way::SluiceEbpf, [1.0, 1.0]);
        add(Measure::Cpu1Tailscaled, Way::UpstreamNft, [3.0, 9.0]);
        add(Measure::Cpu1Agent, Way::UpstreamNft, [1.0, 1.0]);
        add(Measure::MemoryAgent, Way::SluiceEbpf, [14.0, 14.0]);
        let goals = goals(&book);
        let found = |what: &str| goals.iter().find(|goal| goal.what.starts_with(what)).unwrap();
        // 2 / 4 and 8 / 10.
        assert!((found("ingress, pod's CPU per GB, 1").value.unwrap() - 0.65).abs() < 1e-9);
        assert_eq!(found("ingress, pod's CPU per GB, 1").verdict(), "aim");
        assert_eq!(found("ingress, agent").verdict(), "floor");
        assert_eq!(found("egress, agent").verdict(), "not measured");
        assert_eq!(goals.len(), 16);
    }
}
