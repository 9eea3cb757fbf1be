//! What the proxies of an ingress ProxyGroup serve, in the files of its ConfigMap: Ingresses in `serve-config.json`, Services
//! in `ingress-config.json`. In either each Tailscale Service has an entry, which the others do not concern.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::tailnet_api::ServiceName;

/// The key of an API server proxy's configuration.
pub const API_SERVER_CONFIG: &str = "config.hujson";

/// A file of the ConfigMap.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum File {
    /// HTTP and HTTPS: tailscaled's own format.
    Serve,
    /// Packets to cluster IPs.
    Ingress,
}

/// Whether and how an Ingress is served at port 80.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PlainHttp {
    /// Not at all.
    None,
    /// With the way to HTTPS.
    Redirect,
    /// As at port 443.
    Serve,
}

/// Where a Tailscale Service leads on layer 3; of a family that is missing nothing is led anywhere.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Mapping {
    /// IPv4.
    #[serde(rename = "IPv4Mapping", default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Pair<Ipv4Addr>>,
    /// IPv6.
    #[serde(rename = "IPv6Mapping", default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Pair<Ipv6Addr>>,
}

/// From where to where.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Pair<A> {
    /// The Tailscale Service's address.
    #[serde(rename = "TailscaleServiceIP")]
    pub from: A,
    /// The cluster's.
    #[serde(rename = "ClusterIP")]
    pub to: A,
}

impl File {
    /// Its key in the ConfigMap; of `ingress-config.json` also that of what a replica has installed, in its state Secret.
    pub fn key(self) -> &'static str {
        match self {
            Self::Serve => "serve-config.json",
            Self::Ingress => "ingress-config.json",
        }
    }

    /// The entries of a file, by the Tailscale Service's name. What is no such file has none.
    pub fn entries(self, content: &[u8]) -> BTreeMap<String, Value> {
        let mut all: Map<String, Value> = serde_json::from_slice(content).unwrap_or_default();
        match self {
            Self::Ingress => all.into_iter().collect(),
            Self::Serve => match all.remove("Services") {
                Some(Value::Object(services)) => services.into_iter().collect(),
                _ => BTreeMap::new(),
            },
        }
    }

    /// A file with these entries.
    pub fn content(self, entries: &BTreeMap<String, Value>) -> String {
        match self {
            Self::Ingress => json!(entries).to_string(),
            Self::Serve => json!({ "Services": entries }).to_string(),
        }
    }
}

impl Mapping {
    /// Of each family the first address that both have.
    pub fn between(service: &[IpAddr], cluster: &[IpAddr]) -> Self {
        let v4 = |all: &[IpAddr]| {
            all.iter().find_map(|address| match address {
                IpAddr::V4(address) => Some(*address),
                IpAddr::V6(_) => None,
            })
        };
        let v6 = |all: &[IpAddr]| {
            all.iter().find_map(|address| match address {
                IpAddr::V6(address) => Some(*address),
                IpAddr::V4(_) => None,
            })
        };
        Self {
            ipv4: v4(service).zip(v4(cluster)).map(|(from, to)| Pair { from, to }),
            ipv6: v6(service).zip(v6(cluster)).map(|(from, to)| Pair { from, to }),
        }
    }
}

/// What tailscaled serves for an Ingress. `handlers` are paths and the addresses that they lead to.
pub fn served(domain: &str, handlers: &BTreeMap<String, String>, http: PlainHttp) -> Value {
    let proxies: Map<String, Value> =
        handlers.iter().map(|(path, url)| (path.clone(), json!({ "Proxy": url }))).collect();
    let mut tcp = Map::from_iter([("443".to_owned(), json!({ "HTTPS": true }))]);
    let mut web = Map::new();
    let at_80 = match http {
        PlainHttp::None => None,
        PlainHttp::Serve => Some(proxies.clone()),
        PlainHttp::Redirect => {
            let to = json!({ "Redirect": "301:https://${HOST}${REQUEST_URI}" });
            Some(handlers.keys().map(|path| (path.clone(), to.clone())).collect())
        }
    };
    web.insert(format!("{domain}:443"), json!({ "Handlers": proxies }));
    if let Some(handlers) = at_80 {
        tcp.insert("80".to_owned(), json!({ "HTTP": true }));
        web.insert(format!("{domain}:80"), json!({ "Handlers": handlers }));
    }
    json!({ "TCP": tcp, "Web": web })
}

/// The configuration of a replica, offering these Tailscale Services and otherwise as it was; `None` if it offers them, or
/// is no configuration.
pub fn offering(config: &[u8], services: &[ServiceName]) -> Option<Vec<u8>> {
    const OFFERED: &str = "AdvertiseServices";
    let mut all: Map<String, Value> = serde_json::from_slice(config).ok()?;
    let mut wanted: Vec<_> = services.iter().map(ServiceName::as_str).collect();
    wanted.sort_unstable();
    let mut before: Vec<_> = offered(config);
    before.sort_unstable();
    if before == wanted {
        return None;
    }
    if wanted.is_empty() {
        all.remove(OFFERED);
    } else {
        all.insert(OFFERED.to_owned(), json!(wanted));
    }
    serde_json::to_vec(&all).ok()
}

/// The Tailscale Services that a configuration offers.
pub fn offered(config: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    struct Offers {
        #[serde(rename = "AdvertiseServices", default)]
        services: Option<Vec<String>>,
    }
    serde_json::from_slice(config)
        .map(|offers: Offers| offers.services.unwrap_or_default())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
