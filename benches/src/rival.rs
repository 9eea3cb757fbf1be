//! What Sluice is measured against: the kernel's own ways, each as lean as its users can have it.

use std::fmt::Write;

use anyhow::Result;
use proxy_rules::Protocol;

use crate::{
    generator::{BACKEND_PORT, FIRST_PORT},
    rig::Lane,
};

/// The ports that a lane publishes: `FIRST_PORT` and those after it.
pub fn ports(count: u16) -> impl Iterator<Item = u16> {
    FIRST_PORT..FIRST_PORT + count
}

/// Connection tracking and nothing else.
pub fn conntrack(lane: &Lane) -> Result<()> {
    lane.allow_forwarding()?;
    nft(
        lane,
        "table ip bench { chain forward { type filter hook forward priority filter; policy accept;
           ct state established,related,new accept; }; }",
    )
}

/// One map from port to backend: the best that nftables has.
pub fn nft_map(lane: &Lane, protocol: Protocol, count: u16) -> Result<()> {
    lane.allow_forwarding()?;
    let backend = lane.backend();
    let mut elements = String::new();
    for port in ports(count) {
        write!(elements, "{protocol} . {port} : {backend} . {BACKEND_PORT}, ")?;
    }
    nft(
        lane,
        &format!(
            "table ip bench {{
               map ports {{ type inet_proto . inet_service : ipv4_addr . inet_service
                 elements = {{ {elements} }}; }}
               chain prerouting {{ type nat hook prerouting priority dstnat; policy accept;
                 dnat ip to meta l4proto . th dport map @ports; }}; }}"
        ),
    )
}

/// The layout of the proxy that Sluice replaces: a base chain for a Service with one rule a port, the newest first,
/// and the chains that it and its tunnel keep beside it. Its source translation is left out, as on every rung: that
/// favours it. `oifname` is empty in prerouting, so that condition always holds; it is tested all the same.
pub fn nft_upstream(lane: &Lane, protocol: Protocol, count: u16) -> Result<()> {
    lane.allow_forwarding()?;
    let backend = lane.backend();
    let mut rules = String::new();
    for port in ports(count).collect::<Vec<_>>().into_iter().rev() {
        writeln!(
            rules,
            "oifname != \"cl0\" meta l4proto {protocol} th dport {port} dnat to {backend}:{BACKEND_PORT}"
        )?;
    }
    nft(
        lane,
        &format!(
            "table ip nat {{
               chain PREROUTING {{ type nat hook prerouting priority dstnat; policy accept; }}
               chain default-db {{ type nat hook prerouting priority dstnat; policy accept;
                 {rules} }}
               chain ts-postrouting {{ meta mark & 0x00ff0000 == 0x00040000 masquerade; }}
               chain POSTROUTING {{ type nat hook postrouting priority srcnat; policy accept;
                 jump ts-postrouting; }}; }}
             table ip filter {{
               chain ts-clamp {{ type filter hook forward priority mangle; policy accept;
                 oifname \"cl0\" tcp flags & syn != 0 tcp option maxseg size set rt mtu
                 iifname \"cl0\" tcp flags & syn != 0 tcp option maxseg size set rt mtu; }}
               chain ts-forward {{
                 iifname \"cl0\" meta mark set meta mark & 0xff00ffff ^ 0x00040000
                 meta mark & 0x00ff0000 == 0x00040000 accept
                 oifname \"cl0\" ip saddr 100.64.0.0/10 drop
                 oifname \"cl0\" accept; }}
               chain FORWARD {{ type filter hook forward priority filter; policy accept;
                 jump ts-forward; }}; }}
             table ip mangle {{
               chain PREROUTING {{ type filter hook prerouting priority mangle; policy accept;
                 ct state established,related ct mark & 0x00ff0000 != 0 meta mark set ct mark & 0x00ff0000; }}
               chain OUTPUT {{ type route hook output priority mangle; policy accept;
                 ct state new meta mark & 0x00ff0000 != 0 ct mark set meta mark & 0x00ff0000; }}; }}"
        ),
    )
}

/// One rule a port in the kernel's older tables.
pub fn iptables(lane: &Lane, protocol: Protocol, count: u16) -> Result<()> {
    lane.allow_forwarding()?;
    let backend = lane.backend();
    let mut script = String::from("*nat\n");
    for port in ports(count) {
        writeln!(
            script,
            "-A PREROUTING -p {protocol} -m {protocol} --dport {port} -j DNAT \
             --to-destination {backend}:{BACKEND_PORT}"
        )?;
    }
    script.push_str("COMMIT\n");
    lane.router.pipe("iptables-legacy-restore", &["--wait"], &script)
}

fn nft(lane: &Lane, script: &str) -> Result<()> {
    lane.router.pipe("nft", &["-f", "-"], script)
}
