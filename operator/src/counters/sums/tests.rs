use std::net::SocketAddr;

use serde_json::{Value, json};

use super::*;

/// What a real proxy has told.
const TOLD: &str = include_str!("../../../tests/counters/status.json");

fn parent() -> Parent {
    Parent { kind: "connector".into(), namespace: String::new(), name: "routes".into() }
}

fn address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 9002))
}

fn proxy(pod: &str, uid: &str) -> Proxy {
    Proxy { parent: parent(), pod: pod.into(), uid: uid.into(), address: address() }
}

/// A proxy that has carried so many packets; further fields as given.
fn told(packets: u64, more: &Value) -> Status {
    let mut document: Value = serde_json::from_str(TOLD).unwrap();
    document["ports"][0]["original_packets"] = json!(packets);
    document["drops"] = json!({ "no_backend": packets });
    document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(document).unwrap()
}

fn late() -> Result<Status, ReadError> {
    Err(ReadError::Late { address: address() })
}

fn packets(sums: &Sums) -> u64 {
    let reports = sums.reports();
    let ports = &reports.parents[0].ports;
    assert_eq!(ports.len(), 1, "{ports:?}");
    assert_eq!(reports.parents[0].drops["no_backend"], ports[0].original_packets);
    ports[0].original_packets
}

#[test]
fn what_a_real_proxy_tells_is_understood() {
    let mut sums = Sums::default();
    sums.take(vec![(proxy("routes-0", "a"), Ok(told(1, &json!({}))))], |_| true);
    let report = &sums.reports().parents[0];
    assert_eq!(report.mode.as_deref(), Some("userspace"));
    assert_eq!(report.generation.as_deref(), Some("0eeea61baa1be637"));
    assert_eq!((report.pods[0].ready, report.pods[0].error.as_deref()), (true, None));
    let port = &report.ports[0];
    assert_eq!((port.rule.as_str(), port.port.as_str()), ("default/web", "8443"));
    assert_eq!((port.original_bytes, port.reply_packets, port.reply_bytes), (78, 2, 732));
    assert_eq!((port.flows, port.dropped), (1, 0));
}

#[test]
fn sums_never_go_backwards_while_there_is_something_to_sum_for() {
    let mut sums = Sums::default();
    let mut step = |readings, there: bool| {
        sums.take(readings, |_| there);
        if sums.0.is_empty() { 0 } else { packets(&sums) }
    };
    let none = json!({});
    let of = |pod: &str, uid: &str, outcome| (proxy(pod, uid), outcome);
    let two = vec![of("r-0", "a", Ok(told(10, &none))), of("r-1", "b", Ok(told(5, &none)))];
    assert_eq!(step(two, true), 15);
    // One grows, one does not answer.
    assert_eq!(step(vec![of("r-0", "a", Ok(told(12, &none))), of("r-1", "b", late())], true), 17);
    // It answers again: what it has carried meanwhile is not lost.
    assert_eq!(
        step(vec![of("r-0", "a", Ok(told(12, &none))), of("r-1", "b", Ok(told(9, &none)))], true),
        21
    );
    // Its process was restarted and counts from nothing.
    assert_eq!(
        step(vec![of("r-0", "a", Ok(told(3, &none))), of("r-1", "b", Ok(told(9, &none)))], true),
        24
    );
    // A pod that was made anew has the same name, and more packets already.
    assert_eq!(
        step(vec![of("r-0", "a2", Ok(told(100, &none))), of("r-1", "b", Ok(told(9, &none)))], true),
        124
    );
    // No pod at all, for a moment.
    assert_eq!(step(vec![], true), 124);
    assert_eq!(step(vec![of("r-0", "a3", Ok(told(1, &none)))], true), 125);
    assert_eq!(step(vec![], false), 0, "it is gone, and its proxies");
}

#[test]
fn replicas_that_differ_are_told_so_and_a_target_fails_where_one_fails() {
    let mut sums = Sums::default();
    let target = |installed: bool| {
        json!({ "target": "db.example", "installed": installed,
        "reason": if installed { Value::Null } else { json!("NoSuchName") }, "message": null, "rule": "db" })
    };
    let good = json!({ "targets": [target(true)] });
    let bad = json!({ "generation": "other", "targets": [target(false)], "data_path": { "kind": "nftables",
        "refusals": [{ "kind": "ebpf", "reason": "capability", "message": "capability BPF is missing" }] } });
    let both =
        vec![(proxy("r-0", "a"), Ok(told(1, &good))), (proxy("r-1", "b"), Ok(told(1, &bad)))];
    sums.take(both, |_| true);
    let report = &sums.reports().parents[0];
    assert_eq!(report.mode.as_deref(), Some("mixed"));
    assert_eq!(report.generation, None);
    assert_eq!(report.reason.as_deref(), Some("ebpf: capability BPF is missing"));
    assert_eq!(report.targets.len(), 1);
    assert_eq!(
        (report.targets[0].ready, report.targets[0].reason.as_deref()),
        (false, Some("NoSuchName"))
    );
}
