//! Where a relay is reached from outside.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use k8s_openapi::api::core::v1::Service;
use tokio::{net::lookup_host, time::timeout};

use crate::build::peer_relay::PORT;

/// A resolver that takes longer has no answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The addresses of a relay.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Reached {
    pub(super) addresses: Vec<IpAddr>,
    /// Whether they come from a name, which may lead elsewhere at any time.
    pub(super) named: bool,
}

/// Those that its load balancer has, or else those that its name has. While the name has none, `before` counts.
pub(super) async fn reached(service: Option<&Service>, before: &[IpAddr]) -> Reached {
    let status = service.and_then(|service| service.status.as_ref()?.load_balancer.as_ref());
    let all = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    let addresses: BTreeSet<IpAddr> =
        all.iter().filter_map(|one| one.ip.as_ref()?.parse().ok()).collect();
    if !addresses.is_empty() {
        return Reached { addresses: addresses.into_iter().collect(), named: false };
    }
    let names = all.iter().filter_map(|one| one.hostname.as_deref());
    let names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
    for name in &names {
        let found = match timeout(PATIENCE, lookup_host((*name, PORT))).await {
            Ok(Ok(found)) => found.filter(SocketAddr::is_ipv4).map(|one| one.ip()).collect(),
            Ok(Err(_)) | Err(_) => BTreeSet::new(),
        };
        if !found.is_empty() {
            return Reached { addresses: found.into_iter().collect(), named: true };
        }
        tracing::warn!(name, "the name of a load balancer leads nowhere");
    }
    let kept = if names.is_empty() { Vec::new() } else { before.to_vec() };
    Reached { addresses: kept, named: !names.is_empty() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    async fn of(ingress: Value, before: &[IpAddr]) -> Reached {
        let status = json!({ "loadBalancer": { "ingress": ingress } });
        let service: Service = serde_json::from_value(json!({ "status": status })).unwrap();
        reached(Some(&service), before).await
    }

    #[tokio::test]
    async fn addresses_come_before_names_and_a_name_without_any_changes_nothing() {
        let v4 = |last| IpAddr::from([192, 0, 2, last]);
        let both =
            json!([{ "ip": "192.0.2.2" }, { "ip": "192.0.2.1" }, { "hostname": "localhost" }]);
        let wanted = Reached { addresses: vec![v4(1), v4(2)], named: false };
        assert_eq!(of(both, &[v4(9)]).await, wanted);
        let local = of(json!([{ "hostname": "localhost" }]), &[]).await;
        assert_eq!((local.addresses, local.named), (vec![IpAddr::from([127, 0, 0, 1])], true));
        let nowhere = of(json!([{ "hostname": "nowhere.invalid" }]), &[v4(9)]).await;
        assert_eq!(nowhere, Reached { addresses: vec![v4(9)], named: true });
        assert_eq!(of(json!([]), &[v4(9)]).await, Reached::default());
        assert_eq!(reached(None, &[v4(9)]).await, Reached::default());
    }
}
