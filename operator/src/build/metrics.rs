//! How the metrics of a proxy are found.

use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
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

/// The Service's and the monitor's.
pub(super) fn name(proxy: &Proxy) -> String {
    format!("{}-metrics", proxy.base)
}

pub(super) fn service(proxy: &Proxy) -> Option<Service> {
    wanted(proxy)?;
    let mut metadata = proxy.metadata(&name(proxy));
    metadata.labels = Some(labels(proxy));
    Some(Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".into()),
            selector: Some(proxy.parent.child_labels()),
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
    })
}

pub(super) fn monitor(proxy: &Proxy) -> Option<DynamicObject> {
    let wanted = wanted(proxy)?.service_monitor.as_ref().filter(|monitor| monitor.enable)?;
    let own = labels(proxy);
    // Where both say something, the Service's labels: the selector needs them.
    let mut all = wanted.labels.clone();
    all.extend(own.clone());
    let mut object = DynamicObject::new(&name(proxy), &monitor_resource()).within(&proxy.namespace);
    object.metadata.labels = Some(all);
    object.data = json!({ "spec": {
        "selector": { "matchLabels": own },
        "endpoints": [{ "port": "metrics" }],
        "namespaceSelector": { "matchNames": [proxy.namespace] },
        "jobLabel": label::METRICS_JOB,
        "targetLabels": [
            label::METRICS_PARENT_NAME, label::METRICS_PARENT_NAMESPACE, label::METRICS_PROXY_TYPE,
        ],
    } });
    Some(object)
}

/// What is wanted of the metrics, if they can be read at all.
fn wanted(proxy: &Proxy) -> Option<&Metrics> {
    if proxy.duty.takes_pod_address() {
        return None;
    }
    proxy.class.as_ref()?.metrics.as_ref().filter(|metrics| metrics.enable)
}

fn labels(proxy: &Proxy) -> Labels {
    let kind = proxy.duty.proxy_type();
    let parent = &proxy.parent;
    let job = if kind.has_namespace() {
        format!("ts_{}_{}_{}", kind.label(), parent.namespace, parent.name)
    } else {
        format!("ts_{}_{}", kind.label(), parent.name)
    };
    let mut all = whose(kind, parent);
    all.insert(label::METRICS_TARGET.into(), proxy.base.clone());
    all.insert(label::METRICS_JOB.into(), name::label_value(&job));
    all
}

/// The labels by which all metrics Services of a parent are found, whatever its proxy carried when they were made.
pub fn selector(parent: &Parent) -> Labels {
    let kind = match parent.kind {
        // An egress proxy has none.
        ParentKind::Service => ProxyType::Ingress,
        ParentKind::Ingress => ProxyType::IngressResource,
        ParentKind::Connector => ProxyType::Connector,
    };
    whose(kind, parent)
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
