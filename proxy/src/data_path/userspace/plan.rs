//! Which sockets a rule table needs, and what each of them does: pure.
//!
//! User space only ever sees connections and datagrams that the kernel has already delivered to a socket, so a rule
//! is carried here exactly if its destinations can be listened on one by one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use proxy_rules::{
    Action, BackendState, Backends, DropReason, Protocol, Rule, RuleTable, Series, Side, Snat,
};

use super::frontend::{Carry, Frontend, Route, RouteAction, Target};
use crate::data_path::Unsupported;

/// The largest port range that is listened on: a socket each.
const MAX_RANGE_PORTS: u32 = 1024;

/// A socket to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Listen {
    /// How.
    pub(super) transport: Transport,
    /// Where.
    pub(super) address: SocketAddr,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.transport.protocol(), self.address)
    }
}

/// The protocols that have sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// As rules name it.
    pub(super) const fn protocol(self) -> Protocol {
        match self {
            Self::Tcp => Protocol::Tcp,
            Self::Udp => Protocol::Udp,
        }
    }
}

/// The compiled table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// What to listen on, and what becomes of what arrives there.
    pub(super) frontends: BTreeMap<Listen, Frontend>,
    /// What is carried differently than on the other paths, one sentence each.
    pub(super) notes: Vec<String>,
    /// How many connections and sessions may live at once.
    pub(super) max_flows: u32,
}

impl Plan {
    /// Compiles the table, or names the first rule that sockets cannot carry and why. With a SOCKS5 server, it is what
    /// backends on the tailnet are reached through, and what the tailnet sends comes through doors.
    pub(super) fn new(table: &RuleTable, socks5: Option<SocketAddr>) -> Result<Self, Unsupported> {
        let protected: Arc<[IpNet]> = table.settings().protected.as_slice().into();
        let mut plan = Self { max_flows: table.settings().max_flows, ..Self::default() };
        for rule in table.rules() {
            match carrier(rule, socks5.is_some())? {
                Carrier::Kernel(note) => plan.notes.push(format!("rule {}: {note}", rule.id)),
                Carrier::Sockets { transport, address } => {
                    plan.notes.extend(note(rule, transport));
                    for port in rule.matches.ports.first()..=rule.matches.ports.last() {
                        let listen = Listen { transport, address: SocketAddr::new(address, port) };
                        let frontend = plan.frontends.entry(listen).or_insert_with(|| Frontend {
                            routes: Vec::new(),
                            protected: Arc::clone(&protected),
                        });
                        if frontend.routes.iter().any(|other| other.series.from != rule.from) {
                            return Err(unsupported(rule, "one frontend on both sides"));
                        }
                        frontend.routes.push(route(rule, listen, socks5)?);
                    }
                }
            }
        }
        Ok(plan)
    }

    /// Whether what arrives there comes from the tailnet.
    pub(super) fn is_from_tailnet(frontend: &Frontend) -> bool {
        frontend.routes.iter().any(|route| route.series.from == Side::Tailnet)
    }

    /// The source addresses that rules name.
    pub(super) fn sources(&self) -> BTreeSet<IpAddr> {
        let routes = self.frontends.values().flat_map(|frontend| &frontend.routes);
        routes
            .filter_map(|route| match &route.action {
                RouteAction::Carry(carry) => carry.source,
                RouteAction::Refuse(_) => None,
            })
            .collect()
    }
}

/// Who carries a rule.
enum Carrier {
    /// The kernel, by what it does anyway; the note says what that is.
    Kernel(&'static str),
    /// Sockets on every port of the rule.
    Sockets { transport: Transport, address: IpAddr },
}

fn carrier(rule: &Rule, through_tailscaled: bool) -> Result<Carrier, Unsupported> {
    let matches = &rule.matches;
    let refuses = matches!(rule.action, Action::Reject | Action::Drop(_));
    if matches!(rule.action, Action::Forward { .. }) {
        return Err(unsupported(rule, "forwarding to other hosts (subnet route, exit node)"));
    }
    if matches.dst.prefix_len() != matches.dst.max_prefix_len() {
        return Err(unsupported(rule, "a prefix as destination"));
    }
    let transport = match matches.protocol {
        Some(Protocol::Tcp) => Transport::Tcp,
        Some(Protocol::Udp) => Transport::Udp,
        Some(Protocol::Icmp) if refuses => return Err(unsupported(rule, "refusing ICMP echo")),
        Some(Protocol::Icmp) => {
            return Ok(Carrier::Kernel(
                "ICMP echo is answered by this host itself, not by a backend, and not counted",
            ));
        }
        None if refuses => {
            return Ok(Carrier::Kernel(
                "the kernel refuses ports without a socket and answers ICMP echo; neither is counted",
            ));
        }
        None => return Err(unsupported(rule, "every protocol of an address")),
    };
    if through_tailscaled && rule.from == Side::Tailnet && transport == Transport::Udp {
        return Err(unsupported(rule, "UDP from the tailnet without a TUN device"));
    }
    match (matches.ports.is_any(), refuses) {
        (true, true) => Ok(Carrier::Kernel(
            "the kernel refuses ports without a socket by itself, which is not counted",
        )),
        (true, false) => Err(unsupported(rule, "every port of an address")),
        (false, _) if matches.ports.count() > MAX_RANGE_PORTS => {
            Err(unsupported(rule, "a range of more than 1024 ports"))
        }
        (false, _) => Ok(Carrier::Sockets { transport, address: matches.dst.addr() }),
    }
}

fn unsupported(rule: &Rule, feature: &'static str) -> Unsupported {
    Unsupported::Feature { rule: rule.id.to_string(), feature }
}

/// What the other paths would do that sockets cannot.
fn note(rule: &Rule, transport: Transport) -> Option<String> {
    let text = match (&rule.action, transport) {
        (Action::Dnat { snat: Snat::Keep, proxy_protocol: false, .. }, _) => {
            "backends see this host's address instead of the client's: use another data path or the \
             PROXY protocol"
        }
        (Action::Drop(_), Transport::Tcp) => "connections are reset instead of dropped in silence",
        (Action::Reject, Transport::Udp) => "datagrams are dropped without an answer",
        _ => return None,
    };
    Some(format!("rule {}: {text}", rule.id))
}

fn route(rule: &Rule, listen: Listen, socks5: Option<SocketAddr>) -> Result<Route, Unsupported> {
    let action = match &rule.action {
        Action::Dnat { backends, snat, proxy_protocol } => {
            if *proxy_protocol && listen.transport == Transport::Udp {
                return Err(unsupported(rule, "a PROXY protocol header before datagrams"));
            }
            let targets = targets(backends, listen.address.port());
            if targets.iter().any(|target| target.address == listen.address) {
                return Err(unsupported(rule, "a backend that is the frontend itself"));
            }
            RouteAction::Carry(Arc::new(Carry {
                lookup: backends.lookup_table(),
                targets,
                affinity: backends.affinity,
                source: match snat {
                    Snat::To(address) => Some(*address),
                    Snat::Keep | Snat::Masquerade => None,
                },
                proxy_protocol: *proxy_protocol,
                socks5: socks5.filter(|_| rule.from == Side::Cluster),
            }))
        }
        Action::Drop(reason) => RouteAction::Refuse(*reason),
        Action::Reject | Action::Forward { .. } => RouteAction::Refuse(DropReason::Rejected),
    };
    Ok(Route { series: series(rule, listen), sources: rule.matches.src.clone(), action })
}

fn targets(backends: &Backends, frontend_port: u16) -> Vec<Target> {
    let target = |backend: &proxy_rules::Backend| Target {
        address: SocketAddr::new(backend.address, backend.port.unwrap_or(frontend_port)),
        ready: backend.state == BackendState::Ready,
    };
    backends.list.iter().map(target).collect()
}

/// The counter of one of a rule's ports.
fn series(rule: &Rule, listen: Listen) -> Series {
    let ports = rule.matches.ports;
    let alone = rule.count_per_port || ports.is_single();
    Series {
        rule: rule.id.clone(),
        from: rule.from,
        protocol: Some(listen.transport.protocol()),
        port: Some(if alone { listen.address.port() } else { ports.first() }),
        last_port: (!alone).then_some(ports.last()),
    }
}
