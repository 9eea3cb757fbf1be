//! What users are told about an Ingress: its names and ports, and Events; an Ingress has no conditions.

use std::fmt::Display;

use k8s_openapi::api::{core::v1::Secret, networking::v1::Ingress};
use serde_json::json;

use super::api;
use crate::{
    apply::Applier,
    context::{Context, Kind},
    controller::standalone::https_name,
    error::Error,
};

/// How it is with an Ingress.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(in crate::controller) struct Outcome {
    /// Its name, once it is served.
    pub(in crate::controller) name: Option<String>,
    /// The ports that are served there.
    pub(in crate::controller) ports: Vec<u16>,
    /// What is to be told.
    pub(in crate::controller) notices: Vec<Notice>,
}

/// Something to tell in an Event.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::controller) struct Notice {
    kind: Kind,
    reason: &'static str,
    note: String,
}

impl Notice {
    pub(in crate::controller) fn warning(reason: &'static str, note: impl Into<String>) -> Self {
        Self { kind: Kind::Warning, reason, note: note.into() }
    }

    pub(in crate::controller) fn normal(reason: &'static str, note: impl Into<String>) -> Self {
        Self { kind: Kind::Normal, reason, note: note.into() }
    }
}

impl Outcome {
    pub(in crate::controller) fn refused(reason: &'static str, why: &impl Display) -> Self {
        Self { notices: vec![Notice::warning(reason, why.to_string())], ..Self::default() }
    }
}

/// What a proxy that is made tells of itself in its Secret.
pub(in crate::controller) fn served(
    secret: Option<&Secret>,
    redirect: bool,
    mut notices: Vec<Notice>,
) -> Outcome {
    let name = match secret.and_then(https_name) {
        Some(Ok(name)) => Some(name),
        Some(Err(_)) => {
            let told = "the tailnet gives its nodes no certificates: enable HTTPS in its settings";
            notices.push(Notice::warning("HTTPSNotEnabled", told));
            None
        }
        None => None,
    };
    let ports = if redirect { vec![443, 80] } else { vec![443] };
    Outcome { name, ports, notices }
}

/// Tells it, if that is news.
pub(in crate::controller) async fn tell(
    ingress: &Ingress,
    context: &Context,
    outcome: &Outcome,
) -> Result<(), Error> {
    let notices =
        outcome.notices.iter().map(|notice| (notice.kind, notice.reason, notice.note.as_str()));
    context.events.tell_news(ingress, notices.collect()).await;
    let ports = outcome.ports.iter().map(|port| json!({ "port": port, "protocol": "TCP" }));
    let ports: Vec<_> = ports.collect();
    let status = match &outcome.name {
        Some(name) => {
            json!({ "loadBalancer": { "ingress": [{ "hostname": name, "ports": ports }] } })
        }
        None => json!({}),
    };
    let desired = json!({ "status": status });
    Applier::apply_status(&api(context, ingress), ingress, &desired).await.map(drop)
}
