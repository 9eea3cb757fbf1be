//! The objects that are asked for.

use serde::Serialize;
use serde_json::{Value, json};

/// Where users' objects are.
pub const NAMESPACE: &str = "shop";
/// The ProxyGroup of the egress Services.
pub const GROUP: &str = "egress";
/// Its replicas.
pub const REPLICAS: usize = 2;

/// How many objects of each kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Load {
    /// Services of a load balancer class, each with a proxy of its own.
    pub services: usize,
    /// Services that lead to addresses of the tailnet, all by one ProxyGroup.
    pub egress: usize,
    /// Ingresses, each with a proxy of its own.
    pub ingresses: usize,
    /// Subnet routers.
    pub connectors: usize,
}

impl Load {
    /// Every object, in an order in which each finds what it names.
    pub fn manifests(&self) -> Vec<Value> {
        let mut all = vec![backend()];
        if self.egress > 0 {
            all.push(json!({
                "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup",
                "metadata": { "name": GROUP }, "spec": { "type": "egress", "replicas": REPLICAS },
            }));
        }
        all.extend((0..self.services).map(exposed));
        all.extend((0..self.egress).map(egress));
        all.extend((0..self.ingresses).map(ingress));
        all.extend((0..self.connectors).map(connector));
        all
    }
}

fn metadata(kind: &str, number: usize) -> Value {
    json!({ "name": format!("{kind}-{number}"), "namespace": NAMESPACE })
}

fn backend() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "backend", "namespace": NAMESPACE },
        "spec": { "selector": { "app": "backend" }, "ports": [{ "name": "http", "port": 80 }] },
    })
}

fn exposed(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata("web", number),
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "tailscale",
            "allocateLoadBalancerNodePorts": false,
            "selector": { "app": "web" }, "ports": [{ "name": "http", "port": 80 }],
        },
    })
}

fn egress(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": format!("out-{number}"), "namespace": NAMESPACE, "annotations": {
            "tailscale.com/proxy-group": GROUP,
            "tailscale.com/tailnet-ip": format!("100.101.{}.{}", number / 250, number % 250 + 1),
        } },
        "spec": {
            "type": "ExternalName", "externalName": "placeholder",
            "ports": [{ "name": "db", "port": 5432, "protocol": "TCP" }],
        },
    })
}

fn ingress(number: usize) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata("site", number),
        "spec": {
            "ingressClassName": "tailscale",
            "defaultBackend": { "service": { "name": "backend", "port": { "number": 80 } } },
            "tls": [{ "hosts": [format!("site-{number}")] }],
        },
    })
}

fn connector(number: usize) -> Value {
    json!({
        "apiVersion": "tailscale.com/v1alpha1", "kind": "Connector",
        "metadata": { "name": format!("router-{number}") },
        "spec": { "subnetRouter": { "advertiseRoutes": [format!("10.{number}.0.0/16")] } },
    })
}
