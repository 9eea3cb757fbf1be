//! Which rule the first packet of a flow meets, and why not another: a search through the table in its order.

use std::net::{IpAddr, SocketAddr};

use proxy_rules::{Action, BackendState, Protocol, Rule, RuleTable, Side};
use serde::{Deserialize, Serialize};

use crate::data_path::Kind;

pub mod program;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// tcp, udp or icmp.
    pub protocol: String,
    /// Source, with or without port.
    pub src: String,
    /// Destination, with or without port.
    pub dst: String,
    /// The side it comes from.
    pub from: Side,
}

impl Question {
    fn protocol(&self) -> Result<Protocol, BadQuestion> {
        Protocol::ALL
            .into_iter()
            .find(|protocol| protocol.label() == self.protocol)
            .ok_or_else(|| BadQuestion::Protocol(self.protocol.clone()))
    }
}

/// What is answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The rule that decides.
    pub rule: Option<String>,
    /// What happens.
    pub outcome: String,
    /// What the loaded kernel programs do with such a packet, where they carry the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Rules for this destination, in order, each with what it says to the packet.
    pub trace: Vec<String>,
    /// Content hash of the table that was asked.
    pub generation: String,
    /// The path that carries the table.
    pub data_path: Option<String>,
}

/// Not a packet.
#[derive(Debug, thiserror::Error)]
pub enum BadQuestion {
    /// The protocol.
    #[error("protocol `{0}`: use tcp, udp or icmp")]
    Protocol(String),
    /// An end.
    #[error("`{0}` is not an address or address:port")]
    End(String),
}

fn end(text: &str) -> Result<(IpAddr, u16), BadQuestion> {
    text.parse::<SocketAddr>()
        .map(|end| (end.ip(), end.port()))
        .or_else(|_| text.parse::<IpAddr>().map(|address| (address, 0)))
        .map_err(|_| BadQuestion::End(text.to_owned()))
}

/// Searches the table.
pub fn explain(
    table: &RuleTable,
    question: &Question,
    kind: Option<Kind>,
) -> Result<Answer, BadQuestion> {
    let protocol = question.protocol()?;
    let (src, dst) = (end(&question.src)?, end(&question.dst)?);
    let mut answer = Answer {
        outcome: "no rule names it: left to the kernel, or dropped as settings.unmatched says"
            .to_owned(),
        generation: table.generation().to_owned(),
        data_path: kind.map(|kind| kind.label().to_owned()),
        ..Answer::default()
    };
    if question.from == Side::Cluster
        && table.settings().protected.iter().any(|net| net.contains(&src.0))
    {
        "dropped: spoofed_source".clone_into(&mut answer.outcome);
        return Ok(answer);
    }
    for rule in table.rules().iter().filter(|rule| rule.matches.dst.contains(&dst.0)) {
        let Err(why) = meets(rule, question.from, protocol, src.0, dst.1) else {
            answer.trace.push(format!("{}: matches", rule.id));
            answer.rule = Some(rule.id.to_string());
            answer.outcome = outcome(&rule.action);
            break;
        };
        answer.trace.push(format!("{}: {why}", rule.id));
    }
    Ok(answer)
}

fn meets(
    rule: &Rule,
    from: Side,
    protocol: Protocol,
    src: IpAddr,
    port: u16,
) -> Result<(), String> {
    let wanted = &rule.matches;
    if rule.from != from {
        return Err(format!("is for the {} side", rule.from));
    }
    if let Some(named) = wanted.protocol.filter(|named| *named != protocol) {
        return Err(format!("is for {named}"));
    }
    let portless = protocol == Protocol::Icmp;
    if !wanted.ports.is_any() && (portless || !wanted.ports.contains(port)) {
        return Err(format!("is for port {}", wanted.ports));
    }
    if !wanted.src.is_empty() && !wanted.src.iter().any(|net| net.contains(&src)) {
        return Err("is for other sources".to_owned());
    }
    Ok(())
}

fn outcome(action: &Action) -> String {
    match action {
        Action::Dnat { backends, snat, .. } => {
            let ready: Vec<_> = backends
                .list
                .iter()
                .filter(|backend| backend.state == BackendState::Ready)
                .map(|backend| match backend.port {
                    Some(port) => SocketAddr::new(backend.address, port).to_string(),
                    None => backend.address.to_string(),
                })
                .collect();
            if ready.is_empty() {
                return "refused: no_backend".to_owned();
            }
            format!("sent to one of {}; source {snat:?}", ready.join(", "))
        }
        Action::Forward { to, snat } => format!("forwarded to the {to} side; source {snat:?}"),
        Action::Reject => "refused, and the sender told".to_owned(),
        Action::Drop(reason) => format!("dropped: {}", reason.label()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"{"apiVersion":"sluice.dev/v1","kind":"ProxyRules","ingress":[{"name":"web",
        "frontends":["100.64.0.9"],"ports":[{"protocol":"tcp","port":443}],"backends":[{"address":"192.0.2.7"}]}]}"#;

    #[test]
    fn names_the_rule_or_why_each_one_does_not_match() {
        let table = proxy_rules::validate::validate(RULES).unwrap().table;
        let ask = |protocol: &str, dst: &str| {
            let question = Question {
                protocol: protocol.into(),
                src: "100.64.0.1:999".into(),
                dst: dst.into(),
                from: Side::Tailnet,
            };
            explain(&table, &question, None)
        };
        assert_eq!(ask("tcp", "100.64.0.9:443").unwrap().rule.as_deref(), Some("web"));
        let other = ask("tcp", "100.64.0.9:80").unwrap();
        assert_eq!((other.rule, other.trace), (None, vec!["web: is for port 443".to_owned()]));
        assert!(ask("sctp", "100.64.0.9:80").is_err());
        assert!(ask("tcp", "nowhere").is_err());
    }
}
