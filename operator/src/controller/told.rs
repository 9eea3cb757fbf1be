//! What is told in a condition, and once in an Event if somebody should look.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::Resource;

use crate::{
    context::{Context, Kind},
    status::{ConditionType, Finding, Holds, set_condition},
};

/// A condition of an object that has no other.
pub(super) struct Told {
    pub(super) condition: ConditionType,
    pub(super) holds: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Whether somebody should look.
    pub(super) warns: bool,
}

/// The conditions of an object with this one; an Event if that is news and it warns.
pub(super) async fn conditions<K: Resource<DynamicType = ()>>(
    object: &K,
    context: &Context,
    before: &[Condition],
    told: Told,
) -> Vec<Condition> {
    let Told { condition, holds, reason, message, warns } = told;
    let mut conditions = before.to_vec();
    let finding = Finding {
        condition,
        holds: Holds::from(holds),
        reason,
        message: message.clone(),
        generation: object.meta().generation,
    };
    set_condition(&mut conditions, finding, Timestamp::now());
    if conditions != before && warns {
        context.events.tell(object, Kind::Warning, reason, &message).await;
    }
    conditions.retain(|each| each.type_ == condition.label());
    conditions
}
