//! What was made for an object, as it stands on the object.

use std::fmt::Debug;

use kube::{Api, Resource, ResourceExt as _, runtime::reflector::ObjectRef};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    annotation::GroupRequest,
    apply::mark_object,
    context::Context,
    error::{Error, ResultExt as _},
    label,
    tailnet_api::ServiceName,
};

/// Which Tailscale Service was made, and where.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(in crate::controller) struct Record {
    /// The ProxyGroup that offers it.
    #[serde(rename = "proxyGroup")]
    pub(in crate::controller) group: String,
    /// The Tailnet that it is in; empty for the operator's own.
    #[serde(default)]
    pub(in crate::controller) tailnet: String,
    /// Its name.
    #[serde(rename = "tailscaleService", with = "name")]
    pub(in crate::controller) service: ServiceName,
}

impl Record {
    /// What is to be made.
    pub(in crate::controller) fn of(context: &Context, asks: &GroupRequest) -> Self {
        let group = context.cache.groups.get(&ObjectRef::new(&asks.group));
        Self {
            group: asks.group.clone(),
            tailnet: group.and_then(|group| group.spec.tailnet.clone()).unwrap_or_default(),
            service: asks.service.clone(),
        }
    }
}

mod name {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use crate::tailnet_api::ServiceName;

    pub(super) fn serialize<S: Serializer>(name: &ServiceName, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(name.as_str())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<ServiceName, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// What was made for an object.
pub(in crate::controller) fn record(object: &impl Resource) -> Option<Record> {
    serde_json::from_str(object.annotations().get(label::PROVISIONED)?).ok()
}

/// Records it, with the finalizer that keeps the object until it is undone; or that it is undone.
pub(in crate::controller) async fn mark<K>(
    api: &Api<K>,
    object: &K,
    finalizer: &str,
    record: Option<&Record>,
) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let what = || format!("record what was made for {}", object.name_any());
    let text = record.map(serde_json::to_string).transpose().doing(what)?;
    mark_object(api, object, finalizer, record.is_some(), Some((label::PROVISIONED, text))).await
}
