//! Program and map names, each proved to fit the kernel's 15 bytes.

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $(
            $(#[$doc])*
            pub const $name: &str = $text;
            const _: () = assert!($text.len() <= 15, "kernel object names have at most 15 bytes");
        )*
    };
}

names! {
    /// TC ingress, Ethernet device, tailnet side.
    TC_L2_TAILNET = "sl_tc_l2_tn";
    /// TC ingress, Ethernet device, cluster side.
    TC_L2_CLUSTER = "sl_tc_l2_cl";
    /// TC ingress, device without link header, tailnet side.
    TC_L3_TAILNET = "sl_tc_l3_tn";
    /// TC ingress, device without link header, cluster side.
    TC_L3_CLUSTER = "sl_tc_l3_cl";
    /// XDP, Ethernet device, tailnet side.
    XDP_TAILNET = "sl_xdp_tn";
    /// XDP, Ethernet device, cluster side.
    XDP_CLUSTER = "sl_xdp_cl";

    /// Array of one [`crate::Globals`].
    GLOBALS = "sl_globals";
    /// Hash: ifindex (u32) -> [`crate::Link`].
    LINKS = "sl_links";
    /// Hash: [`crate::AddressKey`] -> class (u32).
    ADDRESSES = "sl_addresses";
    /// LPM: [`crate::AddressPrefix`] -> class (u32).
    ROUTES = "sl_routes";
    /// Hash: [`crate::PortKey`] -> [`crate::RuleEntry`].
    PORTS = "sl_ports";
    /// LPM: [`crate::PortPrefix`] -> [`crate::RuleEntry`].
    RANGES = "sl_ranges";
    /// LPM: [`crate::SourcePrefix`] -> [`crate::RuleEntry`].
    SOURCES = "sl_sources";
    /// Array: slot -> target index (u32).
    LOOKUP = "sl_lookup";
    /// Array: target index -> [`crate::Target`].
    TARGETS = "sl_targets";
    /// LPM: [`crate::AddressPrefix`] (side 0) -> u32: sources that must not arrive from the cluster side.
    PROTECTED = "sl_protected";
    /// Hash: local address (16 bytes) -> u32.
    LOCAL = "sl_local";
    /// Array of 1024 u64: bitmap of ports never used for SNAT.
    RESERVED = "sl_reserved";
    /// Hash: [`crate::FlowKeyV4`] -> [`crate::FlowHalf`].
    FLOWS_V4 = "sl_flows_v4";
    /// Hash: [`crate::FlowKey`] (of IPv6) -> [`crate::FlowHalf`].
    FLOWS_V6 = "sl_flows_v6";
    /// LRU hash: [`crate::FragmentKey`] -> [`crate::FragmentPorts`].
    FRAGMENTS = "sl_fragments";
    /// LRU hash: [`crate::FlowKey`] -> u32: tuples left to the kernel while another data path hands over.
    LEFT = "sl_left";
    /// Per-CPU array: [`crate::CounterIndex`] -> [`crate::Counter`].
    COUNTERS = "sl_counters";
    /// Hash: series hash (u64) -> [`crate::CounterIndex`]: the agent's own note, for the next agent.
    SERIES = "sl_series";
    /// Per-CPU array: drop reason number -> packets (u64).
    DROPS = "sl_drops";
}
