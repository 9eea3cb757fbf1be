//! Step 6: what becomes of a flow's first packet.

use std::net::SocketAddr;

use proxy_ebpf_common::tuple_hash;

use super::{
    Model, Step, Stop,
    flows::{Entry, Family, Place, Seen, Tuple},
    is_local_scope,
};
use crate::{
    Action, Affinity, Backend, Backends, DropReason, Protocol, Rule, Series, Side, Unmatched,
    maglev,
    packet::{Kind, flag},
};

/// Whose a packet to this host is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Nobody,
    Listening,
    Connected,
}

impl Model {
    /// Makes a flow, or says why not.
    pub(super) fn decide(&mut self, step: &mut Step<'_>, key: Tuple) -> Result<Place, Stop> {
        let settings = self.table.settings();
        let src = key.src.ip();
        if key.side == Side::Cluster && settings.protected.iter().any(|net| net.contains(&src)) {
            return Err(Stop::Drop(DropReason::SpoofedSource));
        }
        if self.env.known_flows_only || (key.protocol != Protocol::Icmp && key.dst.port() == 0) {
            return Err(Stop::Pass);
        }
        let Some(rule) = self.table.rules().iter().find(|rule| matches(rule, &key)).cloned() else {
            step.say("no rule");
            let is_ours = self.env.local.contains(&key.dst.ip()) || is_local_scope(key.dst.ip());
            let drops = key.side == Side::Tailnet && settings.unmatched == Unmatched::Drop;
            return Err(if drops && !is_ours {
                Stop::Drop(DropReason::NoRule)
            } else {
                Stop::Pass
            });
        };
        if self.env.local.contains(&key.dst.ip()) {
            if step.headers.echo_reply {
                step.say("the answer to a ping of this host's own");
                return Err(Stop::Pass);
            }
            match self.owner(&key) {
                Owner::Connected => return Err(Stop::Pass),
                Owner::Listening if !rule.matches.ports.is_single() => return Err(Stop::Pass),
                _ => {}
            }
        }
        step.say(format!("rule `{}`", rule.id));
        let series = Series::of(&rule, rule.counts_each_port().then_some(key.dst.port()));
        step.series = Some(series.clone());
        let entry = self.admit(step, &rule, key, series)?;
        let live = self.flows.len_of(Family::of(key.dst.ip()));
        if live >= self.table.settings().max_flows as usize {
            return Err(Stop::Drop(DropReason::FlowTableFull));
        }
        self.counters.series.entry(entry.series.clone()).or_default().flows += 1;
        Ok(self.flows.insert(entry))
    }

    fn admit(
        &self,
        step: &mut Step<'_>,
        rule: &Rule,
        key: Tuple,
        series: Series,
    ) -> Result<Entry, Stop> {
        if step.headers.ttl <= 1 {
            return Err(Stop::Answer(DropReason::TtlExpired));
        }
        match rule.action {
            Action::Reject => return Err(Stop::Answer(DropReason::Rejected)),
            Action::Drop(reason) => return Err(Stop::Drop(reason)),
            Action::Dnat { .. } | Action::Forward { .. } => {}
        }
        if let Kind::Tcp(flags) = step.headers.kind
            && cannot_start(flags)
        {
            return Err(Stop::Drop(DropReason::NoFlow));
        }
        let (backend, backend_port, to, snat) = match &rule.action {
            Action::Dnat { backends, snat, .. } => {
                let backend = choose(backends, &key).ok_or(Stop::Answer(DropReason::NoBackend))?;
                let is_echo = key.protocol == Protocol::Icmp;
                let port = backend.port.filter(|_| !is_echo).unwrap_or(key.dst.port());
                (SocketAddr::new(backend.address, port), backend.port, key.side.other(), *snat)
            }
            Action::Forward { to, snat } => (key.dst, None, *to, *snat),
            Action::Reject | Action::Drop(_) => return Err(Stop::Pass),
        };
        step.say(format!("backend {backend}"));
        let out = self.env.device(to).ok_or(Stop::Drop(DropReason::NoLink))?;
        let reply = self.translate(step, key, backend, (to, out), snat)?;
        let in_mtu = self.env.device(key.side).map_or(out.mtu, |device| device.mtu);
        let headers = if step.headers.is_ipv6() { 60 } else { 40 };
        Ok(Entry {
            original: key,
            reply,
            rule: rule.id.clone(),
            backend_port,
            is_dnat: matches!(rule.action, Action::Dnat { .. }),
            series,
            mss: out.mtu.min(in_mtu).saturating_sub(headers),
            seen: [Seen::default(); 2],
        })
    }

    /// Whose a packet with this tuple is on this host.
    pub(super) fn owner(&self, key: &Tuple) -> Owner {
        let is_here = |local: SocketAddr| {
            local.port() == key.dst.port()
                && local.is_ipv4() == key.dst.is_ipv4()
                && (local.ip() == key.dst.ip() || local.ip().is_unspecified())
        };
        let sockets = self.env.sockets.iter();
        let own = sockets.filter(|s| s.protocol == key.protocol && is_here(s.local));
        own.fold(Owner::Nobody, |found, socket| match (found, socket.remote) {
            (Owner::Connected, _) => Owner::Connected,
            (_, Some(remote)) if remote == key.src => Owner::Connected,
            (_, None) => Owner::Listening,
            (found, Some(_)) => found,
        })
    }

    /// Whether the flow is to be forgotten and its packet decided anew (`true`), or stays (`false`).
    pub(super) fn life(&mut self, step: &mut Step<'_>, place: Place) -> Result<bool, Stop> {
        let Some(entry) = self.flows.entry(place.id) else { return Ok(true) };
        let is_alive = self.table.rules().iter().any(|rule| keeps(rule, entry));
        let opens = match step.headers.kind {
            Kind::Tcp(flags) => !place.is_reply && flags & (flag::SYN | flag::ACK) == flag::SYN,
            _ => false,
        };
        // A later fragment shows no segment: like a datagram, it is decided on anew and finds itself alone.
        let is_tcp = matches!(step.headers.kind, Kind::Tcp(_));
        if is_alive {
            return Ok(opens && entry.is_over());
        }
        step.say("its backend or rule is gone");
        if opens || (!is_tcp && !place.is_reply) {
            return Ok(true);
        }
        step.series = Some(entry.series.clone());
        self.flows.remove(place.id);
        let reason = DropReason::BackendGone;
        Err(if is_tcp { Stop::Answer(reason) } else { Stop::Drop(reason) })
    }
}

fn matches(rule: &Rule, key: &Tuple) -> bool {
    let m = &rule.matches;
    let port = match key.protocol {
        Protocol::Icmp => m.ports.is_any(),
        Protocol::Tcp | Protocol::Udp => m.ports.contains(key.dst.port()),
    };
    rule.from == key.side
        && m.protocol.is_none_or(|protocol| protocol == key.protocol)
        && m.dst.contains(&key.dst.ip())
        && port
        && (m.src.is_empty() || m.src.iter().any(|net| net.contains(&key.src.ip())))
}

/// A segment that belongs to a conversation that must already be known.
const fn cannot_start(flags: u8) -> bool {
    let both = flag::SYN | flag::ACK;
    flags & (flag::RST | flag::FIN) != 0 || flags & both == both
}

fn choose<'a>(backends: &'a Backends, key: &Tuple) -> Option<&'a Backend> {
    let table = backends.lookup_table();
    let hash = tuple_hash(&key.map_key(), backends.affinity == Affinity::ClientIp);
    let index = table.get(maglev::slot(hash, table.len()))?;
    backends.list.get(*index as usize)
}

/// Whether a rule still has the flow's backend, ready or draining (or still forwards, where there is none).
pub(super) fn keeps(rule: &Rule, entry: &Entry) -> bool {
    if rule.id != entry.rule || rule.from != entry.original.side {
        return false;
    }
    match &rule.action {
        Action::Dnat { backends, .. } => {
            let is_ours = |backend: &Backend| {
                backend.address == entry.reply.src.ip() && backend.port == entry.backend_port
            };
            entry.is_dnat && backends.list.iter().any(is_ours)
        }
        Action::Forward { .. } => {
            !entry.is_dnat && rule.matches.dst.contains(&entry.original.dst.ip())
        }
        Action::Reject | Action::Drop(_) => false,
    }
}
