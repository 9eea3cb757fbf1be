//! The whole desired forwarding state of one proxy.

use ipnet::IpNet;

use crate::{Action, Protocol, Rule};

/// Rules in canonical order and settings. Two tables with the same meaning are equal and share a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTable {
    rules: Vec<Rule>,
    settings: Settings,
    generation: String,
}

/// Everything that is not a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The devices of both sides, by name.
    pub interfaces: Interfaces,
    /// Sources that must not arrive from the cluster side: the addresses that the tailnet really assigns.
    pub protected: Vec<IpNet>,
    /// What becomes of packets from the tailnet side that match no rule and are not for this host.
    pub unmatched: Unmatched,
    /// What becomes of fragments.
    pub fragments: Fragments,
    /// The pool of translated source ports.
    pub snat_ports: SnatPorts,
    /// Capacity of the flow table, in flows of each family.
    pub max_flows: u32,
}

/// Devices by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// The tailnet side; the first is the default.
    pub tailnet: Vec<String>,
    /// The cluster side; the first is the default.
    pub cluster: Vec<String>,
}

/// What becomes of packets from the tailnet side that match no rule and are not for this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// Left to the kernel.
    Pass,
    /// Dropped with reason `no_rule`.
    Drop,
}

/// What becomes of fragments that belong to a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// Carried; later fragments take the ports of the first.
    Track,
    /// Dropped with reason `fragments_disabled`.
    Drop,
}

/// The pool of translated source ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnatPorts {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
    /// Ports never used, sorted.
    pub reserved: Vec<u16>,
    /// How many ports a new flow may try before it is refused.
    pub tries: u16,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interfaces: Interfaces::default(),
            protected: Vec::new(),
            unmatched: Unmatched::Drop,
            fragments: Fragments::Track,
            snat_ports: SnatPorts { first: 1024, last: 65535, reserved: Vec::new(), tries: 64 },
            max_flows: 262_144,
        }
    }
}

impl RuleTable {
    /// Brings rules and settings into canonical order. Expects valid input: `validate` reports what is not.
    pub fn new(mut rules: Vec<Rule>, mut settings: Settings) -> Self {
        for rule in &mut rules {
            rule.matches.src.sort_unstable();
            rule.matches.src.dedup();
            if let Action::Dnat { backends, .. } = &mut rule.action {
                backends.list.sort_unstable();
                backends.list.dedup();
            }
        }
        rules.sort_by(|a, b| specificity(a).cmp(&specificity(b)).then_with(|| a.id.cmp(&b.id)));
        settings.protected.sort_unstable();
        settings.protected.dedup();
        settings.snat_ports.reserved.sort_unstable();
        settings.snat_ports.reserved.dedup();
        let generation = generation(&rules, &settings);
        Self { rules, settings, generation }
    }

    /// A table without rules.
    pub fn empty(settings: Settings) -> Self {
        Self::new(Vec::new(), settings)
    }

    /// The rules; the first one that matches a packet is the one that counts.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Everything else.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Content hash, 16 hexadecimal digits: equal tables have equal generations.
    pub fn generation(&self) -> &str {
        &self.generation
    }
}

/// Sort key: most specific first. Destination length, then ports (one, a range, any), then protocol (named, any),
/// then limited sources before any source.
fn specificity(rule: &Rule) -> impl Ord + use<> {
    let m = &rule.matches;
    let host_bits = m.dst.max_prefix_len() - m.dst.prefix_len();
    let ports = if m.ports.is_any() { u32::MAX } else { m.ports.count() };
    let longest_source = m.src.iter().map(IpNet::prefix_len).max().map_or(u8::MAX, |len| 128 - len);
    (
        rule.from,
        host_bits,
        m.dst,
        ports,
        m.protocol.is_none(),
        m.protocol.map(Protocol::number),
        m.ports,
        longest_source,
        m.src.clone(),
    )
}

fn generation(rules: &[Rule], settings: &Settings) -> String {
    // Debug output is total, unambiguous for these types, and changes when a field is added: what a content hash
    // needs. It never leaves the process as a format.
    let hash = blake3::hash(format!("{rules:?}{settings:?}").as_bytes());
    hash.to_hex().chars().take(16).collect()
}
