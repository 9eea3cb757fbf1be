//! Which counter belongs to which series.
//!
//! A counter keeps its place when its rule goes or counts in another form: flows made before may still count there. It is
//! given to another series only after [`Places::reclaim`] has been told that no flow names it.

use std::collections::{BTreeMap, HashSet};

use foldhash::{HashMap, HashMapExt as _};
use proxy_rules::{Rule, Series};

use super::series_hash;

/// A rule's counters: the series of the whole rule, and whether each of its ports has one of its own.
type Form = (Series, bool);

#[derive(Clone, Copy, Debug)]
struct Run {
    start: u32,
    len: u32,
    /// Whether the latest table has it.
    used: bool,
}

/// Hands out counters.
#[derive(Clone, Debug)]
pub(super) struct Places {
    runs: HashMap<Form, Run>,
    free: BTreeMap<u32, Vec<u32>>,
    pub(super) next: u32,
    /// What an earlier process has left: series hash -> index.
    pub(super) left: HashMap<u64, u32>,
}

impl Default for Places {
    fn default() -> Self {
        Self { runs: HashMap::new(), free: BTreeMap::new(), next: 1, left: HashMap::new() }
    }
}

fn form(rule: &Rule) -> Form {
    let each = rule.counts_each_port() && !rule.matches.ports.is_single();
    (Series::of(rule, None), each)
}

/// The series of a form, in the order of their counters.
fn series((whole, each): &Form) -> impl Iterator<Item = Series> + '_ {
    let ports = match (each, whole.port, whole.last_port) {
        (true, Some(first), Some(last)) => Some(first..=last),
        _ => None,
    };
    let one = ports.is_none().then(|| whole.clone());
    let each = move |port| Series { port: Some(port), last_port: None, ..whole.clone() };
    ports.into_iter().flatten().map(each).chain(one)
}

impl Places {
    /// Before a table is compiled.
    pub(super) fn begin(&mut self) {
        self.runs.values_mut().for_each(|run| run.used = false);
    }

    /// The first counter of a rule, and whether each port has one.
    pub(super) fn take(&mut self, rule: &Rule) -> (u32, bool) {
        let form = form(rule);
        let each = form.1;
        // Flows of an earlier process may count in the other form.
        let other = (form.0.clone(), !each);
        if other.0.last_port.is_some()
            && !self.runs.contains_key(&other)
            && let Some(run) = self.left_run(&other)
        {
            self.runs.insert(other, run);
        }
        if let Some(run) = self.runs.get_mut(&form) {
            run.used = true;
            return (run.start, each);
        }
        let mut run = self.left_run(&form).unwrap_or_else(|| {
            let len = if each { rule.matches.ports.count() } else { 1 };
            let start = self.free.get_mut(&len).and_then(Vec::pop).unwrap_or_else(|| {
                let start = self.next;
                self.next += len;
                start
            });
            Run { start, len, used: true }
        });
        run.used = true;
        self.runs.insert(form, run);
        (run.start, each)
    }

    /// What an earlier process has left of a form, if all of it lies in a row.
    fn left_run(&mut self, form: &Form) -> Option<Run> {
        if self.left.is_empty() {
            return None;
        }
        let hashes: Vec<u64> = series(form).map(|one| series_hash(&one)).collect();
        let start = *self.left.get(hashes.first()?)?;
        let in_a_row = (start..).zip(&hashes).all(|(at, hash)| self.left.get(hash) == Some(&at));
        if !in_a_row {
            return None;
        }
        for hash in &hashes {
            self.left.remove(hash);
        }
        Some(Run { start, len: hashes.len() as u32, used: false })
    }

    /// The counter of a rule's flow to `port`.
    pub(super) fn of(&self, rule: &Rule, port: u16) -> Option<u32> {
        let form = form(rule);
        let run = self.runs.get(&form)?;
        if !form.1 {
            return Some(run.start);
        }
        let offset = u32::from(port.checked_sub(rule.matches.ports.first())?);
        (offset < run.len).then_some(run.start + offset)
    }

    /// Every counter, of rules that are gone included.
    pub(super) fn all(&self) -> BTreeMap<u32, Series> {
        self.runs.iter().flat_map(|(form, run)| (run.start..).zip(series(form))).collect()
    }

    /// How many counters no rule of the latest table has.
    pub(super) fn retired(&self) -> u32 {
        self.runs.values().filter(|run| !run.used).map(|run| run.len).sum()
    }

    /// Gives up the retired counters that no flow names, and returns them: their counts must be kept elsewhere.
    pub(super) fn reclaim(&mut self, named: &HashSet<u32>) -> Vec<(u32, Series)> {
        let gone = |run: &Run| {
            !run.used && (run.start..run.start + run.len).all(|index| !named.contains(&index))
        };
        let mut given_up = Vec::new();
        for (form, run) in self.runs.extract_if(|_, run| gone(run)) {
            self.free.entry(run.len).or_default().push(run.start);
            given_up.extend((run.start..).zip(series(&form)));
        }
        given_up.sort_unstable_by_key(|(index, _)| *index);
        given_up
    }
}

#[cfg(test)]
mod tests {
    use proxy_rules::{Action, Match, PortRange, Protocol, RuleId, Side};

    use super::*;

    fn rule(id: &str, each: bool) -> Rule {
        let matches = Match {
            protocol: Some(Protocol::Tcp),
            dst: "100.64.0.1/32".parse().unwrap(),
            ports: PortRange::new(80, 89).unwrap(),
            src: Vec::new(),
        };
        Rule {
            id: RuleId::new(id),
            from: Side::Tailnet,
            matches,
            action: Action::Reject,
            count_per_port: each,
        }
    }

    #[test]
    fn both_forms_of_a_rule_are_kept_and_come_back_to_their_places() {
        let mut places = Places::default();
        let whole = places.take(&rule("a", false));
        places.begin();
        let each = places.take(&rule("a", true));
        assert_ne!(whole.0, each.0);
        assert_eq!(places.all().len(), 11, "flows made before still count for the whole");
        places.begin();
        assert_eq!(places.take(&rule("a", false)), whole);
        assert_eq!(places.retired(), 10);
    }

    #[test]
    fn a_counter_goes_to_another_series_only_when_no_flow_names_it() {
        let mut places = Places::default();
        let (start, _) = places.take(&rule("a", true));
        places.begin();
        let other = places.take(&rule("b", true)).0;
        assert_ne!(other, start);
        assert_eq!(places.reclaim(&HashSet::from([start + 3])), []);
        let given_up = places.reclaim(&HashSet::new());
        assert_eq!(given_up.len(), 10);
        assert!(given_up.iter().all(|(_, series)| series.rule == RuleId::new("a")));
        assert_eq!(places.take(&rule("c", true)).0, start);
    }

    #[test]
    fn what_an_earlier_process_has_left_is_taken_whole_or_not_at_all() {
        let mut first = Places::default();
        let (start, _) = first.take(&rule("a", true));
        let left = || first.all().iter().map(|(at, series)| (series_hash(series), *at)).collect();
        let mut second = Places { left: left(), next: first.next, ..Places::default() };
        assert_eq!(second.take(&rule("a", false)).0, first.next);
        assert_eq!(second.all().len(), 11, "flows of the first process still count by port");
        assert_eq!(second.take(&rule("a", true)).0, start);

        let mut wider = rule("a", true);
        wider.matches.ports = PortRange::new(80, 90).unwrap();
        let mut third = Places { left: left(), next: first.next, ..Places::default() };
        assert_eq!(third.take(&wider).0, first.next, "the places beyond are others'");
    }
}
