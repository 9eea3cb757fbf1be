//! Where a flow from another data path belongs in this one.

use std::net::IpAddr;

use proxy_ebpf_common::Hop;
use proxy_rules::{Action, Flow, Rule};

use super::{Running, flows, image};

impl Running {
    /// Where a flow from another data path belongs: the rule that matches it, and the target that it goes to.
    pub(super) fn place(&self, flow: &Flow) -> Option<flows::Place> {
        let rule = self.table.rules().iter().find(|rule| matches(rule, flow))?;
        let slot = self.slots.find(rule, flow.backend)?;
        let to = image::side(match &rule.action {
            Action::Forward { to, .. } => *to,
            _ => rule.from.other(),
        });
        let way = |side: u8, backend: Option<IpAddr>| {
            let known = backend.and_then(|ip| self.hops.get(&ip)).copied();
            let default = self.devices.iter().find(|device| device.link.side == side)?;
            let device = known
                .and_then(|hop| self.devices.iter().find(|device| device.ifindex == hop.ifindex))
                .unwrap_or(default);
            let fresh_until = if device.l3 { Hop::NO_HEADER } else { 0 };
            let unknown = Hop { ifindex: device.ifindex, fresh_until, ..Default::default() };
            Some((known.unwrap_or(unknown), device.link.mtu))
        };
        let (forth, out) = way(to, Some(flow.backend.ip()))?;
        let (back, home) = way(image::side(flow.from), None)?;
        let target = self.image.targets.get(&slot)?;
        let counter = self.slots.counter_of(rule, flow.frontend.port())?;
        Some(flows::Place {
            target: slot,
            epoch: target.epoch,
            counter,
            to,
            hops: [forth, back],
            mtus: [out, home],
        })
    }
}

fn matches(rule: &Rule, flow: &Flow) -> bool {
    let m = &rule.matches;
    rule.from == flow.from
        && m.dst.contains(&flow.frontend.ip())
        && m.protocol.is_none_or(|protocol| protocol == flow.protocol)
        && (m.ports.is_any() || m.ports.contains(flow.frontend.port()))
        && (m.src.is_empty() || m.src.iter().any(|src| src.contains(&flow.client.ip())))
        && matches!(rule.action, Action::Dnat { .. } | Action::Forward { .. })
        && flow.frontend.ip().is_ipv4() == m.dst.addr().is_ipv4()
}
