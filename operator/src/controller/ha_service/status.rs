//! What users are told about a Service on an ingress ProxyGroup: conditions, addresses, Events.

use std::{fmt::Display, net::IpAddr};

use k8s_openapi::{
    api::core::v1::Service, apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp,
};
use serde_json::{Value, json};

use super::api;
use crate::{
    apply::Applier,
    context::{Context, Kind},
    error::Error,
    status::{ConditionType, Finding, Holds, set_condition},
};

const VALID: ConditionType = ConditionType::TailscaleIngressSvcValid;
const CONFIGURED: ConditionType = ConditionType::TailscaleIngressSvcConfigured;

/// How it is with a Service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// What it asks for cannot be done: why, and what to do.
    Invalid(String),
    /// Its ProxyGroup is not there.
    NoGroup(String),
    /// Its ProxyGroup does not work yet.
    Waiting(String),
    /// The Tailscale Service is somebody else's.
    NotOurs(String),
    /// It is tried again: what failed.
    Failed(String),
    /// It is with the proxies.
    Served {
        /// Its full name, once that is known.
        name: Option<String>,
        /// How many replicas offer it.
        offering: usize,
        /// Of how many.
        replicas: usize,
        /// Whether it has endpoints that are ready.
        is_ready: bool,
        /// Its addresses in the tailnet.
        addresses: Vec<IpAddr>,
    },
}

impl Outcome {
    pub(super) fn invalid(why: &impl Display) -> Self {
        Self::Invalid(why.to_string())
    }

    fn findings(&self) -> Vec<(ConditionType, Holds, &'static str, String)> {
        let not = |reason, why: &String| vec![(VALID, Holds::False, reason, why.clone())];
        match self {
            Self::Invalid(why) | Self::NotOurs(why) => not("IngressSvcInvalid", why),
            Self::NoGroup(why) => not("ProxyGroupNotFound", why),
            Self::Waiting(why) => vec![(VALID, Holds::Unknown, "ProxyGroupNotReady", why.clone())],
            Self::Failed(why) => {
                vec![(CONFIGURED, Holds::False, "IngressSvcCreationFailed", why.clone())]
            }
            Self::Served { offering, replicas, is_ready, .. } => {
                let valid = "the proxies can serve what it asks for".to_owned();
                let reason = if *offering > 0 {
                    "IngressSvcConfigured"
                } else {
                    "IngressSvcNoBackendsConfigured"
                };
                let mut message = format!("{offering} of {replicas} proxies offer it");
                if !is_ready {
                    message.push_str(": none of its endpoints is ready");
                }
                vec![
                    (VALID, Holds::True, "IngressSvcValid", valid),
                    (CONFIGURED, Holds::from(*offering > 0), reason, message),
                ]
            }
        }
    }

    /// The reason of a Warning.
    fn event(&self) -> Option<&'static str> {
        match self {
            Self::Invalid(_) => Some("IngressSvcInvalid"),
            Self::NoGroup(_) => Some("ProxyGroupNotFound"),
            Self::NotOurs(_) => Some("InvalidTailscaleService"),
            Self::Failed(_) => Some("IngressSvcCreationFailed"),
            Self::Waiting(_) | Self::Served { .. } => None,
        }
    }
}

/// Tells it, if that is news.
pub(super) async fn tell(
    service: &Service,
    context: &Context,
    outcome: &Outcome,
) -> Result<(), Error> {
    let before = service.status.as_ref().and_then(|status| status.conditions.clone());
    let before = before.unwrap_or_default();
    let mut conditions = before.clone();
    let mut own = Vec::new();
    for (condition, holds, reason, message) in outcome.findings() {
        // Users see no generation, as of upstream's operator: a Service's does not follow its annotations.
        let finding =
            Finding { condition, holds, reason, message: message.clone(), generation: None };
        set_condition(&mut conditions, finding, Timestamp::now());
        let is = of_type(&conditions, condition);
        if let Some(event) = outcome.event().filter(|_| of_type(&before, condition) != is) {
            context.events.tell(service, Kind::Warning, event, &message).await;
        }
        own.extend(is.cloned());
    }
    let mut status = json!({ "conditions": own });
    if let (Some(entries), Some(fields)) = (balancers(service, outcome), status.as_object_mut()) {
        fields.insert("loadBalancer".into(), json!({ "ingress": entries }));
    }
    let desired = json!({ "status": status });
    Applier::apply_status(&api(context, service), service, &desired).await.map(drop)
}

fn of_type(all: &[Condition], condition: ConditionType) -> Option<&Condition> {
    all.iter().find(|one| one.type_ == condition.label())
}

/// Its name with its first address, and the others.
fn balancers(service: &Service, outcome: &Outcome) -> Option<Vec<Value>> {
    let Outcome::Served { name: Some(name), offering: 1.., addresses, .. } = outcome else {
        return None;
    };
    let kind = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    if kind != Some("LoadBalancer") {
        return None;
    }
    let mut entries: Vec<_> = addresses.iter().map(|address| json!({ "ip": address })).collect();
    if let Some(Value::Object(first)) = entries.first_mut() {
        first.insert("hostname".into(), json!(name));
    }
    Some(entries)
}
