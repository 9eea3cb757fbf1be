//! What users are told about a Service: its condition, its addresses, Events.

use std::net::IpAddr;

use k8s_openapi::{api::core::v1::Service, jiff::Timestamp};
use serde_json::{Value, json};

use super::api;
use crate::{
    apply::Applier,
    context::{Context, Kind},
    error::Error,
    status::{ConditionType, Finding, Holds, set_condition},
};

const READY: ConditionType = ConditionType::TailscaleProxyReady;

/// How it is with a Service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// It asks for nothing.
    Nothing,
    /// What it asks for cannot be done: why, and what to do.
    Invalid(String),
    /// The operator's own settings are wrong: why, and what to do.
    BadSettings(String),
    /// Something else must be ready first.
    Pending(String),
    /// It is tried again: what failed.
    Failed(String),
    /// The proxy is made.
    Created,
    /// The proxy is made and has not told its addresses.
    Waiting,
    /// The proxy works, and the Service is to tell its addresses.
    Balancing {
        /// Its full name.
        name: String,
        /// Its addresses.
        addresses: Vec<IpAddr>,
    },
}

impl Outcome {
    /// Whether the proxy is there, the condition's reason, and what it says.
    fn condition(&self) -> Option<(bool, &'static str, &str)> {
        Some(match self {
            Self::Nothing => return None,
            Self::Invalid(why) | Self::BadSettings(why) => (false, "ProxyInvalid", why),
            Self::Pending(why) => (false, "ProxyPending", why),
            Self::Failed(why) => (false, "ProxyFailed", why),
            Self::Waiting => (
                false,
                "ProxyPending",
                "the proxy is made and has not logged in to the tailnet yet",
            ),
            Self::Created | Self::Balancing { .. } => (true, "ProxyCreated", "the proxy is made"),
        })
    }

    /// The reason of a Warning.
    fn event(&self) -> Option<&'static str> {
        match self {
            Self::Invalid(_) => Some("INVALIDSERVICE"),
            Self::BadSettings(_) => Some("INVALIDCONFIG"),
            Self::Failed(_) => Some("ProxyFailed"),
            _ => None,
        }
    }
}

/// Tells it, if that is news.
pub(super) async fn tell(
    service: &Service,
    context: &Context,
    outcome: &Outcome,
) -> Result<(), Error> {
    let before = service.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = before.cloned().unwrap_or_default();
    let mut status = json!({});
    if let Some((holds, reason, message)) = outcome.condition() {
        let finding = Finding {
            condition: READY,
            holds: Holds::from(holds),
            reason,
            message: message.to_owned(),
            // Users see 0, as of upstream's operator: a Service's generation does not follow its annotations.
            generation: None,
        };
        set_condition(&mut conditions, finding, Timestamp::now());
        let of_type = |all: &[_]| find(all).cloned();
        let (was, is) = (before.and_then(|all| of_type(all)), of_type(&conditions));
        if let Some(event) = outcome.event().filter(|_| was != is) {
            context.events.tell(service, Kind::Warning, event, message).await;
        }
        status = json!({ "conditions": is.into_iter().collect::<Vec<_>>() });
    }
    if let (Outcome::Balancing { name, addresses }, Some(fields)) =
        (outcome, status.as_object_mut())
    {
        let ingress = balancers(service, name, addresses);
        fields.insert("loadBalancer".into(), json!({ "ingress": ingress }));
    }
    let desired = json!({ "status": status });
    Applier::apply_status(&api(context, service), service, &desired).await.map(drop)
}

type Condition = k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

fn find(conditions: &[Condition]) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == READY.label())
}

/// The name, and the addresses of families that the Service has.
fn balancers(service: &Service, name: &str, addresses: &[IpAddr]) -> Vec<Value> {
    let spec = service.spec.as_ref();
    let own: Vec<IpAddr> = spec
        .and_then(|spec| spec.cluster_ips.as_ref())
        .into_iter()
        .flatten()
        .chain(spec.and_then(|spec| spec.cluster_ip.as_ref()))
        .filter_map(|address| address.parse().ok())
        .collect();
    let has_family = |address: &&IpAddr| own.iter().any(|own| own.is_ipv4() == address.is_ipv4());
    let mut all = vec![json!({ "hostname": name })];
    all.extend(addresses.iter().filter(has_family).map(|address| json!({ "ip": address })));
    all
}
