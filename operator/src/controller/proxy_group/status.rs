//! What users are told about a ProxyGroup.

use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Map, Value, json};

use super::{api, existing::pods, replicas};
use crate::{
    apply::Applier,
    build::{
        group::{config_name, stored},
        secret_name,
    },
    context::{Context, Kind, labelled},
    controller::standalone::{device_info, text},
    crd::{ProxyGroup, proxy_group::ProxyGroupType},
    error::Error,
    label::{self, Parent},
    status::{ConditionType, Finding, Holds, holds, set_condition},
};

const CREATING: &str = "ProxyGroupCreating";

/// How it is with a ProxyGroup.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// What it asks for cannot be done: why, and what to do.
    Invalid(String),
    /// Something else must be ready first.
    Creating(String),
    /// Its tailnet is not to be had.
    TailnetUnavailable(String),
    /// What failed.
    Failed(String),
    /// Its objects are made.
    Made,
}

/// A proxy that works.
struct Running {
    hostname: String,
    addresses: Vec<IpAddr>,
    endpoints: Vec<String>,
}

/// Tells it, if that is news.
pub(super) async fn tell(
    group: &ProxyGroup,
    context: &Context,
    parent: &Parent,
    outcome: &Outcome,
) -> Result<(), Error> {
    let running = running(context, parent);
    let wanted = replicas(group);
    let before = group.status.as_ref().map_or(&[][..], |status| &status.conditions);
    // Those of others stay as they are.
    let mut conditions = before.to_vec();
    let (holds, reason, message) = ready(group, before, outcome, running.len(), wanted);
    let now = Timestamp::now();
    let finding = Finding {
        condition: ConditionType::ProxyGroupReady,
        holds: Holds::from(holds),
        reason,
        message: message.clone(),
        generation: group.metadata.generation,
    };
    set_condition(&mut conditions, finding, now);
    let fails = matches!(
        outcome,
        Outcome::Invalid(_) | Outcome::Failed(_) | Outcome::TailnetUnavailable(_)
    );
    if fails && conditions != before {
        context.events.tell(group, Kind::Warning, reason, &message).await;
    }
    let available = Finding {
        condition: ConditionType::ProxyGroupAvailable,
        holds: Holds::from(!running.is_empty()),
        reason: if running.len() == wanted && wanted > 0 {
            "ProxyGroupAvailable"
        } else {
            CREATING
        },
        message: format!("{}/{wanted} ProxyGroup pods running", running.len()),
        // Users see none, as of upstream's operator.
        generation: None,
    };
    set_condition(&mut conditions, available, now);
    let mut status = Map::from_iter([("conditions".to_owned(), json!(conditions))]);
    if !running.is_empty() {
        status.insert("devices".into(), running.iter().map(device).collect());
    }
    if let Some(url) = group.status.as_ref().and_then(|status| status.url.as_ref()) {
        status.insert("url".into(), json!(url));
    }
    let desired = json!({ "status": status });
    Applier::apply_status(&api(context), group, &desired).await.map(drop)
}

/// Whether it is ready, in one word, and why.
fn ready(
    group: &ProxyGroup,
    conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
    outcome: &Outcome,
    running: usize,
    wanted: usize,
) -> (bool, &'static str, String) {
    let serves_api = group.spec.type_ == ProxyGroupType::KubeApiserver;
    let (valid, configured) =
        (ConditionType::KubeApiServerProxyValid, ConditionType::KubeApiServerProxyConfigured);
    let is_told =
        |condition: ConditionType| conditions.iter().any(|each| each.type_ == condition.label());
    let holds = |condition| holds(conditions, condition, group.metadata.generation);
    match outcome {
        Outcome::Invalid(why) => (false, "ProxyGroupInvalid", why.clone()),
        Outcome::Creating(why) => (false, CREATING, why.clone()),
        Outcome::TailnetUnavailable(why) => (false, "ProxyGroupTailnetUnavailable", why.clone()),
        Outcome::Failed(why) => (false, "ProxyGroupCreationFailed", why.clone()),
        Outcome::Made if serves_api && is_told(valid) && !holds(valid) => {
            let why = "its condition KubeAPIServerProxyValid does not hold and says why";
            (false, "ProxyGroupInvalid", why.into())
        }
        Outcome::Made if running < wanted => {
            (false, CREATING, format!("{running}/{wanted} ProxyGroup pods running"))
        }
        Outcome::Made if running > wanted => {
            let why = format!("waiting for {} ProxyGroup pods to shut down", running - wanted);
            (false, CREATING, why)
        }
        Outcome::Made if serves_api && !holds(configured) => {
            let why = "its condition KubeAPIServerProxyConfigured does not hold yet and says why";
            (false, CREATING, why.into())
        }
        Outcome::Made => (true, "ProxyGroupReady", "ProxyGroupReady".into()),
    }
}

/// The replicas whose present pods have told that they work, in order.
fn running(context: &Context, parent: &Parent) -> Vec<Running> {
    let pods = pods(context, parent);
    let mut labels = parent.child_labels();
    labels.insert(label::SECRET_TYPE.into(), label::SECRET_STATE.into());
    let secrets = labelled(&context.cache.secrets, &labels);
    let mut all = Vec::new();
    for secret in secrets {
        let name = secret.name_any();
        let is_of_pod = pods.get(&name).is_some_and(|pod| pod.uid() == text(&secret, "pod_uid"));
        let Some(ordinal) = ordinal(&parent.name, &name).filter(|_| is_of_pod) else { continue };
        let Some(device) = device_info(&secret) else { continue };
        let Some((hostname, _)) = device.fqdn.as_deref().and_then(|name| name.split_once('.'))
        else {
            continue;
        };
        let config = kube::runtime::reflector::ObjectRef::new(&config_name(&parent.name, ordinal))
            .within(&context.settings.namespace);
        let stored = context.cache.secrets.get(&config).map(|config| stored(&config).0);
        let endpoints = stored.and_then(|stored| stored.endpoints).unwrap_or_default();
        let running = Running {
            hostname: hostname.to_owned(),
            addresses: device.addresses,
            endpoints: endpoints.iter().map(ToString::to_string).collect(),
        };
        all.push((ordinal, running));
    }
    all.sort_by_key(|(ordinal, _)| *ordinal);
    all.into_iter().map(|(_, running)| running).collect()
}

/// The number of a replica, by the name of its Secret.
fn ordinal(group: &str, secret: &str) -> Option<usize> {
    let number: usize = secret.strip_prefix(group)?.strip_prefix('-')?.parse().ok()?;
    (secret_name(group, number) == secret).then_some(number)
}

fn device(running: &Running) -> Value {
    let mut told = json!({ "hostname": running.hostname, "tailnetIPs": running.addresses });
    if let Some(told) = told.as_object_mut().filter(|_| !running.endpoints.is_empty()) {
        told.insert("staticEndpoints".into(), json!(running.endpoints));
    }
    told
}
