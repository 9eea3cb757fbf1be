//! Random rules and random packets: the kernel programs against the specification, byte for byte.

use std::net::{Ipv4Addr, Ipv6Addr};

use proxy::data_path::{ApplyError, ebpf::shadow::Shadow};
use proxy_rules::{
    Count, Snapshot,
    model::{Device, Env, Model, Verdict},
    packet::{Fragment, Kind, checksum, parse},
};

use crate::{
    random::{Random, packets::Traffic, rules},
    support::*,
};

const WORLDS: u64 = 8;
const TABLES: u64 = 5;
const PACKETS: u64 = 600;

/// Fewer where the machine is slow, never none.
fn worlds() -> u64 {
    (WORLDS / slowness()).max(1)
}

/// Printed on failure; set `SLUICE_SEED` to repeat one world.
fn seeds() -> Vec<u64> {
    match std::env::var("SLUICE_SEED") {
        Ok(seed) => vec![seed.parse().expect("SLUICE_SEED is a number")],
        Err(_) => (1..=worlds()).collect(),
    }
}

pub(crate) fn env() -> Env {
    let device = |index: usize| {
        let link = LINKS[index];
        let (address4, address6): (Option<Ipv4Addr>, Option<Ipv6Addr>) =
            (link.address4, link.address6);
        Some(Device { address4, address6, mtu: link.mtu, l3: false })
    };
    Env { tailnet: device(0), cluster: device(1), ..Env::default() }
}

#[test]
fn the_kernel_programs_do_what_the_specification_says() {
    kernel_or_skip!();
    let mut tally = Tally::default();
    for seed in seeds() {
        let mut random = Random::new(seed);
        let max_flows = if random.one_in(2) { 24 } else { 2048 };
        let first = rules::table(&mut random, max_flows);
        let mut shadow = world_of(&first);
        let mut model = Model::new(first, env());
        for table in 0..TABLES {
            if table > 0 {
                let next = rules::table(&mut random, max_flows);
                match shadow.apply(&next) {
                    Ok(()) => model.apply(next),
                    // The maps keep their size, and a path would replace them: so does this test.
                    Err(ApplyError::TooMany { .. }) => {
                        shadow = world_of(&next);
                        model = Model::new(next, env());
                    }
                    Err(error) => panic!("seed {seed}, table {table}: {error}"),
                }
            }
            let mut traffic = Traffic::default();
            for number in 0..PACKETS {
                let (side, frame) = traffic.next(&mut random);
                let Ok(got) = shadow.run(side, &frame) else { continue };
                let wanted = model.process(side, &frame);
                let (action, bytes) = match &wanted.verdict {
                    Verdict::Pass => (PASS, frame.clone()),
                    Verdict::Drop(_) => (DROP, got.frame.clone()),
                    Verdict::Answer { bytes, .. } => (REDIRECT, bytes.clone()),
                    // The model knows no Ethernet addresses.
                    Verdict::Forward { bytes, .. } => {
                        let addresses = got.frame.get(..12).unwrap_or_default();
                        (REDIRECT, [addresses, bytes.get(12..).unwrap_or_default()].concat())
                    }
                };
                assert!(
                    got.action == action && got.frame == bytes,
                    "seed {seed}, table {table}, packet {number} from the {side} side:\n{}\nkernel: {} {}\nmodel:  {} {}\n{:#?}\n{:#?}",
                    hex(&frame),
                    got.action,
                    hex(&got.frame),
                    action,
                    hex(&bytes),
                    wanted.trace,
                    model.table(),
                );
                tally.note(&wanted.verdict);
                if let Verdict::Forward { side: out, bytes } = &wanted.verdict {
                    traffic.carried(side, &frame[14..], *out, &bytes[14..]);
                }
            }
            same_counters(seed, &shadow, &model);
        }
    }
    println!("{tally:?}");
    tally.is_worth_its_time();
}

/// Both have counted alike; series that have counted nothing may be absent. A flow counts for the series that it began
/// with, whatever later tables make of its rule.
pub(crate) fn same_counters(seed: u64, shadow: &Shadow, model: &Model) {
    let counted = |mut snapshot: Snapshot| {
        snapshot.series.retain(|_, count| *count != Count::default());
        snapshot.drops.retain(|_, packets| *packets != 0);
        (snapshot.series, snapshot.drops)
    };
    let got = counted(shadow.counters().unwrap());
    let wanted = counted(model.counters());
    assert_eq!(got.1, wanted.1, "seed {seed}: drops");
    assert_eq!(got.0, wanted.0, "seed {seed}: series");
    let (pairs, alone) = shadow.flow_pairs().unwrap();
    assert_eq!((pairs, alone), (model.flows().len() as u64, 0), "seed {seed}: flows");
}

/// How often each end was met: a run that carries nothing proves nothing.
#[derive(Debug, Default)]
struct Tally {
    passed: u64,
    carried: u64,
    answered: u64,
    dropped: u64,
}

impl Tally {
    fn note(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Pass => self.passed += 1,
            Verdict::Forward { .. } => self.carried += 1,
            Verdict::Answer { .. } => self.answered += 1,
            Verdict::Drop(_) => self.dropped += 1,
        }
    }

    fn is_worth_its_time(&self) {
        if std::env::var_os("SLUICE_SEED").is_none() {
            let all = self.passed + self.carried + self.answered + self.dropped;
            assert!(all >= worlds() * 2_500, "{self:?}");
            assert!(
                self.carried > worlds() * 600
                    && self.answered > worlds() * 25
                    && self.dropped > worlds() * 125,
                "{self:?}"
            );
        }
    }
}

/// A packet with right checksums after a change, as far as it can still be read.
pub(crate) fn repaired(mut ip: Vec<u8>) -> Vec<u8> {
    if let Ok(headers) = parse(&ip, None) {
        if !headers.is_ipv6() {
            checksum::fill_ipv4(&mut ip, headers.l4);
        }
        if headers.fragment == Fragment::Whole && headers.kind != Kind::Other {
            checksum::fill_transport(&mut ip, &headers);
        }
    }
    ip
}
