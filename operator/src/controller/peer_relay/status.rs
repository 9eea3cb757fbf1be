//! What users are told about a PeerRelay.

use serde_json::json;

use super::api;
use crate::{
    apply::Applier,
    context::Context,
    controller::told::{Told, conditions},
    crd::{PeerRelay, peer_relay::RelayEndpoint},
    error::Error,
    status::ConditionType,
};

/// How it is with a PeerRelay.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// Fewer Elastic IPs than replicas: what to do.
    BadAddresses(String),
    /// Its tailnet is not to be had.
    TailnetUnavailable(String),
    /// What failed, or is waited for.
    Failed(String),
    /// It is made.
    Made {
        /// Where the relays are reached.
        endpoints: Vec<RelayEndpoint>,
        /// How many relays have an address.
        reachable: usize,
        /// How many pods are ready.
        running: usize,
        /// How many are wanted.
        replicas: usize,
        /// Whether every relay has an address.
        ready: bool,
        /// Whether addresses come from names.
        named: bool,
    },
}

/// Tells it, if that is news.
pub(super) async fn tell(
    relay: &PeerRelay,
    context: &Context,
    outcome: &Outcome,
) -> Result<(), Error> {
    let (holds, reason, message) = match outcome {
        Outcome::BadAddresses(why) => (false, "AWSConfigInvalid", why.clone()),
        Outcome::TailnetUnavailable(why) => (false, "TailnetUnavailable", why.clone()),
        // Upstream has no other reason for relays that are not made yet.
        Outcome::Failed(why) => (false, "PodsPending", why.clone()),
        Outcome::Made { reachable, replicas, .. } if reachable < replicas => {
            let told = format!(
                "{reachable} of {replicas} relays have an address: the cluster's load balancer gives each Service one"
            );
            (false, "EndpointsPending", told)
        }
        Outcome::Made { running, replicas, .. } if running < replicas => {
            (false, "PodsPending", format!("{running} of {replicas} pods are ready"))
        }
        Outcome::Made { .. } => (true, "PeerRelayReady", "PeerRelayReady".to_owned()),
    };
    let told = Told {
        condition: ConditionType::PeerRelayReady,
        holds,
        reason,
        message,
        warns: !matches!(outcome, Outcome::Made { .. }),
    };
    let before = relay.status.as_ref();
    let conditions =
        conditions(relay, context, before.map_or(&[], |status| &status.conditions), told).await;
    let endpoints = match outcome {
        Outcome::Made { endpoints, .. } => endpoints.clone(),
        // What was made before is as it was.
        _ => before.map(|status| status.endpoints.clone()).unwrap_or_default(),
    };
    let mut status = json!({ "conditions": conditions });
    if let Some(fields) = status.as_object_mut().filter(|_| !endpoints.is_empty()) {
        fields.insert("endpoints".into(), json!(endpoints));
    }
    Applier::apply_status(&api(context), relay, &json!({ "status": status })).await.map(drop)
}
