//! Fixed addresses: a node port for each replica, where peers reach its tailscaled.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use ring::digest::{SHA256, digest};

use super::Group;
use crate::build::secret_name;

const PORT_NAME: &str = "static-endpoint-port";
/// What StatefulSets label their pods with.
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";

/// The Service of a replica.
pub fn node_port_name(group: &str, ordinal: usize) -> String {
    format!("{}-nodeport", secret_name(group, ordinal))
}

/// A UDP port for a group's tailscaleds that has none yet: nobody's well-known port, and the same whoever asks.
pub fn tailscaled_port(uid: &str) -> u16 {
    const FIRST: u16 = 1024;
    let hash = digest(&SHA256, uid.as_bytes());
    let number =
        hash.as_ref().iter().take(2).fold(0, |number, byte| number << 8 | u16::from(*byte));
    // What the pod itself serves is TCP, and still: no number of ours twice.
    let port = FIRST + number % (u16::MAX - FIRST);
    if (9001..=9003).contains(&port) { port + 3 } else { port }
}

pub(super) fn services(group: &Group) -> Vec<Service> {
    let Some(port) = group.port else { return Vec::new() };
    let service = |(ordinal, node_port): (usize, u16)| {
        let name = &group.parent.name;
        let pod = secret_name(name, ordinal);
        Service {
            metadata: group.metadata(&node_port_name(name, ordinal)),
            spec: Some(ServiceSpec {
                type_: Some("NodePort".into()),
                selector: Some(BTreeMap::from([(POD_NAME.to_owned(), pod)])),
                ports: Some(vec![ServicePort {
                    name: Some(PORT_NAME.into()),
                    port: i32::from(port),
                    target_port: Some(IntOrString::Int(i32::from(port))),
                    node_port: Some(i32::from(node_port)),
                    protocol: Some("UDP".into()),
                    ..ServicePort::default()
                }]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    };
    let replicas = group.replicas.iter().enumerate();
    replicas.filter_map(|(ordinal, replica)| Some(service((ordinal, replica.node_port?)))).collect()
}
