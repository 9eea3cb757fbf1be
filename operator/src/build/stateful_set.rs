//! The StatefulSet of a proxy.

use k8s_openapi::{
    api::{
        apps::v1::{StatefulSet, StatefulSetSpec},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};

use super::{
    overlay, pod,
    proxy::{Duty, Proxy},
};
use crate::{
    annotation::Carries,
    label::{self, Labels},
};

pub(super) fn stateful_set(proxy: &Proxy) -> StatefulSet {
    let mut labels = proxy.parent.child_labels();
    labels.extend(proxy.pod_selector());
    let mut set = StatefulSet {
        metadata: proxy.metadata(&proxy.base),
        spec: Some(StatefulSetSpec {
            replicas: i32::try_from(proxy.nodes.len()).ok(),
            service_name: Some(proxy.base.clone()),
            selector: LabelSelector {
                match_labels: Some(proxy.pod_selector()),
                ..LabelSelector::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels),
                    annotations: restart_on(&proxy.duty),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod::pod(proxy)),
            },
            ..StatefulSetSpec::default()
        }),
        ..StatefulSet::default()
    };
    if let Some(class) = &proxy.class {
        overlay::apply(&mut set, class, proxy.duty.applies());
    }
    set
}

/// What is in the environment of pods and may change is in an annotation too, where a person sees why they restart.
fn restart_on(duty: &Duty) -> Option<Labels> {
    let Duty::Carry(carries) = duty else { return None };
    let (key, value) = match carries {
        Carries::ClusterIp(address) => (label::LAST_CLUSTER_IP, address.to_string()),
        Carries::ClusterName(name) => (label::LAST_CLUSTER_DNS_NAME, name.clone()),
        Carries::TailnetIp(address) => (label::LAST_TAILNET_IP, address.to_string()),
        Carries::TailnetName(name) => (label::LAST_TAILNET_FQDN, name.clone()),
    };
    Some(Labels::from([(key.to_owned(), value)]))
}
