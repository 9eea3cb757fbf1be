//! What is kept of objects of which a cluster has many: no more than others depend on.

use k8s_openapi::{
    api::{
        core::v1::{Node, NodeStatus, Service},
        discovery::v1::EndpointSlice,
        networking::v1::Ingress,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// The label with the name of the Service that endpoints are of.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Keys of annotations that are read.
const READ: [&str; 2] = ["tailscale.com/", "sluice.dev/"];

/// Its labels and addresses: nodes are large, and tell much that changes often.
pub(super) fn node(node: &mut Node) {
    node.metadata.managed_fields = None;
    node.metadata.annotations = None;
    node.spec = None;
    if let Some(status) = &mut node.status {
        let addresses = status.addresses.take();
        *status = NodeStatus { addresses, ..NodeStatus::default() };
    }
}

/// Its addresses, its ports, and what it asks for.
pub(super) fn service(service: &mut Service) {
    metadata(&mut service.metadata);
    service.metadata.labels = None;
    service.status = None;
    if let Some(spec) = &mut service.spec {
        let all = std::mem::take(spec);
        spec.type_ = all.type_;
        spec.cluster_ip = all.cluster_ip;
        spec.cluster_ips = all.cluster_ips;
        spec.external_name = all.external_name;
        spec.load_balancer_class = all.load_balancer_class;
        spec.ports = all.ports;
    }
}

/// What it asks for, but for its rules.
pub(super) fn ingress(ingress: &mut Ingress) {
    metadata(&mut ingress.metadata);
    ingress.metadata.labels = None;
    ingress.status = None;
    if let Some(spec) = &mut ingress.spec {
        spec.rules = None;
        spec.default_backend = None;
    }
}

/// Of each slice one endpoint that is ready, if there is one.
pub(super) fn endpoints(slice: &mut EndpointSlice) {
    metadata(&mut slice.metadata);
    if let Some(labels) = &mut slice.metadata.labels {
        labels.retain(|key, _| key == SERVICE_NAME);
    }
    slice.ports = None;
    let all = std::mem::take(&mut slice.endpoints);
    // Not known counts as ready, as everywhere in Kubernetes.
    let ready = all.into_iter().find(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
    });
    slice.endpoints.extend(ready.map(|mut endpoint| {
        endpoint.addresses.truncate(1);
        endpoint.target_ref = None;
        endpoint.hints = None;
        endpoint
    }));
}

fn metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.owner_references = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| READ.iter().any(|start| key.starts_with(start)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::endpoints;

    #[test]
    fn of_endpoints_one_that_is_ready_is_kept() {
        let slice = |ready: &[Option<bool>]| {
            let all = ready.iter().map(|ready| {
                json!({ "addresses": ["10.0.0.1", "10.0.0.2"], "conditions": { "ready": ready } })
            });
            let mut slice = serde_json::from_value(json!({
                "metadata": { "labels": { "kubernetes.io/service-name": "web", "app": "web" } },
                "addressType": "IPv4", "endpoints": all.collect::<Vec<_>>(),
            }))
            .unwrap();
            endpoints(&mut slice);
            assert_eq!(slice.metadata.labels.map(|labels| labels.len()), Some(1));
            slice.endpoints.len()
        };
        assert_eq!(slice(&[]), 0);
        assert_eq!(slice(&[Some(false), Some(false)]), 0);
        assert_eq!(slice(&[Some(false), Some(true), Some(true)]), 1);
        assert_eq!(slice(&[None]), 1);
    }
}
