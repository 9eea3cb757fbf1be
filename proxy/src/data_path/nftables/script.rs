//! Rule table -> nft text. Pure.
//!
//! An [`Image`] is everything that the table in the kernel should hold; two images give the script that leads from
//! one to the other. Chains are fixed, rules are elements of maps: a changed port is a handful of elements, and
//! a packet costs the same number of lookups however many rules there are.
//!
//! Added elements cost `nft` and the kernel 2 ms of time, whatever the size of the table; a transaction that deletes
//! something returns after an RCU grace period, 8 to 16 ms later with the same 2 ms of work (nft 1.0.6, kernel 6.18).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::IpAddr,
};

use ipnet::IpNet;
use proxy_rules::{
    Action, Backend, BackendState, Backends, DropReason, Fragments, Match, Protocol, Rule,
    RuleTable, Series, Side, Snat,
};

mod balance;
mod fixed;
mod lookup;
pub(crate) mod mark;

use lookup::{Candidate, Candidates, Lookup};
use mark::Marks;

/// The table, with its family.
pub(crate) const TABLE: &str = "inet sluice";

/// What the script must know about the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Host {
    /// Devices that did not forward IPv4 before us: only our flows may pass from them.
    pub(crate) closed4: BTreeSet<String>,
    /// The same for IPv6.
    pub(crate) closed6: BTreeSet<String>,
    /// IPv6 forwarding was off and had to be switched on as a whole.
    pub(crate) ipv6_forwarding_was_off: bool,
    /// Kernel settings to be put back: path -> value.
    pub(crate) sysctls: BTreeMap<String, String>,
}

/// How a mark's flows are carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Carry {
    /// To one of these; the port, where the rule says one.
    To(BTreeSet<(IpAddr, Option<u16>)>),
    /// To where the packet says.
    Onward,
    /// Not at all.
    Nowhere,
}

/// What a mark stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    pub(crate) series: Series,
    /// Index of the rule in the table.
    pub(crate) rule: usize,
    /// The port, where each is counted.
    pub(crate) port: Option<u16>,
    pub(crate) carry: Carry,
}

/// Set or map -> key -> data (empty for sets).
type Elements = BTreeMap<String, BTreeMap<String, String>>;

/// Everything that the table in the kernel should hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    fixed: String,
    fixed_chains: Vec<String>,
    chains: BTreeMap<String, Vec<String>>,
    elements: Elements,
    allocator: Marks,
    /// What the marks of the rules stand for.
    pub(crate) marks: BTreeMap<u32, Marked>,
    /// Marks of rules that are gone: their counters stay until nothing can count there any more.
    pub(crate) retiring: BTreeMap<u32, Series>,
}

impl Image {
    /// Compiles a table; marks follow those of the image in force.
    pub(crate) fn new(table: &RuleTable, host: &Host, old: &Self) -> Self {
        let (fixed, fixed_chains) = fixed::block(table.settings(), host);
        let allocator = Marks::following(&old.allocator, |mark| old.marks.contains_key(&mark));
        let mut image = Self { fixed, fixed_chains, allocator, ..Self::default() };
        for (index, rule) in table.rules().iter().enumerate() {
            image.rule(index, rule);
        }
        for side in [Side::Tailnet, Side::Cluster] {
            for ipv6 in [false, true] {
                image.lookups(table, side, ipv6);
            }
        }
        for net in IpNet::aggregate(&table.settings().protected) {
            image.add(format!("protected{}", digit(net.addr())), net.to_string(), "");
        }
        image.host(host);
        let gone = old.marks.iter().filter(|(mark, _)| !image.marks.contains_key(mark));
        image.retiring = gone.map(|(mark, marked)| (*mark, marked.series.clone())).collect();
        for mark in image.retiring.keys().copied().collect::<Vec<_>>() {
            image.count(mark);
        }
        image
    }

    fn add(&mut self, set: impl Into<String>, key: impl Into<String>, data: impl Into<String>) {
        self.elements.entry(set.into()).or_default().insert(key.into(), data.into());
    }

    fn count(&mut self, mark: u32) {
        for set in ["count_original", "count_reply", "count_flows", "count_dropped"] {
            self.add(set, format!("{mark:#010x}"), "");
        }
    }

    fn host(&mut self, host: &Host) {
        for (set, names) in [("closed4", &host.closed4), ("closed6", &host.closed6)] {
            for name in names {
                self.add(set, format!("\"{name}\""), "");
            }
        }
        for (number, (path, value)) in host.sysctls.iter().enumerate() {
            self.add("sysctls", format!("{:#010x} comment \"{path}={value}\"", number + 1), "");
        }
    }

    /// Marks of a rule and what they lead to.
    fn rule(&mut self, index: usize, rule: &Rule) {
        let ports = rule.matches.ports;
        let each = rule.counts_each_port();
        let counted: Vec<Option<u16>> =
            if each { (ports.first()..=ports.last()).map(Some).collect() } else { vec![None] };
        for port in counted {
            let bits = if ports.is_single() { mark::RULE | mark::EXACT_PORT } else { mark::RULE };
            let mark = self.allocator.mark(identity(rule, port), bits);
            self.count(mark);
            let carry = self.action(mark, rule);
            let series = Series::of(rule, port);
            self.marks.insert(mark, Marked { series, rule: index, port, carry });
        }
    }

    fn action(&mut self, mark: u32, rule: &Rule) -> Carry {
        let key = format!("{mark:#010x}");
        let digit = digit(rule.matches.dst.addr());
        match &rule.action {
            Action::Dnat { backends, snat, .. } => {
                self.source(&key, digit, *snat);
                self.destination(&key, rule, backends);
                Carry::To(backends.list.iter().map(|b| (b.address, b.port)).collect())
            }
            Action::Forward { snat, .. } => {
                self.source(&key, digit, *snat);
                Carry::Onward
            }
            Action::Reject => {
                self.verdict(key, DropReason::Rejected);
                Carry::Nowhere
            }
            Action::Drop(reason) => {
                self.verdict(key, *reason);
                Carry::Nowhere
            }
        }
    }

    fn verdict(&mut self, key: String, reason: DropReason) {
        self.add("verdicts", key, format!("goto drop_{}", reason.label()));
    }

    fn source(&mut self, key: &str, digit: char, snat: Snat) {
        match snat {
            Snat::Keep => {}
            Snat::Masquerade => self.add("masquerades", key, ""),
            Snat::To(address) => self.add(format!("from{digit}"), key, address.to_string()),
        }
    }

    fn destination(&mut self, key: &str, rule: &Rule, backends: &Backends) {
        let matches = &rule.matches;
        let digit = digit(matches.dst.addr());
        let ready: Vec<&Backend> =
            backends.list.iter().filter(|b| b.state == BackendState::Ready).collect();
        match ready.as_slice() {
            [] => self.verdict(key.to_owned(), DropReason::NoBackend),
            [backend] => {
                let fixed_port = backend.port.filter(|_| matches.protocol != Some(Protocol::Icmp));
                if let Some(port) = fixed_port {
                    let to = format!("{} . {port}", backend.address);
                    self.add(format!("to{digit}_port"), key, to);
                }
                // Also where a port is given: ICMP of a rule on every protocol has none.
                if fixed_port.is_none() || matches.protocol.is_none() {
                    self.add(format!("to{digit}"), key, backend.address.to_string());
                }
            }
            several => {
                // Every port of a rule that counts each goes by the same chain.
                let number =
                    self.allocator.mark(format!("chain {}", identity(rule, None)), mark::CHAIN);
                let chain = format!("balance_{number:08x}");
                let rules = balance::chain(several, backends.affinity, matches, number);
                self.chains.insert(chain.clone(), rules);
                self.add("balance", key, format!("goto {chain}"));
            }
        }
    }

    fn lookups(&mut self, table: &RuleTable, side: Side, ipv6: bool) {
        let rules = table.rules();
        let lookup = Lookup::new(rules, side, ipv6);
        let name = format!("{side}{}", if ipv6 { '6' } else { '4' });
        for ((address, protocol, port), candidates) in &lookup.exact {
            let data = self.answer(rules, side, candidates);
            let protocol = protocol_name(*protocol, ipv6);
            self.add(format!("{name}_port"), format!("{address} . {protocol} . {port}"), data);
        }
        for cell in &lookup.boxes {
            let data = self.answer(rules, side, &cell.candidates);
            let map = format!("{name}_range_{}", cell.protocol.label());
            let address = range(cell.first, cell.last);
            let ports = range(cell.ports.0, cell.ports.1);
            self.add(map, format!("{address} . {ports}"), data);
        }
        for net in lookup.any_protocol {
            self.add(format!("{name}_any"), net.to_string(), "");
        }
        if table.settings().fragments == Fragments::Drop {
            for net in lookup.destinations {
                self.add(format!("{name}_all"), net.to_string(), "");
            }
        }
    }

    /// The mark that a lookup yields: the rule's, or that of a group whose chain asks for the source.
    fn answer(&mut self, rules: &[Rule], side: Side, candidates: &Candidates) -> String {
        let decided: Vec<(u32, &Rule)> = candidates
            .iter()
            .filter_map(|Candidate { rule, port }| {
                let rule = rules.get(*rule)?;
                let bits =
                    if rule.matches.ports.is_single() { mark::EXACT_PORT } else { 0 } | mark::RULE;
                Some((self.allocator.mark(identity(rule, *port), bits), rule))
            })
            .collect();
        if let [(mark, rule)] = decided.as_slice()
            && rule.matches.src.is_empty()
        {
            return format!("{mark:#010x}");
        }
        let mut chain = Vec::new();
        let mut open = true;
        for (mark, rule) in &decided {
            let sources = IpNet::aggregate(&rule.matches.src);
            let set: Vec<_> = sources.iter().map(ToString::to_string).collect();
            let family = if matches!(rule.matches.dst, IpNet::V6(_)) { "ip6" } else { "ip" };
            let decide = format!("ct mark set {mark:#010x} return");
            open = !set.is_empty();
            chain.push(if open {
                format!("{family} saddr {{ {} }} {decide}", set.join(", "))
            } else {
                decide
            });
        }
        if open {
            chain.push("ct mark set 0".into());
            chain.push(format!("goto unmatched_{side}"));
        }
        let mark = self.allocator.mark(format!("{chain:?}"), mark::GROUP);
        let name = format!("group_{mark:08x}");
        let key = format!("{mark:#010x}");
        self.add("groups", key.clone(), format!("jump {name}"));
        self.chains.insert(name, chain);
        key
    }

    /// The script that makes a table of this image, whatever was there.
    pub(crate) fn script(&self) -> String {
        let mut script = format!("add table {TABLE}\ndelete table {TABLE}\n");
        self.block(&mut script);
        self.changes(&Self::default(), &mut script);
        script
    }

    /// The script that leads from the image in force to this one; empty if nothing changes.
    pub(crate) fn difference(&self, old: &Self) -> String {
        let mut script = String::new();
        if self.fixed != old.fixed {
            // Sets, elements and counters stay; only the chains are filled anew.
            for chain in &old.fixed_chains {
                let _ = writeln!(script, "flush chain {TABLE} {chain}");
            }
            self.block(&mut script);
        }
        self.changes(old, &mut script);
        if self.fixed != old.fixed {
            for chain in old.fixed_chains.iter().filter(|c| !self.fixed_chains.contains(c)) {
                let _ = writeln!(script, "delete chain {TABLE} {chain}");
            }
        }
        script
    }

    fn block(&self, script: &mut String) {
        let _ = writeln!(script, "table {TABLE} {{\n{}}}", self.fixed);
    }

    fn changes(&self, old: &Self, script: &mut String) {
        for (chain, rules) in &self.chains {
            match old.chains.get(chain) {
                Some(same) if same == rules => continue,
                Some(_) => {
                    let _ = writeln!(script, "flush chain {TABLE} {chain}");
                }
                None => {
                    let _ = writeln!(script, "add chain {TABLE} {chain}");
                }
            }
            for rule in rules {
                let _ = writeln!(script, "add rule {TABLE} {chain} {rule}");
            }
        }
        let none = BTreeMap::new();
        for (set, elements) in &old.elements {
            let new = self.elements.get(set).unwrap_or(&none);
            let stale = elements.iter().filter(|(key, data)| new.get(*key) != Some(data));
            list(script, "delete", set, stale);
        }
        for (set, elements) in &self.elements {
            let old = old.elements.get(set).unwrap_or(&none);
            let fresh = elements.iter().filter(|(key, data)| old.get(*key) != Some(data));
            list(script, "add", set, fresh);
        }
        for chain in old.chains.keys().filter(|chain| !self.chains.contains_key(*chain)) {
            let _ = writeln!(script, "flush chain {TABLE} {chain}\ndelete chain {TABLE} {chain}");
        }
    }
}

fn list<'a>(
    script: &mut String,
    verb: &str,
    set: &str,
    elements: impl Iterator<Item = (&'a String, &'a String)>,
) {
    let mut elements = elements.peekable();
    if elements.peek().is_none() {
        return;
    }
    let _ = writeln!(script, "{verb} element {TABLE} {set} {{");
    for (key, data) in elements {
        let _ = match data.as_str() {
            "" => writeln!(script, "\t{key},"),
            data => writeln!(script, "\t{key} : {data},"),
        };
    }
    script.push_str("}\n");
}

/// What makes a rule the same rule: its name and what it matches, not what happens.
fn identity(rule: &Rule, port: Option<u16>) -> String {
    let Match { protocol, dst, ports, src } = &rule.matches;
    format!("{}|{}|{protocol:?}|{dst}|{ports}|{port:?}|{src:?}", rule.id, rule.from)
}

fn digit(address: IpAddr) -> char {
    if address.is_ipv6() { '6' } else { '4' }
}

fn protocol_name(protocol: Protocol, ipv6: bool) -> &'static str {
    match protocol {
        Protocol::Icmp if ipv6 => "ipv6-icmp",
        protocol => protocol.label(),
    }
}

fn range<T: Copy + PartialEq + std::fmt::Display>(first: T, last: T) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

#[cfg(test)]
mod tests;
