//! What does not depend on the rules: sets without elements, and the chains.
//!
//! A packet's way, by hook and priority:
//! - prerouting -450 (before defragmentation): fragments, where they are to be dropped
//! - prerouting -150 (after conntrack): `classify` finds the rule of a new flow and marks the flow with it
//! - prerouting -100: `translate`, DNAT by mark, once a flow
//! - prerouting -90: `expire` counts packets that will die of their TTL; the kernel answers them
//! - forward -150: `carry`, every packet of a marked flow (`carried`): MSS, counters
//! - postrouting 100: `source`, SNAT by mark, once a flow
//!
//! Everything after `classify` is one lookup on the connection mark. A chain of ours that accepts ends only
//! itself; chains of others see every packet, and ours sees every packet that theirs accept.

use std::fmt::Write as _;

use proxy_rules::{DropReason, Fragments, Settings, Side, SnatPorts, Unmatched};

use super::Host;

/// Family names of one address family in nft's language.
struct Family {
    /// For set names.
    digit: char,
    ip: &'static str,
    address: &'static str,
    icmp: &'static str,
    icmp_type: &'static str,
    link_local: &'static str,
    multicast: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family {
        digit: '4',
        ip: "ip",
        address: "ipv4_addr",
        icmp: "icmp",
        icmp_type: "icmp",
        link_local: "169.254.0.0/16",
        multicast: "224.0.0.0/4",
    },
    Family {
        digit: '6',
        ip: "ip6",
        address: "ipv6_addr",
        icmp: "ipv6-icmp",
        icmp_type: "icmpv6",
        link_local: "fe80::/10",
        multicast: "ff00::/8",
    },
];

/// `ct mark` has a rule's mark. Never asked the other way round: of a packet without a connection neither holds.
const OURS: &str = "ct mark & 0xf0000000 == 0x50000000";
const TCP_UDP: &str = "meta l4proto { tcp, udp }";

/// The text under construction.
#[derive(Default)]
struct Block {
    text: String,
    chains: Vec<String>,
}

impl Block {
    fn set(&mut self, kind: &str, name: &str, lines: &[&str]) {
        // Writing to a String does not fail.
        let _ = writeln!(self.text, "\t{kind} {name} {{");
        for line in lines {
            let _ = writeln!(self.text, "\t\t{line}");
        }
        self.text.push_str("\t}\n");
    }

    fn chain<S: AsRef<str>>(&mut self, name: &str, rules: impl IntoIterator<Item = S>) {
        let _ = writeln!(self.text, "\tchain {name} {{");
        for rule in rules {
            let _ = writeln!(self.text, "\t\t{}", rule.as_ref());
        }
        self.text.push_str("\t}\n");
        self.chains.push(name.into());
    }
}

/// Body of the table, and the names of its chains.
pub(super) fn block(settings: &Settings, host: &Host) -> (String, Vec<String>) {
    let mut block = Block::default();
    sets(&mut block);
    drops(&mut block);
    classify(&mut block, settings);
    for family in &FAMILIES {
        for side in [Side::Tailnet, Side::Cluster] {
            match_side(&mut block, family, side);
        }
    }
    translate(&mut block, &settings.snat_ports);
    carry(&mut block, host);
    (block.text, block.chains)
}

fn sets(block: &mut Block) {
    for Family { digit, address, .. } in &FAMILIES {
        for side in [Side::Tailnet, Side::Cluster] {
            let key = format!("type {address} . inet_proto . inet_service : mark");
            block.set("map", &format!("{side}{digit}_port"), &[&key]);
            // A map for each protocol. With `meta l4proto` in an interval's key, nft (1.0.6) asks the kernel to swap the
            // two bytes of what has only one, which newer stable kernels refuse (seen: 6.12.117).
            let key = format!("type {address} . inet_service : mark");
            for protocol in ["tcp", "udp", "icmp"] {
                let name = format!("{side}{digit}_range_{protocol}");
                block.set("map", &name, &[&key, "flags interval"]);
            }
            let prefix = format!("type {address}");
            block.set("set", &format!("{side}{digit}_any"), &[&prefix, "flags interval"]);
            block.set("set", &format!("{side}{digit}_all"), &[&prefix, "flags interval"]);
        }
        let prefix = format!("type {address}");
        block.set("set", &format!("protected{digit}"), &[&prefix, "flags interval"]);
        block.set("map", &format!("to{digit}"), &[&format!("type mark : {address}")]);
        block.set(
            "map",
            &format!("to{digit}_port"),
            &[&format!("type mark : {address} . inet_service")],
        );
        block.set("map", &format!("from{digit}"), &[&format!("type mark : {address}")]);
        let tuple =
            format!("type {address} . inet_proto . inet_service . {address} . inet_service");
        block.set("set", &format!("gone{digit}"), &[&tuple, "flags timeout"]);
        block.set("set", &format!("closed{digit}"), &["type ifname"]);
    }
    for name in ["groups", "verdicts", "balance"] {
        block.set("map", name, &["type mark : verdict"]);
    }
    block.set("set", "masquerades", &["type mark"]);
    for name in ["count_original", "count_reply", "count_flows", "count_dropped"] {
        block.set("set", name, &["type mark", "counter"]);
    }
    // What the kernel's settings were before; the comment holds path and value.
    block.set("set", "sysctls", &["type mark"]);
}

fn drops(block: &mut Block) {
    block.set("counter", "mss_clamped", &[]);
    for reason in DropReason::ALL {
        block.set("counter", &format!("drop_{}", reason.label()), &[]);
    }
    for reason in DropReason::ALL {
        let label = reason.label();
        let mut rules = vec!["ct mark @count_dropped".to_owned()];
        if *reason == DropReason::NoFlow {
            // Of a packet without a connection only the packet itself can be marked.
            rules = vec!["meta mark @count_dropped".into()];
        }
        rules.push(format!("counter name drop_{label}"));
        match reason {
            DropReason::Rejected | DropReason::NoBackend | DropReason::BackendGone => {
                // The kernel never answers a reset with a reset, nor an ICMP error with an error.
                rules.push("meta l4proto tcp reject with tcp reset".into());
                if *reason == DropReason::BackendGone {
                    rules.push("drop".into());
                } else {
                    rules.push("reject with icmpx port-unreachable".into());
                }
            }
            _ => rules.push("drop".into()),
        }
        block.chain(&format!("drop_{label}"), rules);
    }
}

/// `iifname { "a", "b" } verdict`, or nothing for a side without devices.
fn from_devices(settings: &Settings, side: Side, verdict: &str) -> Option<String> {
    let names = match side {
        Side::Tailnet => &settings.interfaces.tailnet,
        Side::Cluster => &settings.interfaces.cluster,
    };
    let quoted: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
    (!quoted.is_empty()).then(|| format!("iifname {{ {} }} {verdict}", quoted.join(", ")))
}

fn classify(block: &mut Block, settings: &Settings) {
    if settings.fragments == Fragments::Drop {
        let mut rules =
            vec!["type filter hook prerouting priority -450; policy accept;".to_owned()];
        for side in [Side::Tailnet, Side::Cluster] {
            for (digit, test) in
                [('4', "ip frag-off & 0x3fff != 0 ip"), ('6', "exthdr frag exists ip6")]
            {
                let rule = format!("{test} daddr @{side}{digit}_all goto drop_fragments_disabled");
                rules.extend(from_devices(settings, side, &rule));
            }
        }
        block.chain("fragments", rules);
    }
    let mut rules = vec![
        "type filter hook prerouting priority mangle; policy accept;".to_owned(),
        "ct state established,related accept".into(),
    ];
    for side in [Side::Tailnet, Side::Cluster] {
        rules.extend(from_devices(settings, side, &format!("goto from_{side}")));
    }
    block.chain("classify", rules);
    // A confirmed connection is known, answered or not; only the first packet of one is matched.
    block.chain(
        "from_tailnet",
        [
            "ct status confirmed accept",
            "ct state untracked accept",
            "meta nfproto ipv4 goto tailnet4",
            "goto tailnet6",
        ],
    );
    block.chain(
        "from_cluster",
        [
            "ct status confirmed accept",
            "ip saddr @protected4 goto drop_spoofed_source",
            "ip6 saddr @protected6 goto drop_spoofed_source",
            "ct state untracked accept",
            "meta nfproto ipv4 goto cluster4",
            "goto cluster6",
        ],
    );
    let unmatched: &[&str] = match settings.unmatched {
        Unmatched::Pass => &["accept"],
        Unmatched::Drop => {
            &["fib daddr type { local, broadcast, multicast } accept", "goto drop_no_rule"]
        }
    };
    block.chain("unmatched_tailnet", unmatched);
    block.chain("unmatched_cluster", ["accept"]);
    block.chain(
        "decide",
        [
            "ct mark & 0xf0000000 == 0x60000000 ct mark vmap @groups",
            "fib daddr type local jump local_socket",
            "ct mark vmap @verdicts",
        ],
    );
    // A socket with an address of its own is connected (or, rarely, bound to this address): it owns TCP in
    // mid-stream, also when the kernel began to track connections after it was opened. A listener gives way to a
    // rule that names its port.
    block.chain(
        "local_socket",
        [
            "tcp flags & (syn | ack) != syn socket wildcard 0 ct mark set 0 accept",
            "meta l4proto udp socket wildcard 0 ct mark set 0 accept",
            "ct mark & 0x08000000 == 0 socket transparent 0 ct mark set 0 accept",
        ],
    );
    // A pure SYN may start anew; everything else belongs to a connection that its backend has left.
    block.chain(
        "gone",
        ["tcp flags & (fin | syn | rst | ack) == syn return", "goto drop_backend_gone"],
    );
}

fn match_side(block: &mut Block, family: &Family, side: Side) {
    let Family { digit, ip, icmp, icmp_type, link_local, multicast, .. } = family;
    let name = format!("{side}{digit}");
    let key = format!("{ip} daddr . meta l4proto . th dport");
    let range = |protocol: &str, map: &str, mark: &str| {
        let map = format!("{name}_range_{map}");
        format!("meta l4proto {protocol} {mark} mark set {ip} daddr . th dport map @{map}")
    };
    block.chain(
        &name,
        [
            format!("{ip} saddr . meta l4proto . th sport . {ip} daddr . th dport @gone{digit} jump gone"),
            format!("meta l4proto != {{ tcp, udp, {icmp} }} goto {name}_other"),
            format!("{icmp_type} type != {{ echo-request, echo-reply }} goto {name}_other"),
            format!("{TCP_UDP} th dport 0 goto unmatched_{side}"),
            format!("ct state invalid goto {name}_invalid"),
            format!("ct mark set {key} map @{name}_port goto decide"),
            format!("{} goto decide", range("tcp", "tcp", "ct")),
            format!("{} goto decide", range("udp", "udp", "ct")),
            format!("{} goto decide", range(icmp, "icmp", "ct")),
            format!("goto unmatched_{side}"),
        ],
    );
    block.chain(
        &format!("{name}_other"),
        [
            // Errors of known flows never come here; of unknown ones they are nobody's.
            match digit {
                '4' => format!("icmp type {{ destination-unreachable, time-exceeded, parameter-problem }} goto unmatched_{side}"),
                _ => format!("icmpv6 type {{ destination-unreachable, packet-too-big, time-exceeded, parameter-problem }} goto unmatched_{side}"),
            },
            format!("{ip} daddr {{ {link_local}, {multicast} }} accept"),
            format!("{ip} daddr @{name}_any goto drop_unsupported_protocol"),
            format!("goto unmatched_{side}"),
        ],
    );
    // No connection can be made of it: a reset, an end, an answer to nothing. The packet's own mark serves as
    // scratch space, for the packet is dropped.
    block.chain(
        &format!("{name}_invalid"),
        [
            "fib daddr type local socket transparent 0 accept".to_owned(),
            format!("meta l4proto tcp meta mark set {key} map @{name}_port goto drop_no_flow"),
            format!("{} goto drop_no_flow", range("tcp", "tcp", "meta")),
            format!("goto unmatched_{side}"),
        ],
    );
}

fn translate(block: &mut Block, pool: &SnatPorts) {
    let mut rules = vec!["type nat hook prerouting priority dstnat; policy accept;".to_owned()];
    for Family { digit, ip, .. } in &FAMILIES {
        let family = format!("meta nfproto ipv{digit}");
        rules.push(format!(
            "{family} {TCP_UDP} dnat {ip} addr . port to ct mark map @to{digit}_port"
        ));
        rules.push(format!("{family} dnat {ip} to ct mark map @to{digit}"));
    }
    rules.push("ct mark vmap @balance".into());
    block.chain("translate", rules);

    let (first, last) = usable(pool);
    let mut rules = vec![
        "type nat hook postrouting priority srcnat; policy accept;".to_owned(),
        format!("ct mark @masquerades {TCP_UDP} masquerade to :{first}-{last}"),
        "ct mark @masquerades masquerade".into(),
    ];
    for Family { digit, ip, .. } in &FAMILIES {
        let family = format!("meta nfproto ipv{digit}");
        rules.push(format!(
            "{family} {TCP_UDP} snat {ip} to ct mark map @from{digit} : {first}-{last}"
        ));
        rules.push(format!("{family} snat {ip} to ct mark map @from{digit}"));
    }
    block.chain("source", rules);
}

fn carry(block: &mut Block, host: &Host) {
    block.chain(
        "expire",
        [
            "type filter hook prerouting priority dstnat + 10; policy accept;",
            &format!("ip ttl < 2 {OURS} goto expired"),
            &format!("ip6 hoplimit < 2 {OURS} goto expired"),
        ],
    );
    block.chain(
        "expired",
        ["fib daddr type local return", "ct mark @count_dropped", "counter name drop_ttl_expired"],
    );
    // Where we had to switch forwarding on, it is on for our flows alone.
    let closed6 = if host.ipv6_forwarding_was_off {
        "meta nfproto ipv6 drop"
    } else {
        "meta nfproto ipv6 iifname @closed6 drop"
    };
    block.chain(
        "carry",
        [
            "type filter hook forward priority mangle; policy accept;",
            &format!("{OURS} goto carried"),
            "meta nfproto ipv4 iifname @closed4 drop",
            closed6,
        ],
    );
    block.chain(
        "carried",
        [
            // Both directions: the smaller of the ways to the receiver and back to the sender; never raised.
            "tcp flags syn tcp option maxseg size set rt mtu counter name mss_clamped",
            "ct direction reply ct mark @count_reply accept",
            "ct mark @count_original",
            "ct status ! confirmed ct mark @count_flows",
        ],
    );
}

/// The longest part of the pool that holds no reserved port: the kernel takes one range.
fn usable(pool: &SnatPorts) -> (u16, u16) {
    let mut best = (pool.first, pool.first);
    let mut best_len = 0;
    let mut start = u32::from(pool.first);
    let end = u32::from(pool.last) + 1;
    let reserved = pool.reserved.iter().map(|p| u32::from(*p)).filter(|p| *p >= start && *p < end);
    for stop in reserved.chain([end]).collect::<Vec<_>>() {
        if stop.saturating_sub(start) > best_len {
            best_len = stop - start;
            best = (start as u16, (stop - 1) as u16);
        }
        start = stop + 1;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_outside_the_range() {
        let pool = |reserved: &[u16]| SnatPorts {
            first: 1024,
            last: 65535,
            reserved: reserved.to_vec(),
            tries: 64,
        };
        assert_eq!(usable(&pool(&[])), (1024, 65535));
        assert_eq!(usable(&pool(&[80, 6443, 30000])), (30001, 65535));
        assert_eq!(usable(&pool(&[1024, 65535])), (1025, 65534));
    }
}
