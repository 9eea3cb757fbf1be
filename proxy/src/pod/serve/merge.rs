//! The serve configuration has several writers. Where there is a file it is the whole truth, as upstream's proxies have it,
//! with two exceptions: what a `tailscale serve` in the foreground serves as long as it runs, and the entries that lead to
//! doors of the user-space path, which another part of this process keeps. They are told by where they lead.

use std::collections::BTreeMap;

use crate::{
    localapi::{ServeConfig, ServiceConfig, TcpPortHandler},
    pod::doors::leads_to_door,
};

/// What is to be in force instead of `current`. Doors that nobody keeps are left over from another process, and go.
pub(super) fn replace(current: &ServeConfig, wanted: &ServeConfig, has_doors: bool) -> ServeConfig {
    let mut next = ServeConfig { foreground: current.foreground.clone(), ..wanted.clone() };
    if !has_doors {
        return next;
    }
    keep_doors(&current.tcp, &mut next.tcp);
    for (name, service) in &current.services {
        let has_some = service.tcp.values().any(leads_to_door);
        let is_open = next.services.get(name).is_none_or(|next| !next.tun);
        if has_some && is_open {
            keep_doors(&service.tcp, &mut next.services.entry(name.clone()).or_default().tcp);
        }
    }
    next
}

/// Ports that the file wants are the file's.
fn keep_doors(from: &BTreeMap<u16, TcpPortHandler>, to: &mut BTreeMap<u16, TcpPortHandler>) {
    for (port, handler) in from.iter().filter(|(_, handler)| leads_to_door(handler)) {
        to.entry(*port).or_insert_with(|| handler.clone());
    }
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
    use crate::data_path::userspace::through::DOORS;

    fn config(value: serde_json::Value) -> ServeConfig {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_file_is_the_whole_truth_but_for_sessions_and_doors() {
        let door = json!({"TCPForward": format!("{DOORS}:1000"), "ProxyProtocol": 2});
        let current = config(json!({
            "TCP": {"22": {"TCPForward": "127.0.0.1:22"}, "80": door, "443": door},
            "Services": {"svc:a": {"TCP": {"80": door, "81": {"HTTP": true}}}, "svc:b": {"TCP": {"1": {"HTTP": true}}},
                         "svc:c": {"TCP": {"80": door}}},
            "Foreground": {"session": {"TCP": {"9": {"HTTP": true}}}}, "Future": 1,
        }));
        let wanted =
            config(json!({"TCP": {"443": {"HTTPS": true}}, "Services": {"svc:c": {"Tun": true}}}));
        let next = replace(&current, &wanted, true);
        let expected = config(json!({
            "TCP": {"80": door, "443": {"HTTPS": true}},
            "Services": {"svc:a": {"TCP": {"80": door}}, "svc:c": {"Tun": true}},
            "Foreground": {"session": {"TCP": {"9": {"HTTP": true}}}},
        }));
        assert_eq!(next, expected);
        assert_eq!(replace(&next, &wanted, true), next, "again changes nothing");
        let next = replace(&current, &wanted, false);
        assert_eq!((next.tcp, next.services), (wanted.tcp, wanted.services));
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
