//! Document to rules: families, limits, overlaps.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    net::IpAddr,
    rc::Rc,
};

use ipnet::IpNet;

use super::{
    MAX_BACKENDS, MAX_PORTS_COUNTED, MAX_RULES, MAX_TOTAL_BACKENDS,
    claims::{Claims, Owner},
    error::{Path, Report},
    leaf, options,
    shape::Repaired,
};
use crate::{
    Action, Affinity, Backend, BackendState, Backends, DropReason, Match, PortRange, Protocol,
    Rule, RuleId, RuleTable, Side, Snat,
    config::{self, Config, DenyAction, Document, WireAffinity, WireState},
};

/// Compiles the document as far as it can be, and reports the rest.
pub(super) fn compile(document: &Document, repaired: &Repaired, report: &mut Report) -> Config {
    let settings = options::settings(&document.settings, report);
    let options = options::options(&document.settings, report);
    let mut compiler = Compiler {
        report,
        repaired,
        rules: Vec::new(),
        count: 0,
        backends: 0,
        claims: Claims::default(),
        names: HashMap::new(),
    };
    let sections = [
        ("ingress", Side::Tailnet, &document.ingress),
        ("egress", Side::Cluster, &document.egress),
    ];
    for (section, from, entries) in sections {
        for (index, entry) in entries.iter().enumerate() {
            compiler.service(&Path::Root.field(section).index(index), from, entry);
        }
    }
    for (index, entry) in document.routes.iter().enumerate() {
        compiler.route(&Path::Root.field("routes").index(index), entry);
    }
    for (index, entry) in document.deny.iter().enumerate() {
        compiler.deny(&Path::Root.field("deny").index(index), entry);
    }
    compiler.limits();
    compiler.claims.check(compiler.report);
    Config { table: RuleTable::new(compiler.rules, settings), options }
}

struct Compiler<'a> {
    report: &'a mut Report,
    repaired: &'a Repaired,
    rules: Vec<Rule>,
    /// Rules wanted; those above the limit are not built.
    count: usize,
    /// Backends of all rules.
    backends: usize,
    claims: Claims,
    names: HashMap<String, String>,
}

/// One line of `ports`, read.
struct Ports {
    path: String,
    protocol: Option<Protocol>,
    range: PortRange,
    target: Option<u16>,
    each: bool,
}

impl Compiler<'_> {
    fn service(&mut self, path: &Path<'_>, from: Side, entry: &config::Service) {
        self.name(&entry.name, path);
        let frontends: Vec<(usize, IpAddr)> =
            self.each(&path.field("frontends"), &entry.frontends, leaf::address);
        let backends = self.backends(&path.field("backends"), &entry.backends);
        let sources = leaf::networks(&entry.sources, &path.field("sources"), self.report);
        let snat = leaf::snat(&entry.snat, &path.field("snat"), self.report);
        let snat = snat.unwrap_or(Snat::Masquerade);
        let ports = self.ports(path, &entry.ports, true);
        if from == Side::Tailnet && entry.ports.is_empty() {
            let remedy = "list what the tailnet may reach; {protocol: tcp} is every TCP port";
            self.report.add(path.field("ports"), "no ports", remedy);
        }
        let is_tcp = |ports: &Ports| ports.protocol.is_none_or(|p| p == Protocol::Tcp);
        if entry.proxy_protocol && !ports.is_empty() && !ports.iter().any(is_tcp) {
            let remedy = "remove it, or serve a TCP port";
            self.report.add(path.field("proxyProtocol"), "needs TCP", remedy);
        }
        for (index, address) in frontends {
            let place = path.field("frontends");
            let place = place.index(index);
            self.family(&place, address, &entry.backends, &backends);
            let (Some(src), Some(snat)) =
                (self.sources(&place, address, &sources), self.snat(&place, address, snat))
            else {
                continue;
            };
            let own: Vec<&Backend> =
                backends.iter().filter(|b| b.address.is_ipv4() == address.is_ipv4()).collect();
            for ports in &ports {
                self.backends = self.backends.saturating_add(own.len());
                if self.is_full() {
                    continue;
                }
                let list = own.iter().map(|b| Backend { port: ports.target, ..(*b).clone() });
                let backends = Backends {
                    list: list.collect(),
                    affinity: match entry.affinity {
                        WireAffinity::Flow => Affinity::Flow,
                        WireAffinity::ClientIp => Affinity::ClientIp,
                    },
                };
                let proxy_protocol = entry.proxy_protocol && is_tcp(ports);
                let action = Action::Dnat { backends, snat, proxy_protocol };
                self.rule(path, &entry.name, from, IpNet::from(address), ports, &src, action);
            }
        }
    }

    fn route(&mut self, path: &Path<'_>, entry: &config::Route) {
        self.name(&entry.name, path);
        let list: Vec<(usize, IpNet)> =
            self.each(&path.field("destinations"), &entry.destinations, leaf::network);
        let sources = leaf::networks(&entry.sources, &path.field("sources"), self.report);
        let snat = leaf::snat(&entry.snat, &path.field("snat"), self.report);
        let snat = snat.unwrap_or(Snat::Masquerade);
        let to = entry.to.unwrap_or(entry.from.other());
        let every = every_port(path);
        for (index, dst) in list {
            let place = path.field("destinations");
            let place = place.index(index);
            let (Some(src), Some(snat)) =
                (self.sources(&place, dst.addr(), &sources), self.snat(&place, dst.addr(), snat))
            else {
                continue;
            };
            let action = Action::Forward { to, snat };
            self.rule(path, &entry.name, entry.from, dst, &every, &src, action);
        }
    }

    fn deny(&mut self, path: &Path<'_>, entry: &config::Deny) {
        self.name(&entry.name, path);
        let list: Vec<(usize, IpNet)> =
            self.each(&path.field("destinations"), &entry.destinations, leaf::network);
        let sources = leaf::networks(&entry.sources, &path.field("sources"), self.report);
        let ports = self.ports(path, &entry.ports, false);
        for (index, dst) in list {
            let place = path.field("destinations");
            let Some(src) = self.sources(&place.index(index), dst.addr(), &sources) else {
                continue;
            };
            for ports in &ports {
                let action = match entry.action {
                    DenyAction::Reject => Action::Reject,
                    DenyAction::Drop => Action::Drop(DropReason::RuleDrop),
                };
                self.rule(path, &entry.name, entry.from, dst, ports, &src, action);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a rule")]
    fn rule(
        &mut self,
        path: &Path<'_>,
        name: &str,
        from: Side,
        dst: IpNet,
        ports: &Ports,
        src: &[IpNet],
        action: Action,
    ) {
        self.count = self.count.saturating_add(1);
        if self.is_full() {
            return;
        }
        let matches =
            Match { protocol: ports.protocol, dst, ports: ports.range, src: src.to_vec() };
        // What was repaired claims something else than its author meant.
        if !self.repaired.contains(&path.to_string()) {
            let owner = Owner { path: ports.path.clone(), name: name.to_owned() };
            self.claims.add(from, &matches, &Rc::new(owner));
        }
        let id = RuleId::new(name);
        self.rules.push(Rule { id, from, matches, action, count_per_port: ports.each });
    }

    const fn is_full(&self) -> bool {
        self.count > MAX_RULES || self.backends > MAX_TOTAL_BACKENDS
    }

    fn limits(&mut self) {
        if self.is_full() {
            let problem = format!(
                "more rules than {MAX_RULES} (one a frontend and port), or more backends of all rules than {MAX_TOTAL_BACKENDS}"
            );
            self.report.add("", problem, "use port ranges, or split the entries between proxies");
        }
    }

    fn name(&mut self, name: &str, path: &Path<'_>) {
        let path = path.field("name");
        leaf::name(name, &path, self.report);
        if name.is_empty() {
            return;
        }
        match self.names.entry(name.to_owned()) {
            Entry::Vacant(place) => {
                place.insert(path.to_string());
            }
            Entry::Occupied(other) => {
                let problem = format!("`{name}` is already the name at {}", other.get());
                self.report.add(path, problem, "give each entry its own name");
            }
        }
    }

    fn each<T>(
        &mut self,
        path: &Path<'_>,
        list: &[String],
        read: impl Fn(&str, &Path<'_>, &mut Report) -> Option<T>,
    ) -> Vec<(usize, T)> {
        let leaf = |(index, text): (usize, &String)| {
            Some((index, read(text, &path.index(index), self.report)?))
        };
        list.iter().enumerate().filter_map(leaf).collect()
    }

    fn ports(&mut self, path: &Path<'_>, list: &[config::PortMap], is_dnat: bool) -> Vec<Ports> {
        if list.is_empty() {
            return vec![every_port(path)];
        }
        let path = path.field("ports");
        let map = |(index, map): (usize, &config::PortMap)| {
            let path = path.index(index);
            let ports = match &map.port {
                Some(spec) => leaf::ports(spec, &path.field("port"), self.report)?,
                None => PortRange::ANY,
            };
            let target = map.target_port.filter(|port| *port != 0);
            let mut odd = |field, problem: &str, remedy: &str| {
                self.report.add(path.field(field), problem, remedy);
            };
            if map.protocol == Protocol::Icmp && map.port.is_some() {
                odd("port", "ICMP has no ports", "remove it");
            }
            if target.is_some() && !is_dnat {
                odd("targetPort", "nothing is translated here", "remove it");
            } else if target.is_some() && map.protocol == Protocol::Icmp {
                odd("targetPort", "ICMP has no ports", "remove it");
            } else if target.is_some() && !ports.is_single() {
                let problem = "a range keeps its ports, it cannot have one target port";
                odd("targetPort", problem, "remove it, or list the ports one by one");
            }
            if map.count_per_port && ports.count() > MAX_PORTS_COUNTED {
                let problem = format!("{} ports are too many to count each", ports.count());
                let remedy = format!("count at most {MAX_PORTS_COUNTED} ports, or remove it");
                odd("countPerPort", &problem, &remedy);
            }
            Some(Ports {
                path: path.to_string(),
                protocol: Some(map.protocol),
                range: ports,
                target,
                each: map.count_per_port && !ports.is_single(),
            })
        };
        list.iter().enumerate().filter_map(map).collect()
    }

    fn backends(&mut self, path: &Path<'_>, list: &[config::Backend]) -> Vec<Backend> {
        if list.len() > MAX_BACKENDS {
            let problem = format!("{} backends", list.len());
            self.report.add(path, problem, format!("use at most {MAX_BACKENDS}"));
        }
        let mut seen = HashSet::new();
        let mut backends = Vec::new();
        for (index, wire) in list.iter().enumerate() {
            let path = path.index(index);
            let path = path.field("address");
            let Some(address) = leaf::address(&wire.address, &path, self.report) else { continue };
            if !seen.insert(address) {
                self.report.add(
                    path,
                    format!("{address} is given twice"),
                    "give each backend once",
                );
            }
            let state = match wire.state {
                WireState::Ready => BackendState::Ready,
                WireState::Draining => BackendState::Draining,
            };
            backends.push(Backend { address, port: None, weight: wire.weight, state });
        }
        backends
    }

    /// A frontend whose backends are all of the other family would be silent: its clients would wait in vain.
    fn family(&mut self, path: &Path<'_>, at: IpAddr, wire: &[config::Backend], read: &[Backend]) {
        let is_served = read.iter().any(|backend| backend.address.is_ipv4() == at.is_ipv4());
        if is_served || read.len() < wire.len() || wire.is_empty() {
            return;
        }
        let family = if at.is_ipv4() { "IPv4" } else { "IPv6" };
        let problem = format!("{at} has no {family} backend");
        self.report.add(path, problem, format!("add an {family} backend or remove the frontend"));
    }

    /// The sources of the destination's family. Without any the rule would match no packet, or every one.
    fn sources(&mut self, path: &Path<'_>, dst: IpAddr, sources: &[IpNet]) -> Option<Vec<IpNet>> {
        let is_same = |net: &&IpNet| net.addr().is_ipv4() == dst.is_ipv4();
        let own: Vec<IpNet> = sources.iter().filter(is_same).copied().collect();
        if own.is_empty() && !sources.is_empty() {
            let problem = format!("{dst} can never be reached from these sources: other family");
            self.report.add(path, problem, "add sources of its family or remove the address");
            return None;
        }
        Some(own)
    }

    fn snat(&mut self, path: &Path<'_>, dst: IpAddr, snat: Snat) -> Option<Snat> {
        if let Snat::To(address) = snat
            && address.is_ipv4() != dst.is_ipv4()
        {
            let problem = format!("{dst} cannot be left with source {address}: other family");
            self.report.add(path, problem, "use an entry for each family, or snat: masquerade");
            return None;
        }
        Some(snat)
    }
}

/// Every port of every protocol.
fn every_port(path: &Path<'_>) -> Ports {
    let path = path.to_string();
    Ports { path, protocol: None, range: PortRange::ANY, target: None, each: false }
}
