//! What users are told about a Connector.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::api;
use crate::{
    apply::Applier,
    context::{Context, Kind},
    controller::standalone::DeviceInfo,
    crd::Connector,
    error::Error,
    status::{ConditionType, Finding, Holds, set_condition},
};

const READY: ConditionType = ConditionType::ConnectorReady;

/// How it is with a Connector.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// What it asks for cannot be done: why, and what to do.
    Invalid(String),
    /// Something else must be ready first.
    Pending(String),
    /// It is tried again: what failed.
    Failed(String),
    /// It is made, and these have logged in.
    Created(Vec<DeviceInfo>),
}

impl Outcome {
    fn condition(&self) -> (bool, &'static str, &str) {
        match self {
            Self::Invalid(why) => (false, "ConnectorInvalid", why),
            Self::Pending(why) => (false, "ConnectorCreating", why),
            Self::Failed(why) => (false, "ConnectorCreationFailed", why),
            Self::Created(_) => (true, "ConnectorCreated", "ConnectorCreated"),
        }
    }
}

/// Tells it, if that is news.
pub(super) async fn tell(
    connector: &Connector,
    context: &Context,
    outcome: &Outcome,
) -> Result<(), Error> {
    let before = connector.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let mut conditions = before.to_vec();
    let (holds, reason, message) = outcome.condition();
    let finding = Finding {
        condition: READY,
        holds: Holds::from(holds),
        reason,
        message: message.to_owned(),
        generation: connector.metadata.generation,
    };
    set_condition(&mut conditions, finding, Timestamp::now());
    let is_news = conditions != before;
    if is_news && matches!(outcome, Outcome::Invalid(_) | Outcome::Failed(_)) {
        context.events.tell(connector, Kind::Warning, reason, message).await;
    }
    let mut status = match outcome {
        Outcome::Created(devices) => created(connector, devices),
        // What was made before is as it was.
        Outcome::Invalid(_) | Outcome::Pending(_) | Outcome::Failed(_) => as_it_was(connector),
    };
    conditions.retain(|condition| condition.type_ == READY.label());
    status.insert("conditions".into(), json!(conditions));
    let desired = json!({ "status": status });
    Applier::apply_status(&api(context), connector, &desired).await.map(drop)
}

/// The devices in the order of the replicas; the first one also by itself, as when there could be no others.
fn created(connector: &Connector, devices: &[DeviceInfo]) -> Map<String, Value> {
    let spec = &connector.spec;
    let subnets = spec.subnet_router.as_ref().map(|router| router.advertise_routes.join(","));
    let mut status = Map::from_iter([
        ("subnetRoutes".to_owned(), json!(subnets.unwrap_or_default())),
        ("isExitNode".to_owned(), json!(spec.exit_node.unwrap_or(false))),
        ("isAppConnector".to_owned(), json!(spec.app_connector.is_some())),
    ]);
    let device = |device: &DeviceInfo| {
        let mut told = Map::new();
        if let Some(name) = &device.fqdn {
            told.insert("hostname".into(), json!(name));
        }
        if !device.addresses.is_empty() {
            told.insert("tailnetIPs".into(), json!(device.addresses));
        }
        told
    };
    let devices: Vec<_> = devices.iter().map(device).collect();
    if let Some(first) = devices.first() {
        status.extend(first.clone());
        status.insert("devices".into(), json!(devices));
    }
    status
}

fn as_it_was(connector: &Connector) -> Map<String, Value> {
    let Some(status) = &connector.status else { return Map::new() };
    let Ok(Value::Object(mut fields)) = serde_json::to_value(status) else { return Map::new() };
    // Whoever counts traffic tells of it.
    fields.remove("dataPath");
    fields
}
