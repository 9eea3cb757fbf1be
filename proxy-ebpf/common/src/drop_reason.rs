//! Why a packet was dropped: stable numbers, never renumbered, and the metric label of each.

/// Declares the reasons once, so that numbers, labels and the list cannot disagree.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $label:literal;)*) => {
        /// Why a packet was dropped. The number indexes the kernel's counters and is never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum DropReason { $($(#[$doc])* $name = $number,)* }

        impl DropReason {
            /// Every reason, in order of number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The label of metrics and reports: snake case, stable.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }

            /// The reason with this number.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
        }
    };
}

reasons! {
    /// The headers are cut short or contradict each other.
    Malformed = 1, "malformed";
    /// A frontend has no backend that takes new flows.
    NoBackend = 2, "no_backend";
    /// The flow table is full; established flows are kept.
    FlowTableFull = 3, "flow_table_full";
    /// No free source port for the translated flow.
    PortsExhausted = 4, "ports_exhausted";
    /// A later fragment whose first fragment has not been seen.
    FragmentWithoutFirst = 5, "fragment_without_first";
    /// A fragment while `settings.fragments` is `drop`.
    FragmentsDisabled = 6, "fragments_disabled";
    /// A protected (assigned tailnet) source address arrived from the cluster side.
    SpoofedSource = 7, "spoofed_source";
    /// From the tailnet side, to a destination that no rule names, while `settings.unmatched` is `drop`.
    NoRule = 8, "no_rule";
    /// A `reject` rule matched; the sender was told.
    Rejected = 9, "rejected";
    /// A `drop` rule matched.
    RuleDrop = 10, "rule_drop";
    /// The time to live ran out; the sender was told.
    TtlExpired = 11, "ttl_expired";
    /// Larger than the next link's MTU and not to be fragmented; the sender was told.
    TooBig = 12, "too_big";
    /// The flow's backend or rule is gone; a TCP peer was sent a reset.
    BackendGone = 13, "backend_gone";
    /// The kernel refused to change or resize the packet.
    RewriteFailed = 14, "rewrite_failed";
    /// No link of the other side is up.
    NoLink = 15, "no_link";
    /// A protocol or extension header that a matching rule cannot carry.
    UnsupportedProtocol = 16, "unsupported_protocol";
    /// A TCP packet that belongs to no flow and cannot start one (a reset).
    NoFlow = 17, "no_flow";
}

impl DropReason {
    /// One more than the highest number: the size of the counter array.
    pub const SLOTS: u32 = 32;
}
