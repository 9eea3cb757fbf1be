//! An ingress ProxyGroup, as those see it that it serves.

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::Secret;
use kube::runtime::reflector::ObjectRef;

use crate::{
    context::{Context, labelled},
    controller::standalone::device_info,
    crd::proxy_group::ProxyGroupType,
    label::{self, ParentKind},
    status::{ConditionType, holds},
    tailnet_api::ServiceName,
    tailnet_state,
};

/// One that works.
pub(in crate::controller) struct Group {
    /// Its name, which is its `ServiceAccount`'s too.
    pub(in crate::controller) name: String,
    /// Its Tailnet; empty for the operator's own.
    pub(in crate::controller) tailnet: String,
    /// The state Secrets of its replicas.
    pub(in crate::controller) states: Vec<Arc<Secret>>,
    /// The Secrets with their configurations.
    pub(in crate::controller) configs: Vec<Arc<Secret>>,
}

/// Why a ProxyGroup serves nobody now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::controller) enum Refusal {
    /// It is not there.
    Missing(String),
    /// It is being deleted.
    Ending(String),
    /// It is for something else.
    OtherType(String, &'static str),
    /// None of its proxies works.
    NotReady(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(
                f,
                "ProxyGroup `{name}` does not exist: create it, or correct annotation `{}`",
                label::PROXY_GROUP
            ),
            Self::Ending(name) => write!(
                f,
                "ProxyGroup `{name}` is being deleted: name another one in annotation `{}`",
                label::PROXY_GROUP
            ),
            Self::OtherType(name, kind) => write!(
                f,
                "ProxyGroup `{name}` is of type {kind}: name one of type ingress in annotation `{}`",
                label::PROXY_GROUP
            ),
            Self::NotReady(name) => write!(
                f,
                "no proxy of ProxyGroup `{name}` works yet: its condition ProxyGroupAvailable says why"
            ),
        }
    }
}

impl Group {
    /// The ingress ProxyGroup of that name, if it works.
    pub(in crate::controller) fn find(context: &Context, name: &str) -> Result<Self, Refusal> {
        let owned = || name.to_owned();
        let found = context.cache.groups.get(&ObjectRef::new(name));
        let group = found.ok_or_else(|| Refusal::Missing(owned()))?;
        if group.metadata.deletion_timestamp.is_some() {
            return Err(Refusal::Ending(owned()));
        }
        if group.spec.type_ != ProxyGroupType::Ingress {
            return Err(Refusal::OtherType(owned(), group.spec.type_.label()));
        }
        let conditions = group.status.as_ref().map_or(&[][..], |status| &status.conditions);
        if !holds(conditions, ConditionType::ProxyGroupAvailable, None) {
            return Err(Refusal::NotReady(owned()));
        }
        Ok(Self {
            name: owned(),
            tailnet: group.spec.tailnet.clone().unwrap_or_default(),
            states: secrets(context, name, label::SECRET_STATE),
            configs: secrets(context, name, label::SECRET_CONFIG),
        })
    }

    /// The domain of its tailnet, once one of its devices has a name there.
    pub(in crate::controller) fn domain(&self) -> Option<String> {
        domain(&self.states)
    }

    /// How many of its replicas offer a Tailscale Service.
    pub(in crate::controller) fn offering(&self, service: &ServiceName) -> usize {
        self.states.iter().filter(|state| tailnet_state::offers(state, service)).count()
    }
}

/// The domain of the tailnet that devices with these state Secrets are in.
pub(in crate::controller) fn domain(states: &[Arc<Secret>]) -> Option<String> {
    states.iter().find_map(|state| {
        let told = device_info(state).and_then(|device| device.fqdn);
        let name = told.or_else(|| tailnet_state::profile(state)?.name)?;
        name.split_once('.').map(|(_, domain)| domain.to_owned()).filter(|name| !name.is_empty())
    })
}

/// The Secrets of a ProxyGroup's replicas, by name.
pub(in crate::controller) fn secrets(
    context: &Context,
    group: &str,
    kind: &str,
) -> Vec<Arc<Secret>> {
    let labels = label::labels([
        (label::MANAGED, "true"),
        (label::PARENT_KIND, ParentKind::ProxyGroup.label()),
        (label::PARENT_NAME, group),
        (label::SECRET_TYPE, kind),
    ]);
    labelled(&context.cache.secrets, &labels)
}
