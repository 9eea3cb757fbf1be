//! Sums over the proxies of an object. They never go backwards while this replica reconciles: a proxy that was restarted
//! counts from nothing, and what it had carried before stays in the sum.

use std::collections::BTreeMap;

use kube::{Resource, ResourceExt as _};
use proxy_rules::Count;
use serde::{Deserialize, Serialize};

use super::{
    proxy::Proxy,
    read::{PortStatus, ReadError, Status},
    report::{PodReport, Port, Report, Reports, Target},
};
use crate::label;

/// What proxies were made for.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Parent {
    /// `svc`, `ingress`, `connector` or `proxygroup`: the value of [`label::PARENT_KIND`].
    pub kind: String,
    /// Its namespace; empty for what has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Parent {
    /// By the labels of something that was made for it.
    pub(super) fn of<K: Resource>(child: &K) -> Option<Self> {
        let label = |key: &str| child.labels().get(key).cloned();
        Some(Self {
            kind: label(label::PARENT_KIND)?,
            namespace: label(label::PARENT_NAMESPACE).unwrap_or_default(),
            name: label(label::PARENT_NAME)?,
        })
    }
}

/// Rule, side that flows start from, protocol, port.
type Series = (String, String, String, String);

/// All parents.
#[derive(Default)]
pub(super) struct Sums(BTreeMap<Parent, Sum>);

#[derive(Default)]
struct Sum {
    series: BTreeMap<Series, Count>,
    drops: BTreeMap<String, u64>,
    /// By the pod's name.
    pods: BTreeMap<String, Reading>,
}

/// A pod as it was read last.
struct Reading {
    uid: String,
    /// Not known before it has answered once.
    status: Option<Status>,
    error: Option<String>,
}

impl Sums {
    /// Adds what has grown since it was read last; forgets pods that are gone, and parents that are not there any more.
    pub(super) fn take(
        &mut self,
        readings: Vec<(Proxy, Result<Status, ReadError>)>,
        is_there: impl Fn(&Parent) -> bool,
    ) {
        let mut seen = BTreeMap::<Parent, Vec<String>>::new();
        for (proxy, outcome) in readings {
            seen.entry(proxy.parent.clone()).or_default().push(proxy.pod.clone());
            self.0.entry(proxy.parent.clone()).or_default().add(proxy, outcome);
        }
        self.0.retain(|parent, sum| {
            let now = seen.get(parent);
            sum.pods.retain(|pod, _| now.is_some_and(|now| now.contains(pod)));
            now.is_some() || is_there(parent)
        });
    }

    /// As it is told.
    pub(super) fn reports(&self) -> Reports {
        Reports { parents: self.0.iter().map(|(parent, sum)| sum.report(parent)).collect() }
    }
}

impl Sum {
    fn add(&mut self, proxy: Proxy, outcome: Result<Status, ReadError>) {
        let old = self.pods.remove(&proxy.pod).filter(|reading| reading.uid == proxy.uid);
        let old = old.and_then(|reading| reading.status);
        let reading = match outcome {
            Ok(status) => {
                self.grow(old.as_ref(), &status);
                Reading { uid: proxy.uid, status: Some(status), error: None }
            }
            Err(error) => Reading { uid: proxy.uid, status: old, error: Some(error.to_string()) },
        };
        self.pods.insert(proxy.pod, reading);
    }

    fn grow(&mut self, old: Option<&Status>, new: &Status) {
        let before: BTreeMap<_, _> = old
            .into_iter()
            .flat_map(|old| &old.ports)
            .map(|port| (series(port), count(port)))
            .collect();
        for port in &new.ports {
            let (series, now) = (series(port), count(port));
            let before = before.get(&series).copied().unwrap_or_default();
            let sum = self.series.entry(series).or_default();
            *sum = sum.plus(if is_less(now, before) { now } else { now.since(before) });
        }
        for (reason, now) in &new.drops {
            let before = old.and_then(|old| old.drops.get(reason)).copied().unwrap_or(0);
            let grown = if *now < before { *now } else { now - before };
            *self.drops.entry(reason.clone()).or_default() += grown;
        }
    }

    fn report(&self, parent: &Parent) -> Report {
        let known = || self.pods.values().filter_map(|reading| reading.status.as_ref());
        let ports = self.series.iter().map(|((rule, from, protocol, port), count)| Port {
            rule: rule.clone(),
            from: from.clone(),
            protocol: protocol.clone(),
            port: port.clone(),
            original_packets: count.original_packets,
            original_bytes: count.original_bytes,
            reply_packets: count.reply_packets,
            reply_bytes: count.reply_bytes,
            flows: count.flows,
            dropped: count.dropped,
        });
        Report {
            parent: parent.clone(),
            mode: mode(known().filter_map(|status| status.data_path.kind.as_deref())),
            reason: known().find_map(reason),
            generation: same(known().map(|status| status.generation.clone())).flatten(),
            pods: self.pods.iter().map(|(name, reading)| pod(name, reading)).collect(),
            ports: ports.collect(),
            drops: self
                .drops
                .iter()
                .filter(|(_, n)| **n > 0)
                .map(|(r, n)| (r.clone(), *n))
                .collect(),
            targets: targets(known()),
        }
    }
}

fn pod(name: &str, reading: &Reading) -> PodReport {
    let status = reading.status.as_ref().filter(|_| reading.error.is_none());
    PodReport {
        name: name.to_owned(),
        ready: status.is_some_and(|status| status.ready),
        mode: status.and_then(|status| status.data_path.kind.clone()),
        error: reading.error.clone(),
    }
}

fn series(port: &PortStatus) -> Series {
    (port.rule.clone(), port.from.clone(), port.protocol.clone(), port.port.clone())
}

fn count(port: &PortStatus) -> Count {
    Count {
        original_packets: port.original_packets,
        original_bytes: port.original_bytes,
        reply_packets: port.reply_packets,
        reply_bytes: port.reply_bytes,
        flows: port.flows,
        dropped: port.dropped,
    }
}

/// Whether a counter went back: it belongs to another process than before.
fn is_less(now: Count, before: Count) -> bool {
    before.since(now) != Count::default()
}

/// What all of them say, if they do.
fn same<T: PartialEq>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

fn mode<'a>(all: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    all.clone().next()?;
    Some(same(all).unwrap_or("mixed").to_owned())
}

/// Why a better path is not in use, or why none is.
fn reason(status: &Status) -> Option<String> {
    let path = &status.data_path;
    let refusals =
        path.refusals.iter().map(|refusal| format!("{}: {}", refusal.kind, refusal.message));
    let all: Vec<_> = path.error.iter().cloned().chain(refusals).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// A target that fails in one replica fails.
fn targets<'a>(all: impl Iterator<Item = &'a Status>) -> Vec<Target> {
    let mut found = BTreeMap::<&str, Target>::new();
    for target in all.flat_map(|status| &status.targets) {
        let known = found.entry(&target.target).or_insert_with(|| Target {
            target: target.target.clone(),
            ready: true,
            reason: None,
            message: None,
        });
        if known.ready && !target.installed {
            known.ready = false;
            known.reason.clone_from(&target.reason);
            known.message.clone_from(&target.message);
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests;
