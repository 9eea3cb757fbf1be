//! What users are told about a Recorder.

use serde_json::json;

use super::api;
use crate::{
    apply::Applier,
    context::Context,
    controller::told::{Told, conditions},
    crd::{Recorder, recorder::RecorderDevice},
    error::Error,
    status::ConditionType,
};

/// How it is with a Recorder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// What it asks for cannot be done: why, and what to do.
    Invalid(String),
    /// The ServiceAccount that it names is somebody else's.
    AccountTaken(String),
    /// Its tailnet is not to be had.
    TailnetUnavailable(String),
    /// It is tried again: what failed.
    Failed(String),
    /// It is made, and these have logged in.
    Created(Vec<RecorderDevice>),
}

/// Tells it, if that is news.
pub(super) async fn tell(
    recorder: &Recorder,
    context: &Context,
    outcome: &Outcome,
) -> Result<(), Error> {
    let (holds, reason, message) = match outcome {
        Outcome::Invalid(why) => (false, "RecorderInvalid", why.clone()),
        Outcome::AccountTaken(account) => {
            let told = format!(
                "spec.statefulSet.pod.serviceAccount.name: ServiceAccount {account} exists and is not of this Recorder, name another one or delete it"
            );
            (false, "RecorderInvalid", told)
        }
        Outcome::TailnetUnavailable(why) => (false, "RecorderTailnetUnavailable", why.clone()),
        Outcome::Failed(why) => (false, "RecorderCreationFailed", why.clone()),
        Outcome::Created(_) => (true, "RecorderCreated", "RecorderCreated".to_owned()),
    };
    let told =
        Told { condition: ConditionType::RecorderReady, holds, reason, message, warns: !holds };
    let before = recorder.status.as_ref();
    let conditions =
        conditions(recorder, context, before.map_or(&[], |status| &status.conditions), told).await;
    let devices = match outcome {
        Outcome::Created(devices) => devices.clone(),
        // What was made before is as it was.
        _ => before.map(|status| status.devices.clone()).unwrap_or_default(),
    };
    let mut status = json!({ "conditions": conditions });
    if let Some(fields) = status.as_object_mut().filter(|_| !devices.is_empty()) {
        fields.insert("devices".into(), json!(devices));
    }
    Applier::apply_status(&api(context), recorder, &json!({ "status": status })).await.map(drop)
}
