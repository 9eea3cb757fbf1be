//! From a rules file with names to one with addresses. A pod's rules are an ordinary `ProxyRules` document in which words
//! and names may stand where only addresses stand otherwise; what they mean changes with the tailnet and with DNS:
//!
//! | where | word | meaning |
//! |---|---|---|
//! | `frontends` | `tailnet` | this node's tailnet addresses |
//! | `frontends` | `cluster` | the pod's own addresses |
//! | `frontends` | `svc:NAME` | the addresses of a Tailscale Service that control has assigned to this node |
//! | `egress[].backends[].address` | a name | a device, Tailscale Service, DNS record or 4via6 name of the tailnet |
//! | `ingress[].backends[].address` | a name | all its addresses in the cluster's DNS |
//! | `routes[].destinations` | `advertised` | what tailscaled advertises: subnets, exit routes, what an app connector has found |
//! | `routes[].destinations` | `reachable` | what peers take packets for; nothing unless a subnet is advertised |
//! | `settings.protectedSources` | `assigned` | every address that the tailnet assigns |

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use proxy_rules::config::{Backend, Document, Route, Service};

use super::view::View;

#[cfg(test)]
mod tests;

/// Frontends: this node's tailnet addresses.
pub const TAILNET: &str = "tailnet";
/// Frontends: the pod's own addresses.
pub const CLUSTER: &str = "cluster";
/// Frontends: a service's addresses.
pub const SERVICE: &str = "svc:";
/// Destinations: what tailscaled advertises.
pub const ADVERTISED: &str = "advertised";
/// Destinations: what peers take packets for, of a node that advertises subnets.
pub const REACHABLE: &str = "reachable";
/// Protected sources: what the tailnet assigns.
pub const ASSIGNED: &str = "assigned";

/// What words and names mean now.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The tailnet.
    pub view: &'a View,
    /// The pod's addresses.
    pub pod: &'a [IpAddr],
    /// Names of the cluster's DNS as last looked up; the text says why one has no address.
    pub names: &'a HashMap<String, Result<Vec<IpAddr>, String>>,
}

/// A document with addresses only, and what became of each target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resolved {
    /// Without words and names.
    pub document: Document,
    /// One for each target of each service, and for each route.
    pub targets: Vec<Target>,
}

/// Where an entry's traffic is to go, and whether it can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The entry's name.
    pub entry: String,
    /// As written: an address, a name, a prefix.
    pub target: String,
    /// What it stands for now.
    pub addresses: Vec<IpAddr>,
    /// Why it gets no traffic, or not all that it should.
    pub trouble: Option<Trouble>,
}

impl Target {
    /// Whether it gets traffic as soon as the rules are in force, though not all of it perhaps.
    pub fn is_served(&self) -> bool {
        self.trouble.as_ref().is_none_or(|trouble| trouble.partial)
    }
}

/// Why a target gets no traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// A stable word.
    pub reason: &'static str,
    /// What is the matter and what would help.
    pub message: String,
    /// The rest gets its traffic.
    pub partial: bool,
}

impl Trouble {
    fn whole(reason: &'static str, message: String) -> Self {
        Self { reason, message, partial: false }
    }
}

/// Names that the document wants of the cluster's DNS.
pub fn names(document: &Document) -> BTreeSet<String> {
    let backends = document.ingress.iter().flat_map(|service| &service.backends);
    let is_name = |backend: &&Backend| backend.address.parse::<IpAddr>().is_err();
    backends.filter(is_name).map(|backend| backend.address.clone()).collect()
}

/// Puts addresses in place of words and names.
pub fn resolve(document: &Document, facts: &Facts<'_>) -> Resolved {
    let mut out = Resolved { document: document.clone(), targets: Vec::new() };
    let in_cluster = |name: &str| cluster_name(name, facts);
    let in_tailnet = |name: &str| {
        facts.view.resolve(name).map_err(|error| Trouble::whole("unresolved", error.to_string()))
    };
    out.document.ingress = services(&document.ingress, facts, &in_cluster, &mut out.targets);
    out.document.egress = services(&document.egress, facts, &in_tailnet, &mut out.targets);
    out.document.routes =
        document.routes.iter().filter_map(|entry| route(entry, facts, &mut out.targets)).collect();
    let protected = &mut out.document.settings.protected_sources;
    if let Some(at) = protected.iter().position(|source| source == ASSIGNED) {
        protected.remove(at);
        let assigned: BTreeSet<_> = facts.view.assigned().collect();
        protected.extend(assigned.iter().map(ToString::to_string));
    }
    out
}

type Lookup<'a> = dyn Fn(&str) -> Result<Vec<IpAddr>, Trouble> + 'a;

fn cluster_name(name: &str, facts: &Facts<'_>) -> Result<Vec<IpAddr>, Trouble> {
    match facts.names.get(name) {
        Some(Ok(addresses)) => Ok(addresses.clone()),
        Some(Err(why)) => Err(Trouble::whole("unresolved", why.clone())),
        None => Err(Trouble::whole("resolving", format!("{name} is being looked up"))),
    }
}

fn services(
    entries: &[Service],
    facts: &Facts<'_>,
    lookup: &Lookup<'_>,
    targets: &mut Vec<Target>,
) -> Vec<Service> {
    let service = |entry: &Service| {
        let first = targets.len();
        let backends = backends(entry, lookup, targets);
        let (frontends, odd) = frontends(entry, facts);
        // A frontend whose family no backend has is not taken, rather than refused: its clients use the other family.
        let is_served = |frontend: &IpAddr| {
            let same = |(address, _): &(IpAddr, Backend)| address.is_ipv4() == frontend.is_ipv4();
            backends.is_empty() || backends.iter().any(same)
        };
        let served: Vec<IpAddr> = frontends.iter().copied().filter(is_served).collect();
        for target in targets.iter_mut().skip(first).filter(|target| target.trouble.is_none()) {
            target.trouble = unreachable(entry, target, &served, &frontends);
        }
        let usable = backends.into_iter().filter(|(address, _)| {
            served.iter().any(|frontend| frontend.is_ipv4() == address.is_ipv4())
        });
        let backends = usable
            .map(|(address, like)| Backend { address: address.to_string(), ..like })
            .collect();
        let frontends: Vec<_> = served.iter().map(ToString::to_string).chain(odd).collect();
        (!frontends.is_empty()).then(|| Service { frontends, backends, ..entry.clone() })
    };
    entries.iter().filter_map(service).collect()
}

/// Why a target with addresses gets no traffic all the same.
fn unreachable(
    entry: &Service,
    target: &Target,
    served: &[IpAddr],
    frontends: &[IpAddr],
) -> Option<Trouble> {
    if frontends.is_empty() {
        let words = entry.frontends.join(", ");
        let message = format!("this node has no address yet for {words}");
        return Some(Trouble::whole("no-frontend", message));
    }
    let meets = |address: &IpAddr| served.iter().any(|own| own.is_ipv4() == address.is_ipv4());
    if target.addresses.iter().any(meets) {
        return None;
    }
    let family = if target.addresses.iter().any(IpAddr::is_ipv4) { "IPv4" } else { "IPv6" };
    let message = format!(
        "{} has {family} addresses only, and this side has none: {}",
        target.target,
        frontends.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    );
    Some(Trouble::whole("family", message))
}

/// Every address of every backend, each once, with the backend it came from.
fn backends(
    entry: &Service,
    lookup: &Lookup<'_>,
    targets: &mut Vec<Target>,
) -> Vec<(IpAddr, Backend)> {
    let mut seen = BTreeSet::new();
    let mut backends = Vec::new();
    for backend in &entry.backends {
        let found = match backend.address.parse() {
            Ok(address) => Ok(vec![address]),
            Err(_) => lookup(&backend.address),
        };
        let (addresses, trouble) = match found {
            Ok(addresses) => (addresses, None),
            Err(trouble) => (Vec::new(), Some(trouble)),
        };
        for address in &addresses {
            if seen.insert(*address) {
                backends.push((*address, backend.clone()));
            }
        }
        let (entry, target) = (entry.name.clone(), backend.address.clone());
        targets.push(Target { entry, target, addresses, trouble });
    }
    backends
}

/// The addresses, and what is neither address nor word: for validation to say.
fn frontends(entry: &Service, facts: &Facts<'_>) -> (Vec<IpAddr>, Vec<String>) {
    let own = facts.view.own.as_ref();
    let mut addresses = BTreeSet::new();
    let mut odd = Vec::new();
    for text in &entry.frontends {
        match text.as_str() {
            TAILNET => addresses.extend(own.iter().flat_map(|own| own.addresses.iter().copied())),
            CLUSTER => addresses.extend(facts.pod.iter().copied()),
            service if service.starts_with(SERVICE) => {
                let hosted = own.and_then(|own| own.hosted.get(service));
                addresses.extend(hosted.into_iter().flatten().copied());
            }
            text => match text.parse::<IpAddr>() {
                Ok(address) => addresses.extend([address]),
                Err(_) => odd.push(text.to_owned()),
            },
        }
    }
    (addresses.into_iter().collect(), odd)
}

fn route(entry: &Route, facts: &Facts<'_>, targets: &mut Vec<Target>) -> Option<Route> {
    let mut destinations = BTreeSet::new();
    let advertised = &facts.view.advertised;
    for text in &entry.destinations {
        match text.as_str() {
            ADVERTISED => destinations.extend(advertised.iter().map(ToString::to_string)),
            REACHABLE if advertised.iter().any(|net| net.prefix_len() > 0) => {
                destinations.extend(facts.view.reachable().iter().map(ToString::to_string));
            }
            REACHABLE => {}
            net => drop(destinations.insert(net.to_owned())),
        }
    }
    // Peers come and go by the thousand; they are no targets that somebody has named.
    if !entry.destinations.iter().any(|text| text == REACHABLE) {
        for destination in &destinations {
            let (entry, target) = (entry.name.clone(), destination.clone());
            targets.push(Target { entry, target, addresses: Vec::new(), trouble: None });
        }
    }
    let destinations: Vec<_> = destinations.into_iter().collect();
    let keep = facts.view.keep_source && entry.destinations.iter().any(|text| text == ADVERTISED);
    let snat = if keep { "keep".to_owned() } else { entry.snat.clone() };
    (!destinations.is_empty()).then(|| Route { destinations, snat, ..entry.clone() })
}
