//! What users are told about a Service that a ProxyGroup leads to the tailnet.

use k8s_openapi::{
    api::core::v1::Service, apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp,
};
use serde_json::json;

use crate::{
    apply::Applier,
    context::{Context, Kind},
    controller::service::api,
    error::Error,
    status::{ConditionType, Finding, Holds, remove_condition, set_condition},
};

const VALID: ConditionType = ConditionType::TailscaleEgressSvcValid;
const CONFIGURED: ConditionType = ConditionType::TailscaleEgressSvcConfigured;
const READY: ConditionType = ConditionType::TailscaleEgressSvcReady;

/// How it is with a Service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// What it asks for cannot be done: why, and what to do.
    Invalid(String),
    /// Its ProxyGroup is not there.
    NoGroup(String),
    /// Its ProxyGroup's pods have no ports left.
    NoPorts(String),
    /// It is not known yet, and will be in a moment.
    UnderWay,
    /// It is tried again: what failed.
    Failed(String),
    /// What the proxies are to do is decided.
    Made {
        /// The ProxyGroup.
        group: String,
        /// Tells this configuration from others.
        hash: String,
        /// Whether they do it, once it is written for them.
        readiness: Option<Readiness>,
    },
}

/// Whether clients are led to proxies.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Readiness {
    /// There is no pod of that name.
    PodMissing(String),
    /// To some of them, or to all, or to none.
    Counted {
        /// To so many.
        ready: usize,
        /// Of so many.
        wanted: usize,
    },
}

impl Readiness {
    fn told(&self) -> (Holds, &'static str, String) {
        match self {
            Self::PodMissing(pod) => {
                let why = format!("pod {pod} of the ProxyGroup is not there");
                (Holds::Unknown, "ClusterResourcesNotReady", why)
            }
            Self::Counted { wanted: 0, .. } => {
                (Holds::False, "NoProxiesConfigured", "the ProxyGroup has no replicas".into())
            }
            Self::Counted { ready, wanted } => {
                let (holds, reason) = match *ready {
                    0 => (Holds::False, "NotReadyToRouteTraffic"),
                    all if all == *wanted => (Holds::True, "ReadyToRouteTraffic"),
                    _ => (Holds::True, "PartiallyReadyToRouteTraffic"),
                };
                (holds, reason, format!("{ready} of {wanted} replicas route traffic"))
            }
        }
    }
}

/// Tells it, if that is news.
pub(super) async fn tell(
    service: &Service,
    context: &Context,
    outcome: &Outcome,
) -> Result<(), Error> {
    if *outcome == Outcome::UnderWay {
        return Ok(());
    }
    let before = service.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut all = before.cloned().unwrap_or_default();
    all.retain(is_ours);
    let before = all.clone();
    let event = set(&mut all, outcome);
    if let Some((reason, note)) = event.filter(|_| all != before) {
        context.events.tell(service, Kind::Warning, reason, &note).await;
    }
    let desired = json!({ "status": { "conditions": all } });
    Applier::apply_status(&api(context, service), service, &desired).await.map(drop)
}

/// Whether anything was told of it.
pub(super) fn is_told(service: &Service) -> bool {
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(is_ours)
}

fn is_ours(condition: &Condition) -> bool {
    [VALID, CONFIGURED, READY].iter().any(|own| own.label() == condition.type_)
}

/// Sets the conditions; returns what a Warning says.
fn set(all: &mut Vec<Condition>, outcome: &Outcome) -> Option<(&'static str, String)> {
    let now = Timestamp::now();
    // Users see no generation, as of upstream's operator: a Service's does not follow its annotations.
    let mut tell = |condition, holds, reason, message: &str| {
        let message = message.to_owned();
        set_condition(all, Finding { condition, holds, reason, message, generation: None }, now);
    };
    match outcome {
        Outcome::UnderWay => None,
        Outcome::Invalid(why) => {
            tell(VALID, Holds::False, "EgressSvcInvalid", why);
            remove_condition(all, CONFIGURED);
            Some(("INVALIDSERVICE", why.clone()))
        }
        Outcome::NoGroup(group) => {
            let why =
                format!("ProxyGroup `{group}` does not exist: create it, or name another one");
            tell(VALID, Holds::Unknown, "ProxyGroupNotReady", &why);
            tell(READY, Holds::False, "ClusterResourcesNotReady", &why);
            remove_condition(all, CONFIGURED);
            Some(("ProxyGroupNotFound", why))
        }
        Outcome::NoPorts(group) => {
            let why = format!(
                "the pods of ProxyGroup `{group}` have no ports left: move Services to another one"
            );
            tell(VALID, Holds::True, "EgressSvcValid", "EgressSvcValid");
            tell(CONFIGURED, Holds::False, "ConfigurationFailed", &why);
            Some(("ConfigurationFailed", why))
        }
        Outcome::Failed(why) => {
            tell(CONFIGURED, Holds::False, "ConfigurationFailed", why);
            Some(("ConfigurationFailed", why.clone()))
        }
        Outcome::Made { group, hash, readiness } => {
            tell(VALID, Holds::True, "EgressSvcValid", "EgressSvcValid");
            let Some(readiness) = readiness else {
                remove_condition(all, CONFIGURED);
                let why = "the proxies have not been told yet";
                set_condition(
                    all,
                    Finding {
                        condition: READY,
                        holds: Holds::False,
                        reason: "ClusterResourcesNotReady",
                        message: why.into(),
                        generation: None,
                    },
                    now,
                );
                return None;
            };
            tell(CONFIGURED, Holds::True, "ConfiguredFor", "the proxies are told");
            let (holds, reason, why) = readiness.told();
            tell(READY, holds, reason, &why);
            // A part of the contract, and not one word.
            let configured = all.iter_mut().find(|each| each.type_ == CONFIGURED.label());
            if let Some(configured) = configured {
                configured.reason = format!("ConfiguredFor:ProxyGroup:{group}:Config:{hash}");
            }
            None
        }
    }
}
