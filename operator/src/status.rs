//! Conditions with stable transition times.
//!
//! A condition's transition time is kept while its status stays, so that a status that says the same is the same, and
//! nothing is written in steady state. Times have a precision of seconds, as the API server keeps them.

use std::fmt;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use serde::Serialize;
use serde_json::Value;

/// The longest message that the schema lets through, in characters.
const LONGEST_MESSAGE: usize = 32_768;

/// Every condition that is set, by its type. On Services there are no schemas that would name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionType {
    /// A Connector's devices are made.
    ConnectorReady,
    /// A ProxyClass can be used.
    ProxyClassReady,
    /// Every proxy of a ProxyGroup works.
    ProxyGroupReady,
    /// At least one proxy of a ProxyGroup works. Its generation is not observed.
    ProxyGroupAvailable,
    /// A ProxyGroup may offer the API server under its name.
    KubeApiServerProxyValid,
    /// A ProxyGroup offers the API server.
    KubeApiServerProxyConfigured,
    /// A Recorder's devices are made.
    RecorderReady,
    /// A DNSConfig's nameserver is made.
    NameserverReady,
    /// A Tailnet can be used.
    TailnetReady,
    /// Every relay of a PeerRelay works and is reached.
    PeerRelayReady,
    /// The proxy of a Service that has one of its own is made.
    TailscaleProxyReady,
    /// What an egress Service on a ProxyGroup asks for can be done.
    TailscaleEgressSvcValid,
    /// An egress Service's rules are written.
    TailscaleEgressSvcConfigured,
    /// An egress Service works.
    TailscaleEgressSvcReady,
    /// What an ingress Service on a ProxyGroup asks for can be done.
    TailscaleIngressSvcValid,
    /// An ingress Service is offered.
    TailscaleIngressSvcConfigured,
}

impl ConditionType {
    /// As it stands in a status.
    pub const fn label(self) -> &'static str {
        match self {
            Self::ConnectorReady => "ConnectorReady",
            Self::ProxyClassReady => "ProxyClassReady",
            Self::ProxyGroupReady => "ProxyGroupReady",
            Self::ProxyGroupAvailable => "ProxyGroupAvailable",
            Self::KubeApiServerProxyValid => "KubeAPIServerProxyValid",
            Self::KubeApiServerProxyConfigured => "KubeAPIServerProxyConfigured",
            Self::RecorderReady => "RecorderReady",
            Self::NameserverReady => "NameserverReady",
            Self::TailnetReady => "TailnetReady",
            Self::PeerRelayReady => "PeerRelayReady",
            Self::TailscaleProxyReady => "TailscaleProxyReady",
            Self::TailscaleEgressSvcValid => "TailscaleEgressSvcValid",
            Self::TailscaleEgressSvcConfigured => "TailscaleEgressSvcConfigured",
            Self::TailscaleEgressSvcReady => "TailscaleEgressSvcReady",
            Self::TailscaleIngressSvcValid => "TailscaleIngressSvcValid",
            Self::TailscaleIngressSvcConfigured => "TailscaleIngressSvcConfigured",
        }
    }
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// It does.
    True,
    /// It does not.
    False,
    /// Nobody knows yet.
    Unknown,
}

impl Holds {
    /// As it stands in a status.
    pub const fn label(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Holds {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// What is found of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is told.
    pub condition: ConditionType,
    /// Whether it holds.
    pub holds: Holds,
    /// Why, in one word of PascalCase: users see it in printer columns and match on it.
    pub reason: &'static str,
    /// Why, for people. A message longer than the API server takes loses its end.
    pub message: String,
    /// The generation of the object that this was found of; `None` where the generation is not observed.
    pub generation: Option<i64>,
}

/// Sets a condition. The others keep their places; a condition that is new comes last.
pub fn set_condition(conditions: &mut Vec<Condition>, finding: Finding, now: Timestamp) {
    let Finding { condition, holds, reason, mut message, generation } = finding;
    let (type_, status) = (condition.label(), holds.label());
    if let Some((end, _)) = message.char_indices().nth(LONGEST_MESSAGE) {
        message.truncate(end);
    }
    let place = conditions.iter_mut().find(|condition| condition.type_ == type_);
    let since = match &place {
        Some(before) if before.status == status => before.last_transition_time.clone(),
        _ => Time(seconds(now)),
    };
    let condition = Condition {
        last_transition_time: since,
        message,
        observed_generation: generation,
        reason: reason.to_owned(),
        status: status.to_owned(),
        type_: type_.to_owned(),
    };
    match place {
        Some(before) => *before = condition,
        None => conditions.push(condition),
    }
}

/// Takes a condition away that no longer applies, such as one of another type of ProxyGroup.
pub fn remove_condition(conditions: &mut Vec<Condition>, condition: ConditionType) {
    conditions.retain(|each| each.type_ != condition.label());
}

/// Whether a condition holds, of this generation of the object if one is given. Who relies on an object that has changed
/// since gives it, and waits for the new finding.
pub fn holds(conditions: &[Condition], condition: ConditionType, generation: Option<i64>) -> bool {
    conditions.iter().any(|each| {
        each.type_ == condition.label()
            && each.status == Holds::True.label()
            && generation.is_none_or(|generation| each.observed_generation == Some(generation))
    })
}

/// Whether a status says something else than the one that is stored: what is absent, null and empty says the same, and
/// so do conditions in any order.
pub fn is_changed<S: Serialize>(stored: Option<&S>, wanted: &S) -> Result<bool, serde_json::Error> {
    let stored = stored.map_or(Ok(Value::Null), serde_json::to_value)?;
    Ok(meaning(stored) != meaning(serde_json::to_value(wanted)?))
}

/// A value without what says nothing; `None` if that is all of it.
fn meaning(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(items) => {
            // Items keep their places: an empty one is still an item.
            let items = items.into_iter().map(|item| meaning(item).unwrap_or_default());
            let items: Vec<_> = items.collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::Object(fields) => {
            let fields = fields.into_iter().filter_map(|(name, value)| {
                let value = if name == "conditions" { by_type(value) } else { value };
                Some((name, meaning(value)?))
            });
            let fields: serde_json::Map<_, _> = fields.collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        value => Some(value),
    }
}

fn by_type(mut conditions: Value) -> Value {
    if let Value::Array(conditions) = &mut conditions {
        conditions.sort_by(|a, b| type_of(a).cmp(type_of(b)));
    }
    conditions
}

fn type_of(condition: &Value) -> &str {
    condition.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn seconds(time: Timestamp) -> Timestamp {
    // In range: it is the same instant or less than a second before.
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests;
