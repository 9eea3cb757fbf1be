use std::sync::{Arc, Mutex};

use proxy_rules::{Flow, Settings};

use super::*;
use crate::data_path::Unsupported;

type Log = Arc<Mutex<Vec<String>>>;

/// Writes down what it is told, and fails where it is told to.
struct Fake {
    kind: Kind,
    log: Log,
    fail: Option<&'static str>,
}

impl Fake {
    fn new(kind: Kind, log: &Log) -> Self {
        Self { kind, log: Arc::clone(log), fail: None }
    }

    fn note(&self, what: &str) -> Result<(), ApplyError> {
        self.log.lock().unwrap().push(format!("{}.{what}", self.kind));
        if self.fail == Some(what) {
            return Err(ApplyError::step(what, "told to fail"));
        }
        Ok(())
    }

    fn read(&self, what: &str) -> Result<(), CounterError> {
        self.note(what)
            .map_err(|error| CounterError { step: what.to_owned(), source: Box::new(error) })
    }
}

impl DataPath for Fake {
    fn kind(&self) -> Kind {
        self.kind
    }
    fn supports(&self, _: &RuleTable) -> Result<(), Unsupported> {
        Ok(())
    }
    fn apply(&mut self, _: &RuleTable) -> Result<(), ApplyError> {
        self.note("apply")
    }
    fn counters(&self) -> Result<Snapshot, CounterError> {
        self.read("counters").map(|()| Snapshot::default())
    }
    fn remove(&mut self) -> Result<(), ApplyError> {
        self.note("remove")
    }
    fn flows(&self) -> Result<Vec<Flow>, CounterError> {
        self.read("flows").map(|()| Vec::new())
    }
    fn adopt(&mut self, _: &[Flow]) -> Result<usize, ApplyError> {
        self.note("adopt").map(|()| 0)
    }
    fn set_stance(&mut self, stance: Stance) -> Result<(), ApplyError> {
        self.note(match stance {
            Stance::All => "all",
            Stance::KnownFlows => "known",
            Stance::Handover => "handover",
        })
    }
}

fn run(
    from: Kind,
    to: Kind,
    old_fails: Option<&'static str>,
    new_fails: Option<&'static str>,
) -> (Result<Moved, SwitchError>, Vec<String>) {
    let log = Log::default();
    let mut old = Fake { fail: old_fails, ..Fake::new(from, &log) };
    let mut new = Fake { fail: new_fails, ..Fake::new(to, &log) };
    let outcome = switch(&mut old, &mut new, &RuleTable::empty(Settings::default()));
    let log = log.lock().unwrap().clone();
    (outcome, log)
}

#[test]
fn towards_nftables_flows_are_copied_before_and_after_new_ones_leave_the_old_path() {
    let (outcome, log) = run(Kind::Ebpf, Kind::Nftables, None, None);
    assert!(!outcome.unwrap().old_is_draining());
    assert_eq!(
        log,
        [
            "nftables.apply",
            "ebpf.flows",
            "nftables.adopt",
            "ebpf.known",
            "ebpf.flows",
            "nftables.adopt",
            "ebpf.counters",
            "ebpf.remove",
            "ebpf.counters"
        ]
    );
}

#[test]
fn towards_ebpf_the_new_path_learns_before_it_takes_new_flows() {
    let (outcome, log) = run(Kind::Nftables, Kind::Ebpf, None, None);
    assert!(!outcome.unwrap().old_is_draining());
    assert_eq!(
        log,
        [
            "ebpf.known",
            "ebpf.apply",
            "nftables.flows",
            "ebpf.adopt",
            "ebpf.handover",
            "nftables.flows",
            "ebpf.adopt",
            "ebpf.all",
            "nftables.counters",
            "nftables.remove",
            "nftables.counters"
        ]
    );
}

#[test]
fn sockets_are_drained_and_not_removed() {
    let (outcome, log) = run(Kind::Userspace, Kind::Ebpf, None, None);
    assert!(outcome.unwrap().old_is_draining());
    assert_eq!(log, ["ebpf.apply", "userspace.known", "ebpf.all"]);
    let (outcome, log) = run(Kind::Ebpf, Kind::Userspace, None, None);
    assert!(outcome.unwrap().old_is_draining());
    assert_eq!(log, ["ebpf.known", "userspace.apply", "userspace.all"]);
}

#[test]
fn a_failure_at_any_step_leaves_the_old_path_in_force() {
    for (from, to) in [
        (Kind::Ebpf, Kind::Nftables),
        (Kind::Nftables, Kind::Ebpf),
        (Kind::Userspace, Kind::Nftables),
        (Kind::Ebpf, Kind::Userspace),
    ] {
        let (_, steps) = run(from, to, None, None);
        for step in steps {
            let (kind, what) = step.split_once('.').unwrap();
            // The path is gone by then: its last counts are those from just before.
            if what == "counters" && to == Kind::Userspace {
                continue;
            }
            let what: &'static str = String::leak(what.to_owned());
            let old = (kind == from.label()).then_some(what);
            let new = (kind == to.label()).then_some(what);
            let (outcome, log) = run(from, to, old, new);
            let error = outcome.expect_err(&step);
            assert!(!error.step.is_empty());
            let tail = &log[log.len() - 2..];
            assert_eq!(tail, [format!("{from}.all"), format!("{to}.remove")], "{step}: {log:?}");
        }
    }
}
