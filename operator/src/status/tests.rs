use crate::crd::connector::{ConnectorDevice, ConnectorStatus};

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn finding(condition: ConditionType, holds: Holds, message: &str, generation: i64) -> Finding {
    Finding {
        condition,
        holds,
        reason: "ConnectorCreated",
        message: message.to_owned(),
        generation: Some(generation),
    }
}

fn since(conditions: &[Condition], condition: ConditionType) -> String {
    let found = conditions.iter().find(|each| each.type_ == condition.label()).unwrap();
    found.last_transition_time.0.to_string()
}

use ConditionType::{ConnectorReady, ProxyGroupAvailable};

#[test]
fn the_transition_time_is_kept_until_the_status_flips() {
    let mut conditions = Vec::new();
    let mut set = |holds, message, generation, now| {
        set_condition(
            &mut conditions,
            finding(ConnectorReady, holds, message, generation),
            at(now),
        );
        conditions.clone()
    };
    let first = set(Holds::False, "waits", 1, "2026-01-01T00:00:00.999999Z");
    assert_eq!(since(&first, ConnectorReady), "2026-01-01T00:00:00Z");

    let second = set(Holds::False, "waits for a node", 2, "2026-01-01T00:01:00Z");
    assert_eq!(since(&second, ConnectorReady), "2026-01-01T00:00:00Z");
    assert_eq!(second[0].message, "waits for a node");
    assert_eq!(second[0].observed_generation, Some(2));

    let third = set(Holds::True, "runs", 2, "2026-01-01T00:02:00.5Z");
    assert_eq!(since(&third, ConnectorReady), "2026-01-01T00:02:00Z");
    assert_eq!((third.len(), third[0].status.as_str()), (1, "True"));
}

#[test]
fn other_conditions_keep_their_places() {
    let now = at("2026-01-01T00:00:00Z");
    let mut conditions = Vec::new();
    set_condition(&mut conditions, finding(ProxyGroupAvailable, Holds::True, "", 1), now);
    let mut foreign = conditions[0].clone();
    foreign.type_ = "example.com/Foreign".to_owned();
    conditions.push(foreign.clone());
    set_condition(&mut conditions, finding(ConnectorReady, Holds::True, "", 1), now);
    set_condition(&mut conditions, finding(ProxyGroupAvailable, Holds::False, "", 1), now);
    let types: Vec<_> = conditions.iter().map(|each| each.type_.as_str()).collect();
    assert_eq!(types, ["ProxyGroupAvailable", "example.com/Foreign", "ConnectorReady"]);
    assert_eq!(conditions[1], foreign);

    remove_condition(&mut conditions, ProxyGroupAvailable);
    assert_eq!((conditions.len(), &conditions[0]), (2, &foreign));
}

#[test]
fn a_condition_of_another_generation_does_not_hold_of_this_one() {
    let mut conditions = Vec::new();
    let now = at("2026-01-01T00:00:00Z");
    set_condition(&mut conditions, finding(ConnectorReady, Holds::True, "", 3), now);
    assert!(holds(&conditions, ConnectorReady, Some(3)));
    assert!(holds(&conditions, ConnectorReady, None));
    assert!(!holds(&conditions, ConnectorReady, Some(4)));
    assert!(!holds(&conditions, ProxyGroupAvailable, None));
    set_condition(&mut conditions, finding(ConnectorReady, Holds::Unknown, "", 3), now);
    assert!(!holds(&conditions, ConnectorReady, None));
}

#[test]
fn a_message_that_the_api_server_would_refuse_loses_its_end() {
    let mut conditions = Vec::new();
    let long = "\u{e9}".repeat(40_000);
    let now = at("2026-01-01T00:00:00Z");
    set_condition(&mut conditions, finding(ConnectorReady, Holds::False, &long, 1), now);
    assert_eq!(conditions[0].message.chars().count(), 32_768);
}

#[test]
fn a_status_that_says_the_same_is_not_changed() {
    let mut stored = ConnectorStatus::default();
    assert!(!is_changed(None, &stored).unwrap(), "nothing was said, and nothing is");

    let now = at("2026-01-01T00:00:00Z");
    set_condition(&mut stored.conditions, finding(ConnectorReady, Holds::True, "", 1), now);
    set_condition(&mut stored.conditions, finding(ProxyGroupAvailable, Holds::True, "", 1), now);
    stored.devices.push(ConnectorDevice::default());
    assert!(is_changed(None, &stored).unwrap());

    let mut wanted = stored.clone();
    wanted.conditions.reverse();
    let later = at("2026-01-02T00:00:00Z");
    set_condition(&mut wanted.conditions, finding(ConnectorReady, Holds::True, "", 1), later);
    assert!(!is_changed(Some(&stored), &wanted).unwrap());

    set_condition(&mut wanted.conditions, finding(ConnectorReady, Holds::True, "", 2), later);
    assert!(is_changed(Some(&stored), &wanted).unwrap(), "of another generation");

    let exit = ConnectorStatus { is_exit_node: Some(false), ..stored.clone() };
    assert!(is_changed(Some(&stored), &exit).unwrap(), "false is not absent");

    let mut two = stored.clone();
    two.devices.push(ConnectorDevice::default());
    assert!(is_changed(Some(&stored), &two).unwrap(), "a device that says nothing is a device");
}
