//! What can be carried where there is no TUN device: TCP from the tailnet, TCP and UDP to it, on ports that can be named one
//! by one, since each needs a socket. What cannot is taken out and told, so that it holds up nothing else.

use proxy_rules::{
    Protocol,
    config::{PortMap, Service},
};

use super::{
    resolve::{Resolved, Target, Trouble},
    settings::Ports,
};

/// Which variable names the ports of targets that are forwarded whole.
#[derive(Clone, Copy)]
enum From {
    Tailnet,
    Cluster,
}

/// Leaves what can be carried, and says what becomes of the rest.
pub fn confine(resolved: &mut Resolved, ports: &Ports) {
    let Resolved { document, targets } = resolved;
    let mut narrow = |from: From, services: &mut Vec<Service>, every: &[PortMap]| {
        services.retain_mut(|service| {
            let (carried, trouble) = carried(from, &service.ports, every);
            if let Some(trouble) = trouble {
                tell(targets, &service.name, &trouble);
            }
            service.ports = carried;
            !service.ports.is_empty()
        });
    };
    narrow(From::Tailnet, &mut document.ingress, &ports.ingress);
    narrow(From::Cluster, &mut document.egress, &ports.egress);
    for route in std::mem::take(&mut document.routes) {
        let message = "without a TUN device tailscaled forwards this by itself, to the ports that \
                       it is asked for; it is not counted here"
            .to_owned();
        tell(targets, &route.name, &Trouble { reason: "by-tailscaled", message, partial: true });
    }
}

fn tell(targets: &mut [Target], entry: &str, trouble: &Trouble) {
    let of_entry = |target: &&mut Target| target.entry == entry && target.trouble.is_none();
    for target in targets.iter_mut().filter(of_entry) {
        target.trouble = Some(trouble.clone());
    }
}

/// The ports that can be carried, and what is to be said of the others.
fn carried(from: From, ports: &[PortMap], every: &[PortMap]) -> (Vec<PortMap>, Option<Trouble>) {
    let is_whole = |map: &PortMap| map.port.is_none() && map.protocol != Protocol::Icmp;
    let whole = ports.is_empty() || ports.iter().any(is_whole);
    let mut named: Vec<PortMap> = Vec::new();
    for map in ports.iter().filter(|map| map.port.is_some()).chain(every.iter().filter(|_| whole)) {
        if !named.contains(map) {
            named.push(map.clone());
        }
    }
    let (carried, refused): (Vec<_>, Vec<_>) = named.into_iter().partition(|map| match from {
        From::Tailnet => map.protocol == Protocol::Tcp,
        From::Cluster => map.protocol != Protocol::Icmp,
    });
    let trouble = if !refused.is_empty() {
        Some(needs_tun(&refused, !carried.is_empty()))
    } else if carried.is_empty() {
        Some(unnamed(from))
    } else {
        None
    };
    (carried, trouble)
}

fn needs_tun(refused: &[PortMap], partial: bool) -> Trouble {
    let ports: Vec<_> = refused
        .iter()
        .map(|map| {
            let port = map.port.as_ref().map(ToString::to_string).unwrap_or_default();
            format!("{}:{port}", map.protocol)
        })
        .collect();
    let message = format!(
        "without a TUN device tailscaled forwards TCP only, so nobody is served on {}: set TS_USERSPACE to false and let \
         the pod have /dev/net/tun",
        ports.join(", ")
    );
    Trouble { reason: "needs-tun", message, partial }
}

fn unnamed(from: From) -> Trouble {
    let (variable, example) = match from {
        From::Tailnet => ("SLUICE_INGRESS_PORTS", "tcp:80,tcp:443"),
        From::Cluster => ("SLUICE_EGRESS_PORTS", "tcp:5432,udp:53"),
    };
    let message = format!(
        "without a TUN device every port needs a socket, and this target names none: set {variable} (such as {example}), \
         or set TS_USERSPACE to false and let the pod have /dev/net/tun"
    );
    Trouble { reason: "ports-unnamed", message, partial: false }
}

#[cfg(test)]
mod tests {
    use proxy_rules::config::{Document, PortSpec, Route};

    use super::*;

    fn port(protocol: Protocol, port: Option<i64>) -> PortMap {
        PortMap { protocol, port: port.map(PortSpec::Number), ..PortMap::default() }
    }

    fn resolved(ingress: &[PortMap], egress: &[PortMap]) -> Resolved {
        let service = |name: &str, ports: &[PortMap]| Service {
            name: name.to_owned(),
            ports: ports.to_vec(),
            ..Service::default()
        };
        let target = |entry: &str| Target {
            entry: entry.to_owned(),
            target: "t".to_owned(),
            addresses: Vec::new(),
            trouble: None,
        };
        Resolved {
            document: Document {
                ingress: vec![service("in", ingress)],
                egress: vec![service("out", egress)],
                routes: vec![Route { name: "routes".to_owned(), ..Route::default() }],
                ..Document::default()
            },
            targets: vec![target("in"), target("out"), target("routes")],
        }
    }

    fn reasons(resolved: &Resolved) -> Vec<Option<(&'static str, bool)>> {
        let reason = |target: &Target| {
            target.trouble.as_ref().map(|trouble| (trouble.reason, trouble.partial))
        };
        resolved.targets.iter().map(reason).collect()
    }

    const TCP: Protocol = Protocol::Tcp;
    const UDP: Protocol = Protocol::Udp;

    #[test]
    fn a_target_that_is_forwarded_whole_needs_its_ports_named() {
        let whole = [port(TCP, None), port(UDP, None), port(Protocol::Icmp, None)];
        let mut out = resolved(&whole, &[]);
        confine(&mut out, &Ports::default());
        assert!(out.document.ingress.is_empty() && out.document.egress.is_empty());
        let unnamed = Some(("ports-unnamed", false));
        assert_eq!(reasons(&out), [unnamed, unnamed, Some(("by-tailscaled", true))]);

        let mut out = resolved(&whole, &[]);
        let ports = Ports {
            ingress: vec![port(TCP, Some(80))],
            egress: vec![port(TCP, Some(5432)), port(UDP, Some(53))],
        };
        confine(&mut out, &ports);
        assert_eq!(out.document.ingress[0].ports, ports.ingress);
        assert_eq!(out.document.egress[0].ports, ports.egress);
        assert_eq!(reasons(&out)[..2], [None, None]);
        assert!(out.document.routes.is_empty());
    }

    #[test]
    fn udp_from_the_tailnet_is_refused_and_nothing_else() {
        let both = [port(TCP, Some(53)), port(UDP, Some(53))];
        let mut out = resolved(&both, &both);
        confine(&mut out, &Ports::default());
        assert_eq!(out.document.ingress[0].ports, both[..1]);
        assert_eq!(out.document.egress[0].ports, both);
        assert_eq!(reasons(&out)[..2], [Some(("needs-tun", true)), None]);
        assert!(out.targets[0].trouble.as_ref().unwrap().message.contains("udp:53"));

        let mut out = resolved(&both[1..], &both);
        confine(&mut out, &Ports::default());
        assert!(out.document.ingress.is_empty());
        assert_eq!(reasons(&out)[0], Some(("needs-tun", false)));
    }
}
