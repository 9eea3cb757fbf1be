//! What one listening socket does with a client: which rule decides, and which backend is chosen.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use proxy_ebpf_common::{Address, FlowKey, side, tuple_hash};
use proxy_rules::{Affinity, Count, DropReason, RuleId, Series, Side};

use super::{
    count::{Counters, Tally},
    plan::Listen,
};

/// Every rule on one listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frontend {
    /// In canonical order: the first whose sources match decides.
    pub(super) routes: Vec<Route>,
    /// Sources that must not come from the cluster side.
    pub(super) protected: Arc<[IpNet]>,
}

/// One rule on one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Its counter; names the rule and the side.
    pub(super) series: Series,
    /// Clients it is for; empty = all.
    pub(super) sources: Vec<IpNet>,
    /// What it does.
    pub(super) action: RouteAction,
}

/// What a rule does with a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RouteAction {
    /// Connects it to a backend.
    Carry(Arc<Carry>),
    /// Turns it away.
    Refuse(DropReason),
}

/// How clients are carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Carry {
    /// The backends in canonical order.
    pub(super) targets: Vec<Target>,
    /// Maglev table: indices into `targets`, of ready ones only.
    pub(super) lookup: Vec<u32>,
    /// What the hash covers.
    pub(super) affinity: Affinity,
    /// The source address towards the backend, if not the kernel's choice.
    pub(super) source: Option<IpAddr>,
    /// Whether the connection begins with a PROXY protocol header.
    pub(super) proxy_protocol: bool,
    /// The SOCKS5 server that backends are reached through.
    pub(super) socks5: Option<SocketAddr>,
}

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Where.
    pub(super) address: SocketAddr,
    /// Whether it takes new flows.
    pub(super) ready: bool,
}

impl Carry {
    /// The backends that a new flow may use: the chosen one, then the other ready ones in case it refuses.
    pub(super) fn candidates(&self, hash: u32) -> impl Iterator<Item = SocketAddr> {
        let slot = (u64::from(hash) * self.lookup.len() as u64) >> 32;
        let chosen = self.lookup.get(slot as usize).map_or(0, |index| *index as usize);
        let (before, from) = self.targets.split_at_checked(chosen).unwrap_or((&[], &self.targets));
        from.iter().chain(before).filter(|target| target.ready).map(|target| target.address)
    }

    fn keeps(&self, backend: SocketAddr) -> bool {
        self.targets.iter().any(|target| target.address == backend)
    }
}

/// A frontend as installed: with its counters.
#[derive(Debug)]
pub(super) struct Live {
    listen: Listen,
    frontend: Frontend,
    tallies: Vec<Arc<Tally>>,
}

/// The answer for one client.
pub(super) enum Decision<'a> {
    /// Carried.
    Carry {
        /// The rule.
        rule: &'a RuleId,
        /// How.
        carry: &'a Arc<Carry>,
        /// The hash that chooses the backend.
        hash: u32,
        /// Who counts.
        tally: &'a Arc<Tally>,
    },
    /// Turned away; no tally if no rule is for this client.
    Refuse(DropReason, Option<&'a Arc<Tally>>),
}

impl Live {
    /// Ties a frontend to its counters.
    pub(super) fn new(listen: Listen, frontend: Frontend, counters: &Counters) -> Self {
        let tallies = frontend.routes.iter().map(|route| counters.tally(&route.series)).collect();
        Self { listen, frontend, tallies }
    }

    /// The socket it belongs to.
    pub(super) fn listen(&self) -> Listen {
        self.listen
    }

    /// What it does.
    pub(super) fn frontend(&self) -> &Frontend {
        &self.frontend
    }

    /// Every counter, once a rule.
    pub(super) fn counts(&self) -> Vec<(Series, Count)> {
        let routes = self.frontend.routes.iter().zip(&self.tallies);
        routes.map(|(route, tally)| (route.series.clone(), tally.count())).collect()
    }

    /// Whether it already does what this frontend asks for.
    pub(super) fn is(&self, frontend: &Frontend) -> bool {
        self.frontend == *frontend
    }

    /// What becomes of a new client.
    pub(super) fn decide(&self, client: SocketAddr) -> Decision<'_> {
        let within = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&client.ip()));
        let mut routes = self.frontend.routes.iter().zip(&self.tallies);
        let Some((route, tally)) =
            routes.find(|(route, _)| route.sources.is_empty() || within(&route.sources))
        else {
            return Decision::Refuse(DropReason::Rejected, None);
        };
        if route.series.from == Side::Cluster && within(&self.frontend.protected) {
            return Decision::Refuse(DropReason::SpoofedSource, None);
        }
        match &route.action {
            RouteAction::Refuse(reason) => Decision::Refuse(*reason, Some(tally)),
            RouteAction::Carry(carry) if carry.lookup.is_empty() => {
                Decision::Refuse(DropReason::NoBackend, Some(tally))
            }
            RouteAction::Carry(carry) => {
                let client_only = carry.affinity == Affinity::ClientIp;
                let hash = tuple_hash(&self.key(client, route.series.from), client_only);
                Decision::Carry { rule: &route.series.rule, carry, hash, tally }
            }
        }
    }

    /// Whether a flow of this rule to this backend may go on (the backend may be draining).
    pub(super) fn keeps(&self, rule: &RuleId, backend: SocketAddr) -> bool {
        self.frontend.routes.iter().any(|route| {
            route.series.rule == *rule
                && matches!(&route.action, RouteAction::Carry(carry) if carry.keeps(backend))
        })
    }

    fn key(&self, client: SocketAddr, from: Side) -> FlowKey {
        FlowKey {
            src: mapped(client.ip()),
            dst: mapped(self.listen.address.ip()),
            src_port: client.port().to_be_bytes(),
            dst_port: self.listen.address.port().to_be_bytes(),
            protocol: self.listen.transport.protocol().number(),
            side: match from {
                Side::Tailnet => side::TAILNET,
                Side::Cluster => side::CLUSTER,
            },
            reserved: [0; 2],
        }
    }
}

fn mapped(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
