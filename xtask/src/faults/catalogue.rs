//! The mistakes: each was made in some real data path, or is what a test claims to look at.

/// A mistake and where it goes.
pub(super) struct Fault {
    pub(super) name: &'static str,
    /// What goes wrong, in one line.
    pub(super) story: &'static str,
    /// The file in `proxy-ebpf/src`.
    pub(super) file: &'static str,
    /// The right text, which must be there exactly once.
    pub(super) find: &'static str,
    /// The wrong text.
    pub(super) replace: &'static str,
}

/// The integration tests that must find them.
pub(super) const TESTS: [&str; 1] = ["packet"];

const fn fault(
    name: &'static str,
    story: &'static str,
    file: &'static str,
    find: &'static str,
    replace: &'static str,
) -> Fault {
    Fault { name, story, file, find, replace }
}

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "sum-not-complemented",
        "the old checksum enters the update without its complement",
        "checksum.rs",
        "!fold16((!old) as u64 + difference)",
        "!fold16(old as u64 + difference)",
    ),
    fault(
        "header-length-ignored",
        "IPv4 options are taken for the transport header",
        "parse.rs",
        "u32::from(version_ihl & 0xf) * 4;",
        "u32::from(version_ihl & 0xf).min(5) * 4;",
    ),
    fault(
        "fragments-ignored",
        "a later fragment's data is taken for ports",
        "parse.rs",
        "    if offset != 0 {",
        "    if offset == 0x7fff {",
    ),
    fault(
        "short-tcp-accepted",
        "a TCP header cut short is carried",
        "parse.rs",
        "if data_offset >> 4 < 5 {",
        "if data_offset >> 4 < 1 {",
    ),
    fault(
        "padding-taken-for-tcp",
        "a segment cut short by the IP length is read on into the frame's padding",
        "parse.rs",
        "if room < 20 {",
        "if room < 1 {",
    ),
    fault(
        "padding-taken-for-options",
        "TCP options that run beyond the IP packet are clamped in the frame's padding",
        "mss.rs",
        "if end_of_options > end {",
        "if end_of_options > end + 64 {",
    ),
    fault(
        "length-unchecked",
        "a total length beyond the packet's end is believed",
        "parse.rs",
        "|| h.ip_len < header
        || h.ip_len + LINK as u32 > packet.len()",
        "|| h.ip_len < header",
    ),
    fault(
        "group-addresses-carried",
        "Ethernet multicast is taken for ours",
        "parse.rs",
        "head.to_ne_bytes()[0] & 1 != 0 ||",
        "head.to_ne_bytes()[0] & 1 > 1 ||",
    ),
    fault(
        "ttl-kept",
        "the time to live is not decremented on IPv4",
        "carry.rs",
        "u32::from_ne_bytes([ttl.wrapping_sub(1), protocol, sum_a, sum_b])",
        "u32::from_ne_bytes([ttl, protocol, sum_a, sum_b])",
    ),
    fault(
        "hop-limit-kept",
        "the hop limit is not decremented on IPv6",
        "carry.rs",
        "u32::from_ne_bytes([a, b, next, ttl.wrapping_sub(1)])",
        "u32::from_ne_bytes([a, b, next, ttl])",
    ),
    fault(
        "last-hop-carried",
        "a packet of a known flow leaves with a time to live of zero",
        "carry.rs",
        "if h.ttl <= 1 {",
        "if h.ttl == 0 {",
    ),
    fault(
        "port-at-sum",
        "the TCP checksum is looked for two bytes too early",
        "carry.rs",
        "kind::TCP => l4 + 16,",
        "kind::TCP => l4 + 14,",
    ),
    fault(
        "half-an-address",
        "only the last word of a quoted IPv6 address enters the checksum",
        "carry.rs",
        "    if !v6 {
        return last;
    }
    last + ",
        "    if !v6 || old[3] != new[3] {
        return last;
    }
    last + ",
    ),
    fault(
        "three-words-of-four",
        "the first word of an IPv6 address does not enter the checksum",
        "carry.rs",
        "difference += checksum::replace((*ip)[2 + index], src[index]);",
        "difference += checksum::replace((*ip)[2 + index], src[index]) * (index as u64).min(1);",
    ),
    fault(
        "express-length-unchecked",
        "on the express path a total length beyond the packet's end is believed",
        "express.rs",
        "if ip_len < least || ip_len + P::LINK as u32 > packet.len() {",
        "if ip_len < least {",
    ),
    fault(
        "express-padding",
        "on the express path a segment cut short by the IP length is read on into the frame's padding",
        "express.rs",
        "if ip_len < least || ip_len",
        "if ip_len < 20 || ip_len",
    ),
    fault(
        "express-fragments",
        "the express path takes a fragment for a whole packet",
        "express.rs",
        "version_ihl != 0x45 || fragment != 0 || ttl <= 1",
        "version_ihl != 0x45 || ttl <= 1",
    ),
    fault(
        "express-options",
        "the express path takes IPv4 options for the transport header",
        "express.rs",
        "version_ihl != 0x45 || fragment",
        "version_ihl & 0x45 != 0x45 || fragment",
    ),
    fault(
        "express-last-hop",
        "the express path lets a packet go with a hop limit of zero",
        "express.rs",
        "(*ip).to_ne_bytes()[0] >> 4 != 6 || ttl <= 1",
        "(*ip).to_ne_bytes()[0] >> 4 != 6 || ttl == 0",
    ),
    fault(
        "express-too-big",
        "the express path sends a packet larger than the link",
        "express.rs",
        "(flow.mtu != 0 && ip_len > u32::from(flow.mtu)",
        "(flow.mtu == 1 && ip_len > u32::from(flow.mtu)",
    ),
    fault(
        "express-closes",
        "the express path carries a FIN, and the flow never ends",
        "express.rs",
        "flags & (flag::FIN | flag::SYN | flag::RST) != 0",
        "flags & (flag::SYN | flag::RST) != 0",
    ),
    fault(
        "express-group-addresses",
        "the express path takes Ethernet multicast for ours",
        "express.rs",
        "(*ethernet).to_ne_bytes()[0] & 1 != 0",
        "(*ethernet).to_ne_bytes()[0] & 1 > 1",
    ),
    fault(
        "never-cares",
        "the other half is not told where packets come from, nor rebuilt",
        "carry.rs",
        "before == 0 || (now / CARE_EVERY)",
        "before == u32::MAX || (now / CARE_EVERY)",
    ),
    fault(
        "dead-backend-served",
        "a flow outlives its backend",
        "carry.rs",
        ".filter(|target| target.epoch == flow.epoch)",
        ".filter(|target| target.epoch == flow.epoch || flow.epoch != 0)",
    ),
    fault(
        "too-big-carried",
        "a packet larger than the link is sent",
        "carry.rs",
        "if flow.mtu != 0 && h.ip_len > u32::from(flow.mtu)",
        "if flow.mtu == 1 && h.ip_len > u32::from(flow.mtu)",
    ),
    fault(
        "frames-counted",
        "bytes are those of the Ethernet frame",
        "carry.rs",
        "count::carried(flow.counter, flow.flags, h.ip_len);",
        "count::carried(flow.counter, flow.flags, h.ip_len + 14);",
    ),
    fault(
        "replies-counted-as-requests",
        "both directions count as one",
        "count.rs",
        "let reply = u64::from(flags & half::REPLY);",
        "let reply = u64::from(flags & half::REPLY) & 2;",
    ),
    fault(
        "odd-mss-sum",
        "an MSS option at an odd offset is summed as if at an even one",
        "mss.rs",
        "if (place - l4) & 1 == 0 {",
        "if (place - l4) & 1 <= 1 {",
    ),
    fault(
        "mss-raised",
        "an MSS below the link's is raised to it",
        "mss.rs",
        "if u16::from_be_bytes(old) <= mss {",
        "if u16::from_be_bytes(old) == mss {",
    ),
    fault(
        "quote-port-kept",
        "the packet that an ICMP error quotes keeps the translated ports",
        "icmp.rs",
        "if echo { [a, b, e, f] } else { [a, b, c, d] });",
        "if echo { [a, b, e, f] } else { old.to_ne_bytes() });",
    ),
    fault(
        "spoofed-source",
        "a tailnet address is believed from the cluster side",
        "create.rs",
        "key.side == side::CLUSTER && policy::is_protected",
        "key.side == 0xff && policy::is_protected",
    ),
    fault(
        "answer-starts-flow",
        "a SYN-ACK nobody asked for starts a flow",
        "create.rs",
        "flags & (flag::RST | flag::FIN) != 0 || flags & (flag::SYN | flag::ACK) == flag::SYN | flag::ACK",
        "flags & (flag::RST | flag::FIN) != 0",
    ),
    fault(
        "reserved-port-taken",
        "a reserved port is used as source port",
        "create.rs",
        "|| is_reserved(port as u16)) {",
        "|| is_reserved(port as u16) && search.count == 0) {",
    ),
    fault(
        "ranges-missed",
        "a port in a range is not found",
        "policy.rs",
        "class & CLASS_HAS_RANGES != 0",
        "class == CLASS_HAS_RANGES",
    ),
    fault(
        "sources-ignored",
        "a rule for some sources serves all",
        "policy.rs",
        "if entry.source_group == 0 { entry }",
        "if entry.source_group != u32::MAX { entry }",
    ),
    fault(
        "express-notes-what-it-leaves",
        "flows whose packets the express path leaves to the engine are not looked after",
        "express.rs",
        "        return None;\n    }\n    // Not before this packet",
        "        flow.last_seen = now;\n        return None;\n    }\n    // Not before this packet",
    ),
];
