//! Lets the cluster reach what is served to the tailnet
//! (`EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS`): connections to the pod's address are relayed to the node's
//! tailnet address of the same family, where tailscaled listens for those from this host. By sockets, whatever the data path:
//! packets that come in from the cluster and end on this host are no path's to forward. tailscaled sees the node itself as
//! the client.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use proxy_rules::{
    RuleTable,
    config::{
        Backend, Document, PortMap, PortSpec, Service, Settings as RuleSettings, WireInterfaces,
    },
    validate,
};
use tokio::{task::spawn_blocking, time};

use super::Inputs;
use crate::data_path::{DataPath as _, userspace::UserspacePath};

/// The name of the relay's rules, and the family.
const NAME: &str = "cluster-via-ingress";

/// How long until an attempt that failed is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// Relays for as long as the process runs.
pub(super) async fn keep(inputs: &Inputs) {
    if !inputs.settings.targets.cluster_via_ingress {
        return;
    }
    if !inputs.kernel_tun {
        // Its listeners are in its own network stack, which only peers reach.
        tell(
            inputs,
            Some("tailscaled serves nothing to this host without a TUN device".to_owned()),
        );
        return;
    }
    let mut served = inputs.pod.served.subscribe();
    let mut changes = inputs.changes.clone();
    let mut relay = Relay::default();
    loop {
        let ports: BTreeSet<u16> = served
            .borrow_and_update()
            .as_ref()
            .map(|config| config.tcp.keys().copied().collect())
            .unwrap_or_default();
        let own = inputs.pod.view().own.as_ref().map(|own| own.addresses.clone());
        let document = document(&inputs.settings.pod.ips, &own.unwrap_or_default(), &ports);
        if relay.in_force.as_ref() != Some(&document) {
            let outcome = relay.apply(document).await;
            tell(inputs, outcome.err());
        }
        let again = inputs.pod.troubles().via_cluster.is_some();
        tokio::select! {
            changed = served.changed() => if changed.is_err() { return },
            changed = changes.changed() => if changed.is_err() { return },
            () = time::sleep(RETRY), if again => {}
        }
    }
}

fn tell(inputs: &Inputs, trouble: Option<String>) {
    let trouble =
        trouble.map(|why| format!("the cluster cannot reach what is served to the tailnet: {why}"));
    let mut troubles = inputs.pod.troubles();
    if troubles.via_cluster != trouble {
        if let Some(text) = &trouble {
            tracing::error!("{text}");
        } else {
            tracing::info!("the cluster reaches what is served to the tailnet");
        }
        troubles.via_cluster = trouble;
    }
}

#[derive(Default)]
struct Relay {
    path: Option<UserspacePath>,
    in_force: Option<Document>,
}

impl Relay {
    async fn apply(&mut self, document: Document) -> Result<(), String> {
        let table = compile(&document)?;
        let path = self.path.take();
        // Binding may wait for a socket that is about to be closed.
        let applied = spawn_blocking(move || {
            let mut path = match path {
                Some(path) => path,
                None => match UserspacePath::new() {
                    Ok(path) => path,
                    Err(error) => return (None, Err(error.to_string())),
                },
            };
            let applied = path.apply(&table).map_err(|error| error.to_string());
            (Some(path), applied)
        });
        let (path, applied) = applied.await.map_err(|error| error.to_string())?;
        self.path = path;
        applied?;
        self.in_force = Some(document);
        Ok(())
    }
}

fn compile(document: &Document) -> Result<RuleTable, String> {
    let compiled = validate::compile(document).map(|config| config.table);
    compiled.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

/// The pod's address of each family to the node's of the same.
fn document(pod: &[IpAddr], own: &[IpAddr], ports: &BTreeSet<u16>) -> Document {
    let port = |port: &u16| PortMap {
        port: Some(PortSpec::Number(i64::from(*port))),
        ..PortMap::default()
    };
    let relay = |frontend: &IpAddr| {
        let backend = own.iter().find(|own| own.is_ipv4() == frontend.is_ipv4())?;
        let family = if frontend.is_ipv4() { "ipv4" } else { "ipv6" };
        Some(Service {
            name: format!("{NAME}-{family}"),
            frontends: vec![frontend.to_string()],
            ports: ports.iter().map(port).collect(),
            backends: vec![Backend { address: backend.to_string(), ..Backend::default() }],
            ..Service::default()
        })
    };
    let egress = if ports.is_empty() { Vec::new() } else { pod.iter().filter_map(relay).collect() };
    Document {
        // No device is looked at: sockets carry it.
        settings: RuleSettings {
            interfaces: WireInterfaces::default(),
            protected_sources: Vec::new(),
            ..RuleSettings::default()
        },
        egress,
        ..Document::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_of_the_pod_leads_to_the_nodes_own() {
        let pod = ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse().unwrap());
        let own = ["100.64.0.1", "fd7a:115c:a1e0::1"].map(|ip| ip.parse().unwrap());
        let ports = BTreeSet::from([80, 443]);
        let table = compile(&document(&pod, &own, &ports)).unwrap();
        assert_eq!(table.rules().len(), 4, "{table:?}");
        let table = compile(&document(&pod, &own[..1], &ports)).unwrap();
        assert_eq!(table.rules().len(), 2, "a family that the node has not is not relayed");
        for nothing in [document(&pod, &[], &ports), document(&pod, &own, &BTreeSet::new())] {
            assert_eq!(compile(&nothing).unwrap().rules().len(), 0);
        }
    }
}
