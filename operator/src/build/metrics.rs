//! How the metrics of a proxy are found.

use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use kube::{api::DynamicObject, core::GroupVersionKind, discovery::ApiResource};
use serde_json::json;

use super::{
    overlay::METRICS_PORT,
    proxy::{Proxy, ProxyType},
};
use crate::{
    crd::proxy_class::Metrics,
    label::{self, Labels, Parent, ParentKind},
    name,
};

/// What Prometheus' operator calls its monitors of Services.
pub fn monitor_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("monitoring.coreos.com", "v1", "ServiceMonitor"))
}

/// Proxies whose metrics are wanted.
pub(super) struct Measured<'a> {
    /// What they were made for.
    pub(super) parent: &'a Parent,
    /// What metrics call them.
    pub(super) kind: ProxyType,
    /// The name of their StatefulSet.
    pub(super) base: &'a str,
    /// Where they are.
    pub(super) namespace: &'a str,
    /// What is wanted.
    pub(super) wanted: &'a Metrics,
}

impl<'a> Measured<'a> {
    /// `None` if the metrics are not wanted, or cannot be read at all.
    pub(super) fn of(proxy: &'a Proxy) -> Option<Self> {
        if proxy.duty.takes_pod_address() {
            return None;
        }
        let wanted = proxy.class.as_ref()?.metrics.as_ref().filter(|metrics| metrics.enable)?;
        Some(Self {
            parent: &proxy.parent,
            kind: proxy.duty.proxy_type(),
            base: &proxy.base,
            namespace: &proxy.namespace,
            wanted,
        })
    }

    /// The Service's and the monitor's.
    fn name(&self) -> String {
        format!("{}-metrics", self.base)
    }

    pub(super) fn service(&self) -> Service {
        Service {
            metadata: ObjectMeta {
                name: Some(self.name()),
                namespace: Some(self.namespace.to_owned()),
                labels: Some(self.labels()),
                ..ObjectMeta::default()
            },
            spec: Some(ServiceSpec {
                type_: Some("ClusterIP".into()),
                selector: Some(self.parent.child_labels()),
                ports: Some(vec![ServicePort {
                    name: Some("metrics".into()),
                    port: METRICS_PORT,
                    target_port: Some(IntOrString::Int(METRICS_PORT)),
                    protocol: Some("TCP".into()),
                    ..ServicePort::default()
                }]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    }

    pub(super) fn monitor(&self) -> Option<DynamicObject> {
        let wanted = self.wanted.service_monitor.as_ref().filter(|monitor| monitor.enable)?;
        let own = self.labels();
        // Where both say something, the Service's labels: the selector needs them.
        let mut all = wanted.labels.clone();
        all.extend(own.clone());
        let resource = monitor_resource();
        let mut object = DynamicObject::new(&self.name(), &resource).within(self.namespace);
        object.metadata.labels = Some(all);
        object.data = json!({ "spec": {
            "selector": { "matchLabels": own },
            "endpoints": [{ "port": "metrics" }],
            "namespaceSelector": { "matchNames": [self.namespace] },
            "jobLabel": label::METRICS_JOB,
            "targetLabels": [
                label::METRICS_PARENT_NAME, label::METRICS_PARENT_NAMESPACE, label::METRICS_PROXY_TYPE,
            ],
        } });
        Some(object)
    }

    fn labels(&self) -> Labels {
        let Self { kind, parent, .. } = self;
        let job = if kind.has_namespace() {
            format!("ts_{}_{}_{}", kind.label(), parent.namespace, parent.name)
        } else {
            format!("ts_{}_{}", kind.label(), parent.name)
        };
        let mut all = whose(*kind, parent);
        all.insert(label::METRICS_TARGET.into(), self.base.to_owned());
        all.insert(label::METRICS_JOB.into(), name::label_value(&job));
        all
    }
}

/// The labels by which all metrics Services of a parent are found, whatever its proxy carried when they were made.
pub fn selector(parent: &Parent) -> Option<Labels> {
    let kind = match parent.kind {
        // An egress proxy has none.
        ParentKind::Service => ProxyType::Ingress,
        ParentKind::Ingress => ProxyType::IngressResource,
        ParentKind::Connector => ProxyType::Connector,
        ParentKind::ProxyGroup => ProxyType::ProxyGroup,
        ParentKind::Recorder | ParentKind::PeerRelay => return None,
    };
    Some(whose(kind, parent))
}

fn whose(kind: ProxyType, parent: &Parent) -> Labels {
    let mut all = label::labels([
        (label::MANAGED, "true"),
        (label::METRICS_PROXY_TYPE, kind.label()),
        (label::METRICS_PARENT_NAME, &name::label_value(&parent.name)),
    ]);
    if kind.has_namespace() {
        let namespace = name::label_value(&parent.namespace);
        all.insert(label::METRICS_PARENT_NAMESPACE.into(), namespace);
    }
    all
}
