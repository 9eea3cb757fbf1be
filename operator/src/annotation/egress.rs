//! What a Service on an egress ProxyGroup asks for.

use std::net::IpAddr;

use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::util::intstr::IntOrString};
use kube::ResourceExt as _;

use super::{Violation, Violations};
use crate::{
    label,
    name::{self, Hostname},
};

/// The name of the port that the operator adds to a Service's ports.
pub const HEALTH_PORT: &str = "tailscale-health-check";
/// A port that has no name.
const UNNAMED: &str = "tailscale-unnamed";

/// A target in the tailnet, through the proxies of a group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EgressRequest {
    /// The ProxyGroup.
    pub group: String,
    /// The target.
    pub target: EgressTarget,
    /// Its ports. Never empty.
    pub ports: Vec<EgressPort>,
}

/// A target in the tailnet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum EgressTarget {
    /// An address.
    Ip(IpAddr),
    /// A name, as it is written.
    Name(String),
}

/// A port of a Service.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct EgressPort {
    /// `TCP` or `UDP`.
    pub protocol: String,
    /// Where clients connect to.
    pub port: u16,
    /// The target's port.
    pub target: u16,
    /// Its name, which the operator gives it if it has none.
    pub name: String,
}

/// The ProxyGroup that is to lead a Service to a target in the tailnet, if one is.
pub fn egress_group(service: &Service) -> Option<&str> {
    let set = |key: &str| {
        service.annotations().get(key).map(String::as_str).filter(|value| !value.is_empty())
    };
    let group = set(label::PROXY_GROUP)?;
    set(label::TAILNET_IP).or_else(|| set(label::TAILNET_FQDN)).map(|_| group)
}

/// What a Service asks a ProxyGroup for: `None` if nothing, or nothing that leads to the tailnet.
pub fn egress(service: &Service) -> Result<Option<EgressRequest>, Violations> {
    let Some(group) = egress_group(service) else { return Ok(None) };
    let mut violations = Vec::new();
    let set = |key: &str| {
        service.annotations().get(key).map(String::as_str).filter(|value| !value.is_empty())
    };
    let (ip, fqdn) = (set(label::TAILNET_IP), set(label::TAILNET_FQDN));
    if ip.is_some() && fqdn.is_some() {
        violations.push(Violation::Both(label::TAILNET_IP, label::TAILNET_FQDN));
    }
    let target = match (ip, fqdn) {
        (Some(text), _) => text.parse().map(EgressTarget::Ip).map_err(|_| {
            violations.push(Violation::Address(label::TAILNET_IP, text.to_owned()));
        }),
        (None, text) => {
            let text = text.unwrap_or_default();
            name::fqdn(text).map(|_| EgressTarget::Name(text.to_owned())).map_err(|error| {
                violations.push(Violation::Name(label::TAILNET_FQDN, error));
            })
        }
    };
    if let Some(name) = service.annotations().get(label::HOSTNAME)
        && let Err(error) = Hostname::new(name)
    {
        violations.push(Violation::Name(label::HOSTNAME, error));
    }
    if let Some(tags) = set(label::TAGS) {
        let errors = name::tags(tags).1.into_iter();
        violations.extend(errors.map(|error| Violation::Name(label::TAGS, error)));
    }
    let spec = service.spec.as_ref();
    let type_ = spec.and_then(|spec| spec.type_.as_deref()).unwrap_or("ClusterIP");
    if type_ != "ExternalName" {
        violations.push(Violation::NotExternal(type_.to_owned()));
    }
    let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    if ports.is_empty() {
        violations.push(Violation::NoPorts);
    }
    let mut all = Vec::with_capacity(ports.len());
    for (place, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        if !matches!(protocol, "TCP" | "UDP") {
            violations.push(Violation::Protocol(place, protocol.to_owned()));
        }
        let name = port.name.as_deref().filter(|name| !name.is_empty()).unwrap_or(UNNAMED);
        if name == HEALTH_PORT {
            violations.push(Violation::PortName(place, HEALTH_PORT));
        }
        let Ok(number) = u16::try_from(port.port) else { continue };
        // A name means a port of a pod, and there is none.
        let target = match port.target_port {
            Some(IntOrString::Int(target)) => u16::try_from(target).ok().filter(|to| *to != 0),
            _ => None,
        };
        all.push(EgressPort {
            protocol: protocol.to_owned(),
            port: number,
            target: target.unwrap_or(number),
            name: name.to_owned(),
        });
    }
    match target {
        Ok(target) if violations.is_empty() => {
            Ok(Some(EgressRequest { group: group.to_owned(), target, ports: all }))
        }
        _ => Err(Violations(violations)),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

    use serde_json::{Value, json};

    use super::*;

    fn asked(annotations: Value, spec: Value) -> String {
        let service =
            json!({ "metadata": { "name": "db", "annotations": annotations }, "spec": spec });
        match egress(&serde_json::from_value(service).unwrap()) {
            Ok(Some(request)) => format!("{request:?}"),
            Ok(None) => String::new(),
            Err(violations) => violations.to_string(),
        }
    }

    #[test]
    fn the_port_of_the_target_is_the_target_port() {
        let on =
            json!({ "tailscale.com/proxy-group": "pg", "tailscale.com/tailnet-ip": "100.64.0.9" });
        let ports = json!([{ "port": 80, "targetPort": 8080 }, { "port": 53, "protocol": "UDP", "name": "dns" },
            { "port": 443, "targetPort": "https", "name": "web" }]);
        let asked = asked(on, json!({ "type": "ExternalName", "ports": ports }));
        for part in [
            r#"group: "pg", target: Ip(100.64.0.9)"#,
            r#"protocol: "TCP", port: 80, target: 8080, name: "tailscale-unnamed""#,
            r#"protocol: "UDP", port: 53, target: 53, name: "dns""#,
            r#"port: 443, target: 443, name: "web""#,
        ] {
            assert!(asked.contains(part), "{asked}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let bad = json!({ "tailscale.com/proxy-group": "pg", "tailscale.com/tailnet-ip": "here",
            "tailscale.com/tailnet-fqdn": "db.tail1.ts.net", "tailscale.com/tags": "k8s" });
        let ports = json!([{ "port": 80, "protocol": "SCTP", "name": "tailscale-health-check" }]);
        let told = asked(bad, json!({ "ports": ports, "clusterIP": "10.0.0.1" }));
        for part in [
            "are both set",
            "`here` is not an IP address",
            "`k8s` is not a tag",
            "field `spec.type`: is ClusterIP, use ExternalName",
            "field `spec.ports[0].protocol`: SCTP is not forwarded",
            "field `spec.ports[0].name`",
        ] {
            assert!(told.contains(part), "{told}");
        }
        let none = json!({ "tailscale.com/proxy-group": "pg", "tailscale.com/tailnet-fqdn": "db" });
        let told = asked(none, json!({ "type": "ExternalName" }));
        assert!(
            told.contains("`db` is not a full DNS name") && told.contains("field `spec.ports`")
        );
    }

    #[test]
    fn others_are_not_asked_for_egress() {
        let spec = || json!({ "type": "ExternalName", "ports": [{ "port": 80 }] });
        for annotations in [
            json!({}),
            json!({ "tailscale.com/proxy-group": "pg" }),
            json!({ "tailscale.com/proxy-group": "", "tailscale.com/tailnet-ip": "100.64.0.9" }),
            json!({ "tailscale.com/proxy-group": "pg", "tailscale.com/ts-tailnet-target-ip": "100.64.0.9" }),
        ] {
            assert_eq!(asked(annotations, spec()), "");
        }
    }
}
