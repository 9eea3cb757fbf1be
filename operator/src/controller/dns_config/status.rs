//! What users are told about a DNSConfig.

use kube::Api;
use serde_json::{Value, json};

use crate::{
    apply::Applier,
    context::Context,
    controller::told::{Told, conditions},
    crd::DnsConfig,
    error::Error,
    status::ConditionType,
};

/// How it is with a DNSConfig.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// The nameserver is that of another one, which is older.
    NotTheOne(String),
    /// It is tried again: what failed.
    Failed(String),
    /// It is made.
    Created {
        /// Where it is reached.
        address: Option<String>,
        /// Where it was to be reached.
        asked: Option<String>,
    },
}

impl Outcome {
    fn condition(&self) -> (bool, &'static str, String) {
        match self {
            Self::NotTheOne(other) => {
                let told = format!(
                    "the nameserver is that of DNSConfig `{other}`, which is older: there can be one, delete the other"
                );
                (false, "MultipleDNSConfigsPresent", told)
            }
            Self::Failed(why) => (false, "NameserverCreationFailed", why.clone()),
            Self::Created { address: Some(address), asked: Some(asked) } if address != asked => {
                let told = format!(
                    "spec.nameserver.service.clusterIP: a Service keeps its address, which is {address}: delete the Service to have {asked}"
                );
                (true, "NameserverCreated", told)
            }
            Self::Created { .. } => (true, "NameserverCreated", "NameserverCreated".to_owned()),
        }
    }
}

/// Tells it, if that is news.
pub(super) async fn tell(
    config: &DnsConfig,
    context: &Context,
    outcome: &Outcome,
) -> Result<(), Error> {
    let (holds, reason, message) = outcome.condition();
    let told =
        Told { condition: ConditionType::NameserverReady, holds, reason, message, warns: !holds };
    let before = config.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let conditions = conditions(config, context, before, told).await;
    let nameserver = match outcome {
        Outcome::Created { address, .. } => address.as_ref().map(|ip| json!({ "ip": ip })),
        // What was made before is as it was.
        Outcome::Failed(_) => config
            .status
            .as_ref()
            .and_then(|status| serde_json::to_value(status.nameserver.as_ref()?).ok()),
        Outcome::NotTheOne(_) => None,
    };
    let mut status = json!({ "conditions": conditions });
    if let (Some(fields), Some(nameserver)) = (status.as_object_mut(), nameserver) {
        fields.insert("nameserver".into(), nameserver);
    }
    let desired: Value = json!({ "status": status });
    let api: Api<DnsConfig> = Api::all(context.client.clone());
    Applier::apply_status(&api, config, &desired).await.map(drop)
}
