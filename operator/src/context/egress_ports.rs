//! Which ports of a ProxyGroup's pods belong to which egress Service. What is there says so; this adds what was decided since
//! and is not in the cache yet, so that no two Services get the same.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
    sync::{Mutex, PoisonError},
};

use ring::digest::{SHA256, digest};

use crate::build::group::egress::PortKey;

/// The pods' ports for Services.
const PORTS: Range<u16> = 10_000..11_000;

/// What a Service has of a ProxyGroup.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Assigned {
    /// What the proxies call it.
    pub key: String,
    /// The pods' port for each of its own.
    pub ports: BTreeMap<PortKey, u16>,
}

/// All ports of a group's pods are somebody's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoneLeft;

/// What was decided, by ProxyGroup and by the name of what is made for a Service.
#[derive(Debug, Default)]
pub struct EgressPorts(Mutex<HashMap<String, HashMap<String, Decided>>>);

/// What was decided, and for whom: the UID of the Service.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Decided {
    uid: String,
    assigned: Assigned,
}

impl EgressPorts {
    /// Gives a Service a port of the pods for each of its own. It keeps those that it has, and what it is called.
    ///
    /// `there` is what is known of all Services of the group, by the names of what was made for them.
    pub fn assign(
        &self,
        (group, uid): (&str, &str),
        child: &str,
        (key, wanted): (&str, &[PortKey]),
        there: &BTreeMap<String, Assigned>,
    ) -> Result<Assigned, NoneLeft> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let decided = all.entry(group.to_owned()).or_default();
        let own = decided.get(child).map(|one| &one.assigned);
        let before = own.or_else(|| there.get(child)).cloned();
        let others = || {
            let known = there.iter().filter(|(name, _)| !decided.contains_key(*name));
            let decided = decided.iter().map(|(name, one)| (name, &one.assigned));
            known.chain(decided).filter(|(name, _)| *name != child).map(|(_, one)| one)
        };
        let before = before.unwrap_or_else(|| Assigned {
            // Namespace and name in one word are not always those of one Service only.
            key: if others().any(|other| other.key == key) {
                format!("{key}-{}", number(child))
            } else {
                key.to_owned()
            },
            ports: BTreeMap::new(),
        });
        let mut taken: BTreeSet<u16> =
            others().flat_map(|other| other.ports.values().copied()).collect();
        let mut ports: BTreeMap<_, _> =
            before.ports.into_iter().filter(|(port, _)| wanted.contains(port)).collect();
        taken.extend(ports.values());
        let mut next = number(child);
        for port in wanted {
            if ports.contains_key(port) {
                continue;
            }
            // Not the lowest: what was another Service's a moment ago may still be reached by its clients.
            let from = next % (PORTS.end - PORTS.start);
            let mut candidates = PORTS.skip(usize::from(from)).chain(PORTS);
            let found = candidates.find(|port| !taken.contains(port)).ok_or(NoneLeft)?;
            taken.insert(found);
            ports.insert(port.clone(), found);
            next = from + 1;
        }
        let assigned = Assigned { key: before.key, ports };
        let uid = uid.to_owned();
        decided.insert(child.to_owned(), Decided { uid, assigned: assigned.clone() });
        Ok(assigned)
    }

    /// The Service with this UID asks for nothing any more. Returns whether anything was decided for it.
    pub fn end(&self, uid: &str) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |all: &HashMap<String, HashMap<String, Decided>>| {
            all.values().map(HashMap::len).sum::<usize>()
        };
        let before = count(&all);
        all.retain(|_, group| {
            group.retain(|_, one| one.uid != uid);
            !group.is_empty()
        });
        count(&all) < before
    }

    /// The Service is no longer the group's.
    pub fn forget(&self, child: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, group| {
            group.remove(child);
            !group.is_empty()
        });
    }
}

fn number(text: &str) -> u16 {
    let hash = digest(&SHA256, text.as_bytes());
    hash.as_ref().iter().take(2).fold(0, |number, byte| number << 8 | u16::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(port: u16) -> PortKey {
        ("TCP".to_owned(), port)
    }

    #[test]
    fn ports_are_kept_and_are_nobody_elses() {
        let ports = EgressPorts::default();
        let nothing = BTreeMap::new();
        let first =
            ports.assign(("pg", "uid-a"), "a", ("ns-a", &[tcp(80), tcp(81)]), &nothing).unwrap();
        let numbers: BTreeSet<_> = first.ports.values().copied().collect();
        assert!(numbers.len() == 2 && numbers.iter().all(|port| PORTS.contains(port)));
        // Of what is there in the cluster, and of what is not there yet, nothing is taken.
        let there = BTreeMap::from([(
            "b".to_owned(),
            Assigned {
                key: "ns-b".into(),
                ports: (0..900).map(|port| (tcp(port + 1), PORTS.start + port)).collect(),
            },
        )]);
        let many: Vec<_> = (1..=98).map(tcp).collect();
        let second = ports.assign(("pg", "uid-c"), "c", ("ns-c", &many), &there);
        let room = 100 - numbers.iter().filter(|port| **port >= PORTS.start + 900).count();
        assert_eq!(second.is_ok(), room >= 98);
        // One port more and one less: the other one stays.
        let again =
            ports.assign(("pg", "uid-a"), "a", ("ns-a", &[tcp(81), tcp(82)]), &nothing).unwrap();
        assert_eq!(again.ports[&tcp(81)], first.ports[&tcp(81)]);
        assert!(!again.ports.contains_key(&tcp(80)));
        // After a start what is there counts.
        let restarted = EgressPorts::default();
        let there = BTreeMap::from([("a".to_owned(), again.clone())]);
        let same =
            restarted.assign(("pg", "uid-a"), "a", ("ns-a", &[tcp(81), tcp(82)]), &there).unwrap();
        assert_eq!(same, again);
    }

    #[test]
    fn a_full_group_says_so_and_forgets_who_left() {
        let ports = EgressPorts::default();
        let nothing = BTreeMap::new();
        let all: Vec<_> = (1..=1000).map(tcp).collect();
        let taken = ports.assign(("pg", "uid-a"), "a", ("a", &all), &nothing).unwrap();
        assert_eq!(taken.ports.values().collect::<BTreeSet<_>>().len(), 1000);
        assert_eq!(ports.assign(("pg", "uid-b"), "b", ("b", &[tcp(1)]), &nothing), Err(NoneLeft));
        assert!(ports.assign(("other", "uid-b"), "b", ("b", &[tcp(1)]), &nothing).is_ok());
        ports.forget("a");
        assert!(ports.assign(("pg", "uid-b"), "b", ("b", &[tcp(1)]), &nothing).is_ok());
        assert!(ports.end("uid-b") && !ports.end("uid-b"));
    }

    #[test]
    fn two_services_whose_names_run_together_are_told_apart() {
        let ports = EgressPorts::default();
        let nothing = BTreeMap::new();
        // a-b/c and a/b-c
        let first = ports.assign(("pg", "uid-x"), "x", ("a-b-c", &[tcp(1)]), &nothing).unwrap();
        let second = ports.assign(("pg", "uid-y"), "y", ("a-b-c", &[tcp(1)]), &nothing).unwrap();
        assert_eq!(first.key, "a-b-c");
        assert!(second.key.starts_with("a-b-c-"), "{second:?}");
        let again = ports.assign(("pg", "uid-y"), "y", ("a-b-c", &[tcp(1)]), &nothing).unwrap();
        assert_eq!(again, second);
    }
}
