//! Rule tables in few words.

use std::net::{IpAddr, SocketAddr};

use proxy_rules::{
    Action, Affinity, Backend, BackendState, Backends, Interfaces, Match, PortRange, Protocol,
    Rule, RuleId, RuleTable, Settings, Side, Snat,
};

/// The testbed's devices, everything else by default.
pub(crate) fn settings() -> Settings {
    Settings {
        interfaces: Interfaces { tailnet: vec!["tailscale0".into()], cluster: vec!["eth0".into()] },
        ..Settings::default()
    }
}

pub(crate) fn table(rules: impl Into<Vec<Rule>>) -> RuleTable {
    RuleTable::new(rules.into(), settings())
}

/// A rule on one address or prefix and one port (0 = any).
pub(crate) fn rule(
    id: &str,
    from: Side,
    protocol: Protocol,
    dst: &str,
    port: u16,
    action: Action,
) -> Rule {
    let dst = dst.parse().unwrap_or_else(|_| dst.parse::<IpAddr>().unwrap().into());
    let ports = PortRange::single(port).unwrap_or(PortRange::ANY);
    let matches = Match { protocol: Some(protocol), dst, ports, src: Vec::new() };
    Rule { id: RuleId::new(id), from, matches, action, count_per_port: false }
}

/// To these `address:port` or `address` (the packet's own port).
pub(crate) fn dnat(to: &[&str], snat: Snat) -> Action {
    let list = to.iter().map(|to| backend(to)).collect();
    let backends = Backends { list, affinity: Affinity::Flow };
    Action::Dnat { backends, snat, proxy_protocol: false }
}

fn backend(to: &str) -> Backend {
    let (address, port) = match to.parse::<SocketAddr>() {
        Ok(to) => (to.ip(), Some(to.port())),
        Err(_) => (to.parse().unwrap(), None),
    };
    Backend { address, port, weight: 1, state: BackendState::Ready }
}

/// `address:port` of either family.
pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    (address.parse::<IpAddr>().unwrap(), port).into()
}
