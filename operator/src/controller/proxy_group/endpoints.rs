//! Fixed addresses of a ProxyGroup's replicas: a node port for each, and nodes whose external addresses it is reached at.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::api::core::v1::{Node, Service};
use kube::ResourceExt as _;

use super::existing::Existing;
use crate::{
    build::group::{Replica, node_port_name, tailscaled_port},
    context::{Context, labelled},
    crd::proxy_class::{NodePort, PortRange},
    label::{self, Parent, ParentKind},
};

/// How many addresses a replica is told that it has.
const ADDRESSES: usize = 2;

/// Gives each replica its addresses and returns the UDP port of the tailscaleds; says why that cannot be done.
pub(super) fn assign(
    context: &Context,
    parent: &Parent,
    existing: &Existing,
    wanted: &NodePort,
    replicas: &mut [Replica],
) -> Result<u16, String> {
    let of_groups = [(label::PARENT_KIND, ParentKind::ProxyGroup.label())];
    let services = labelled(&context.cache.services, &label::labels(of_groups));
    let taken = services.iter().filter_map(|service| ports(service)).map(|(_, port)| port);
    let mut taken: BTreeSet<u16> = taken.collect();
    let nodes = context.cache.nodes.state();
    let mut nodes: Vec<&Node> = nodes.iter().map(AsRef::as_ref).collect();
    nodes.retain(|node| label::has(node.metadata.labels.as_ref(), &wanted.selector));
    nodes.sort_by_key(|node| node.name_any());
    let addresses: Vec<IpAddr> = nodes.into_iter().flat_map(external).collect();
    if addresses.is_empty() && !replicas.is_empty() {
        return Err(
            "no node that spec.staticEndpoints.nodePort.selector of the ProxyClass selects has an ExternalIP: \
             change the selector, or have nodes with external addresses"
                .into(),
        );
    }
    let own: BTreeMap<_, _> =
        existing.services.iter().filter_map(|(name, one)| Some((name, ports(one)?))).collect();
    // All have the same; it is in their environment, and a change would restart them.
    let port = own.values().next_back().map(|(port, _)| *port);
    let wanted_number = replicas.len();
    for (ordinal, replica) in replicas.iter_mut().enumerate() {
        let kept = own.get(&node_port_name(&parent.name, ordinal)).map(|(_, port)| *port);
        let kept = kept.filter(|port| wanted.ports.iter().any(|range| span(range).contains(port)));
        let free = || wanted.ports.iter().flat_map(span).find(|port| !taken.contains(port));
        let node_port = kept.or_else(free).ok_or_else(|| {
            format!(
                "spec.staticEndpoints.nodePort.ports of the ProxyClass has no port left for replica {ordinal} of \
                 {wanted_number}: add ports"
            )
        })?;
        taken.insert(node_port);
        replica.node_port = Some(node_port);
        replica.endpoints = reached_at(&addresses, node_port, &replica.endpoints);
    }
    Ok(port.unwrap_or_else(|| tailscaled_port(&parent.uid)))
}

/// What it was told before stays first, in its order.
fn reached_at(addresses: &[IpAddr], port: u16, before: &[SocketAddr]) -> Vec<SocketAddr> {
    let now: Vec<_> = addresses.iter().map(|address| SocketAddr::new(*address, port)).collect();
    let mut all: Vec<_> = before.iter().filter(|one| now.contains(one)).copied().collect();
    all.extend(now.into_iter().filter(|one| !before.contains(one)));
    all.truncate(ADDRESSES);
    all
}

fn external(node: &Node) -> Vec<IpAddr> {
    let all = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let external = all.into_iter().flatten().filter(|address| address.type_ == "ExternalIP");
    external.filter_map(|address| address.address.parse().ok()).collect()
}

/// The port of the tailscaleds and the node port.
fn ports(service: &Service) -> Option<(u16, u16)> {
    let port = service.spec.as_ref()?.ports.as_ref()?.first()?;
    Some((port.port.try_into().ok()?, port.node_port?.try_into().ok()?))
}

/// The class was found good: its ports are ports.
fn span(range: &PortRange) -> std::ops::RangeInclusive<u16> {
    let port = |number: i64| u16::try_from(number).unwrap_or_default();
    let last = range.end_port.filter(|end| *end != 0).unwrap_or(range.port);
    port(range.port)..=port(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_a_replica_has_stay_in_their_order() {
        let addresses: Vec<IpAddr> =
            ["203.0.113.1", "203.0.113.2", "203.0.113.3"].map(|one| one.parse().unwrap()).into();
        let at = |all: &[&str]| -> Vec<SocketAddr> {
            all.iter().map(|one| one.parse().unwrap()).collect()
        };
        let first = reached_at(&addresses, 30000, &[]);
        assert_eq!(first, at(&["203.0.113.1:30000", "203.0.113.2:30000"]));
        let turned = at(&["203.0.113.3:30000", "203.0.113.1:30000"]);
        assert_eq!(reached_at(&addresses, 30000, &turned), turned);
        assert_eq!(
            reached_at(&addresses[1..], 30000, &turned),
            at(&["203.0.113.3:30000", "203.0.113.2:30000"])
        );
        assert_eq!(reached_at(&addresses[..1], 30001, &turned), at(&["203.0.113.1:30001"]));
    }
}
