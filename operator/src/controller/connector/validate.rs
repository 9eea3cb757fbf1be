//! What a Connector asks for, all errors at once. The schema refuses most of this; objects that are older than a rule are
//! found here.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use kube::ResourceExt as _;

use crate::{build::Routes, crd::Connector};

/// A valid Connector.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Request {
    /// The names of its nodes, one a replica.
    pub(super) hostnames: Vec<String>,
    /// What it offers.
    pub(super) routes: Routes,
}

/// Everything that is wrong, each with field and remedy. Never empty.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Violations(Vec<String>);

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

/// Addresses that stand for IPv4 addresses of sites: a site's number of 32 bits, then the address.
const SITES: Ipv6Net =
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0xb1a, 0, 0, 0, 0), 64);
/// Numbers of sites that there can be.
const LAST_SITE: u32 = 0xffff;

pub(super) fn request(connector: &Connector) -> Result<Request, Violations> {
    let spec = &connector.spec;
    let mut wrong = Vec::new();
    let exit_node = spec.exit_node == Some(true);
    if spec.subnet_router.is_none() && !exit_node && spec.app_connector.is_none() {
        wrong.push("spec: set subnetRouter, exitNode or appConnector".to_owned());
    }
    if spec.app_connector.is_some() && (spec.subnet_router.is_some() || exit_node) {
        wrong.push(
            "spec.appConnector: excludes subnetRouter and exitNode, make a Connector of its own for it"
                .to_owned(),
        );
    }
    let replicas = spec.replicas.unwrap_or(1);
    if spec.hostname.is_some() && replicas > 1 {
        wrong.push("spec.hostname: names one device, use hostnamePrefix with replicas".to_owned());
    }
    if spec.hostname.is_some() && spec.hostname_prefix.is_some() {
        wrong.push("spec.hostname: excludes hostnamePrefix, remove one".to_owned());
    }
    let subnets = spec.subnet_router.as_ref().map(|router| &router.advertise_routes);
    if subnets.is_some_and(Vec::is_empty) {
        wrong.push("spec.subnetRouter.advertiseRoutes: is empty, name a route".to_owned());
    }
    let apps = spec.app_connector.as_ref().map(|apps| &apps.routes);
    let named =
        [("spec.subnetRouter.advertiseRoutes", subnets), ("spec.appConnector.routes", apps)];
    let mut advertised = BTreeSet::new();
    for (field, texts) in named {
        for (place, text) in texts.into_iter().flatten().enumerate() {
            match route(text) {
                Ok(route) => drop(advertised.insert(Ordered::from(route))),
                Err(why) => wrong.push(format!("{field}[{place}]: `{text}` {why}")),
            }
        }
    }
    let defaults = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
    let defaults = defaults.map(|address| Ordered { length: 0, address });
    if exit_node {
        advertised.extend(defaults);
    } else if defaults.iter().filter(|route| advertised.contains(route)).count() == 1 {
        wrong.push(
            "spec.subnetRouter.advertiseRoutes: has one of 0.0.0.0/0 and ::/0, set exitNode to offer both"
                .to_owned(),
        );
    }
    if !wrong.is_empty() {
        return Err(Violations(wrong));
    }
    let name =
        spec.hostname.clone().unwrap_or_else(|| format!("{}-connector", connector.name_any()));
    let hostname = |ordinal| match &spec.hostname_prefix {
        Some(prefix) => format!("{prefix}-{ordinal}"),
        None => name.clone(),
    };
    let advertised = advertised.into_iter().filter_map(Ordered::route).collect();
    Ok(Request {
        hostnames: (0..replicas).map(hostname).collect(),
        routes: Routes { advertised, app_connector: spec.app_connector.is_some() },
    })
}

/// By length, then by address: the order in which upstream writes routes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Ordered {
    length: u8,
    address: IpAddr,
}

impl From<IpNet> for Ordered {
    fn from(route: IpNet) -> Self {
        Self { length: route.prefix_len(), address: route.network() }
    }
}

impl Ordered {
    fn route(self) -> Option<IpNet> {
        match self.address {
            IpAddr::V4(address) => Ipv4Net::new(address, self.length).ok().map(Into::into),
            IpAddr::V6(address) => Ipv6Net::new(address, self.length).ok().map(Into::into),
        }
    }
}

/// A route, or what is wrong with it.
fn route(text: &str) -> Result<IpNet, String> {
    let route: IpNet =
        text.parse().map_err(|_| "is not a prefix: write one such as 10.40.0.0/14".to_owned())?;
    if route.addr() != route.network() {
        return Err(format!("has bits behind its length: write {}", route.trunc()));
    }
    let IpNet::V6(v6) = route else { return Ok(route) };
    if SITES.contains(&v6.network()) {
        if v6.prefix_len() < 96 {
            return Err("is of more than one site: write 96 bits or more".to_owned());
        }
        let site = (u128::from(v6.network()) >> 32) as u32;
        if site > LAST_SITE {
            return Err(format!("is of site {site}: sites have numbers up to {LAST_SITE}"));
        }
    }
    Ok(route)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

    use serde_json::{Value, json};

    use super::*;

    fn of(spec: Value) -> Result<Request, Violations> {
        request(
            &serde_json::from_value(json!({
                "apiVersion": "tailscale.com/v1alpha1", "kind": "Connector",
                "metadata": { "name": "prod" }, "spec": spec,
            }))
            .unwrap(),
        )
    }

    fn routes(spec: Value) -> Vec<String> {
        of(spec).unwrap().routes.advertised.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn routes_are_in_order_and_an_exit_node_has_both_defaults() {
        let spec = json!({ "exitNode": true, "subnetRouter": { "advertiseRoutes":
            ["10.40.0.0/14", "192.0.2.0/24", "10.0.0.0/8", "10.0.0.0/8", "fd7a:115c:a1e0:b1a:0:7:a00:0/104"] } });
        assert_eq!(
            routes(spec),
            [
                "0.0.0.0/0",
                "::/0",
                "10.0.0.0/8",
                "10.40.0.0/14",
                "192.0.2.0/24",
                "fd7a:115c:a1e0:b1a:0:7:a00:0/104"
            ]
        );
        let apps = of(json!({ "appConnector": { "routes": ["192.0.2.0/24"] } })).unwrap();
        assert!(apps.routes.app_connector);
        assert!(!of(json!({ "exitNode": true })).unwrap().routes.app_connector);
    }

    #[test]
    fn each_replica_has_a_name() {
        let names = |spec| of(spec).unwrap().hostnames;
        assert_eq!(names(json!({ "exitNode": true })), ["prod-connector"]);
        assert_eq!(names(json!({ "exitNode": true, "hostname": "x" })), ["x"]);
        let prefix = json!({ "exitNode": true, "hostnamePrefix": "p", "replicas": 2 });
        assert_eq!(names(prefix), ["p-0", "p-1"]);
        let shared = json!({ "exitNode": true, "replicas": 2 });
        assert_eq!(names(shared), ["prod-connector", "prod-connector"]);
        assert!(names(json!({ "exitNode": true, "replicas": 0 })).is_empty());
    }

    #[test]
    fn all_that_is_wrong_is_said_with_field_and_remedy() {
        let said = of(json!({ "hostname": "a", "hostnamePrefix": "b", "replicas": 2,
            "appConnector": { "routes": ["10.0.0.1/8"] },
            "subnetRouter": { "advertiseRoutes": ["x", "fd7a:115c:a1e0:b1a::/64",
                "fd7a:115c:a1e0:b1a:1:0:a00:0/104", "::/0"] } }))
        .unwrap_err()
        .to_string();
        for part in [
            "spec.appConnector: excludes",
            "spec.hostname: names one device",
            "spec.hostname: excludes hostnamePrefix",
            "spec.subnetRouter.advertiseRoutes[0]: `x` is not a prefix",
            "advertiseRoutes[1]: `fd7a:115c:a1e0:b1a::/64` is of more than one site",
            "advertiseRoutes[2]: `fd7a:115c:a1e0:b1a:1:0:a00:0/104` is of site 65536",
            "spec.appConnector.routes[0]: `10.0.0.1/8` has bits behind its length: write 10.0.0.0/8",
            "has one of 0.0.0.0/0 and ::/0",
        ] {
            assert!(said.contains(part), "{part} is not in {said}");
        }
        assert_eq!(said.split("; ").count(), 8, "{said}");
        assert!(of(json!({})).unwrap_err().to_string().contains("set subnetRouter"));
        let empty = json!({ "subnetRouter": { "advertiseRoutes": [] } });
        assert!(of(empty).unwrap_err().to_string().contains("name a route"));
    }
}
