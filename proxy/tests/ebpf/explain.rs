//! What the loaded programs say of a packet, beside what the table says.

use proxy::{
    data_path::Kind,
    explain::{self, Question},
};
use proxy_rules::{Action, Protocol, Side, Snat};

use crate::support::*;

#[test]
fn the_programs_answer_as_the_table_does() {
    let rig = rig_or_skip!();
    let mut refuse = rule("no", TAILNET, Protocol::Udp, "100.64.0.1/32", 53, dnat(&[], Snat::Keep));
    refuse.action = Action::Reject;
    let to = dnat(&["198.51.100.2:8080"], Snat::Masquerade);
    let table = table(vec![rule("web", TAILNET, Protocol::Tcp, "100.64.0.1/32", 80, to), refuse]);
    let ask = |protocol: &str, dst: &str| {
        let question = Question {
            protocol: protocol.to_owned(),
            src: "100.64.0.9:4000".to_owned(),
            dst: dst.to_owned(),
            from: Side::Tailnet,
        };
        let said = explain::explain(&table, &question, Some(Kind::Ebpf)).unwrap();
        let program = rig.proxy.enter(|| explain::program::ask(&table, &question)).unwrap();
        (said.rule, program)
    };
    let (named, sent) = ask("tcp", "100.64.0.1:80");
    assert_eq!(named.as_deref(), Some("web"));
    assert!(sent.starts_with("sent on as 198.51.100."), "{sent}");
    assert!(sent.ends_with("-> 198.51.100.2:8080"), "{sent}");
    let (named, refused) = ask("udp", "100.64.0.1:53");
    assert_eq!(named.as_deref(), Some("no"));
    assert_eq!(refused, "refused, and the sender told: rejected");
    let (named, dropped) = ask("tcp", "203.0.113.77:80");
    assert_eq!((named, dropped.as_str()), (None, "dropped: no_rule"));
    assert!(ask("tcp", "100.64.0.1").1.starts_with("not asked"));
}
