//! What users are told about a ProxyClass.

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::{api, validate};
use crate::{
    apply::Applier,
    context::{Context, Kind},
    crd::ProxyClass,
    error::Error,
    status::{ConditionType, Finding, Holds, set_condition},
};

const READY: ConditionType = ConditionType::ProxyClassReady;

/// Tells what is wrong, or that nothing is, if that is news.
pub(super) async fn tell(
    class: &ProxyClass,
    context: &Context,
    wrong: &[String],
) -> Result<(), Error> {
    let before = class.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let mut conditions = before.to_vec();
    let is_valid = wrong.is_empty();
    let reason = if is_valid { "ProxyClassValid" } else { "ProxyClassInvalid" };
    let message = if is_valid { reason.to_owned() } else { wrong.join("; ") };
    let finding = Finding {
        condition: READY,
        holds: Holds::from(is_valid),
        reason,
        message: message.clone(),
        generation: class.metadata.generation,
    };
    set_condition(&mut conditions, finding, Timestamp::now());
    if conditions != before {
        for name in validate::own_variables(class) {
            let note = format!(
                "spec.statefulSet.pod.tailscaleContainer.env: {name} is the operator's own, setting it may break the proxies"
            );
            context.events.tell(class, Kind::Warning, "CustomTSEnvVar", &note).await;
        }
        if !is_valid {
            context.events.tell(class, Kind::Warning, reason, &message).await;
        }
    }
    conditions.retain(|condition| condition.type_ == READY.label());
    let desired = json!({ "status": { "conditions": conditions } });
    Applier::apply_status(&api(context), class, &desired).await.map(drop)
}
