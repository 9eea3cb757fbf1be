//! Who wants what of the serve configuration: there is one in tailscaled, and several who have a part in it.
//!
//! A part of this process says with [`Wanted::put`] what it wants served, at any time and without waiting. The parts are
//! joined into one configuration, which alone is set; where two want the same port, the first [`Owner`] has it, and the
//! others are told. What nobody here has said stays as it is, unless there is a file: that is the whole truth, as upstream's
//! proxies have it, but for what a `tailscale serve` in the foreground serves as long as it runs.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::localapi::{ServeConfig, ServiceConfig, TcpPortHandler};

/// Who may want something, in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The file of `TS_SERVE_CONFIG`.
    File,
    /// Forwarding of a pod without a TUN device.
    Forwarding,
}

impl Owner {
    fn label(self) -> &'static str {
        match self {
            Self::File => "TS_SERVE_CONFIG",
            Self::Forwarding => "the forwarded targets",
        }
    }
}

/// What is wanted, by whom.
#[derive(Clone, Debug, Default)]
pub struct Wanted(watch::Sender<BTreeMap<Owner, ServeConfig>>);

impl Wanted {
    /// Replaces what one owner wants. Without ports it wants nothing any more, and what it had is removed.
    pub fn put(&self, owner: Owner, part: ServeConfig) {
        self.0.send_if_modified(|parts| {
            let changed = parts.get(&owner) != Some(&part);
            if changed {
                parts.insert(owner, part);
            }
            changed
        });
    }

    /// To learn of changes, and of what is wanted.
    pub(super) fn subscribe(&self) -> watch::Receiver<BTreeMap<Owner, ServeConfig>> {
        self.0.subscribe()
    }
}

/// All parts in one, and which ports somebody did not get.
pub(super) fn join(parts: &BTreeMap<Owner, ServeConfig>) -> (ServeConfig, Vec<String>) {
    let mut whole = ServeConfig::default();
    let mut refused = Vec::new();
    for (owner, part) in parts {
        let mut lost = Vec::new();
        for (port, handler) in &part.tcp {
            if whole.tcp.contains_key(port) {
                lost.push(port.to_string());
            } else {
                whole.tcp.insert(*port, handler.clone());
            }
        }
        for (name, service) in &part.services {
            if whole.services.contains_key(name) {
                lost.push(name.clone());
            } else {
                whole.services.insert(name.clone(), service.clone());
            }
        }
        for (at, web) in &part.web {
            whole.web.entry(at.clone()).or_insert_with(|| web.clone());
        }
        for (at, allowed) in &part.allow_funnel {
            whole.allow_funnel.entry(at.clone()).or_insert(*allowed);
        }
        for (name, value) in &part.rest {
            whole.rest.entry(name.clone()).or_insert_with(|| value.clone());
        }
        if !lost.is_empty() {
            let (owner, lost) = (owner.label(), lost.join(", "));
            refused.push(format!("{lost} of {owner} is not served: another part of the configuration serves it; remove one of the two"));
        }
    }
    (whole, refused)
}

/// What is to be in force: `wanted` instead of what was `ours`, and of the rest what is not ours to remove.
pub(super) fn replace(
    current: &ServeConfig,
    ours: &ServeConfig,
    wanted: &ServeConfig,
    is_whole: bool,
) -> ServeConfig {
    if is_whole {
        return ServeConfig { foreground: current.foreground.clone(), ..wanted.clone() };
    }
    let mut next = current.clone();
    exchange(&mut next.tcp, &ours.tcp, &wanted.tcp);
    exchange(&mut next.web, &ours.web, &wanted.web);
    exchange(&mut next.services, &ours.services, &wanted.services);
    exchange(&mut next.allow_funnel, &ours.allow_funnel, &wanted.allow_funnel);
    next
}

fn exchange<K: Ord + Clone, V: Clone>(
    all: &mut BTreeMap<K, V>,
    ours: &BTreeMap<K, V>,
    wanted: &BTreeMap<K, V>,
) {
    all.retain(|key, _| !ours.contains_key(key));
    all.extend(wanted.iter().map(|(key, value)| (key.clone(), value.clone())));
}

/// What must be set before `next`, if something must: tailscaled refuses a port that serves another sort of thing than it
/// did, and takes it once it has served nothing in between.
pub(super) fn before(current: &ServeConfig, next: &ServeConfig) -> Option<ServeConfig> {
    let mut between = next.clone();
    between.tcp.retain(|port, handler| is_compatible(current.tcp.get(port), handler));
    for (name, service) in &mut between.services {
        let old = current.services.get(name);
        if old.is_some_and(|old| old.tun != service.tun) {
            *service = ServiceConfig::default();
            continue;
        }
        service
            .tcp
            .retain(|port, handler| is_compatible(old.and_then(|old| old.tcp.get(port)), handler));
    }
    (between != *next).then_some(between)
}

fn is_compatible(old: Option<&TcpPortHandler>, new: &TcpPortHandler) -> bool {
    old.is_none_or(|old| sort(old) == sort(new))
}

/// What tailscaled tells apart.
fn sort(handler: &TcpPortHandler) -> (bool, bool, bool) {
    (handler.http, handler.https, !handler.terminate_tls.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(value: serde_json::Value) -> ServeConfig {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_nobody_here_has_said_stays_unless_a_file_is_the_whole_truth() {
        let current = config(json!({
            "TCP": {"22": {"TCPForward": "127.0.0.1:22"}, "80": {"TCPForward": "127.0.0.1:1"}},
            "Foreground": {"session": {"TCP": {"9": {"HTTP": true}}}}, "Future": 1,
        }));
        let ours = config(json!({"TCP": {"80": {"TCPForward": "127.0.0.1:1"}}}));
        let wanted = config(json!({"TCP": {"443": {"TCPForward": "127.0.0.1:2"}}}));
        let next = replace(&current, &ours, &wanted, false);
        assert_eq!(next.tcp.keys().copied().collect::<Vec<_>>(), [22, 443]);
        assert_eq!((&next.foreground, &next.rest), (&current.foreground, &current.rest));
        let next = replace(&current, &ours, &wanted, true);
        assert_eq!(next.tcp, wanted.tcp);
        assert_eq!(next.foreground, current.foreground);
        assert_eq!(replace(&next, &wanted, &wanted, true), next, "again changes nothing");
    }

    #[test]
    fn a_port_has_one_owner_and_the_other_is_told() {
        let wanted = Wanted::default();
        let mut changes = wanted.subscribe();
        let file = config(json!({"TCP": {"80": {"HTTP": true}}, "Services": {"svc:a": {}}}));
        let other = config(
            json!({"TCP": {"80": {"TCPForward": "[::1]:1"}, "81": {"TCPForward": "[::1]:2"}},
                                  "Services": {"svc:a": {"Tun": true}}}),
        );
        wanted.put(Owner::Forwarding, other.clone());
        wanted.put(Owner::File, file.clone());
        let (whole, refused) = join(&changes.borrow_and_update());
        assert_eq!(whole.tcp[&80], file.tcp[&80]);
        assert_eq!(whole.tcp[&81], other.tcp[&81]);
        assert!(!whole.services["svc:a"].tun);
        assert!(
            refused.len() == 1 && refused[0].starts_with("80, svc:a of the forwarded"),
            "{refused:?}"
        );
        wanted.put(Owner::File, file);
        assert!(!changes.has_changed().unwrap(), "the same is no change");
    }

    #[test]
    fn a_port_that_changes_its_sort_is_closed_in_between() {
        let old = config(json!({"TCP": {"80": {"HTTP": true}, "443": {"HTTPS": true}},
            "Services": {"svc:a": {"TCP": {"443": {"HTTPS": true}}}, "svc:b": {"Tun": true}}}));
        let new = config(json!({"TCP": {"80": {"HTTP": true}, "443": {"TCPForward": "[::1]:1"}},
            "Services": {"svc:a": {"TCP": {"443": {"HTTP": true}, "80": {"HTTP": true}}},
                         "svc:b": {"TCP": {"1": {"HTTP": true}}}}}));
        let between = before(&old, &new).unwrap();
        assert_eq!(between.tcp.keys().copied().collect::<Vec<_>>(), [80]);
        assert_eq!(between.services["svc:a"].tcp.keys().copied().collect::<Vec<_>>(), [80]);
        assert_eq!(between.services["svc:b"], ServiceConfig::default());
        assert_eq!(before(&between, &new), None);
        assert_eq!(before(&old, &old), None);
    }
}
