//! Every map, by the names of `proxy_ebpf_common::name`. The user side sets the real capacities at load.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    macros::map,
    maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray},
};
use proxy_ebpf_common::{
    Address, AddressKey, AddressPrefix, Counter, DropReason, FlowHalf, FlowKey, FlowKeyV4,
    FragmentKey, FragmentPorts, Globals, Link, PortKey, PortPrefix, RuleEntry, SourcePrefix,
    Target,
};

#[map(name = "sl_globals")]
pub(crate) static GLOBALS: Array<Globals> = Array::with_max_entries(1, 0);
#[map(name = "sl_links")]
pub(crate) static LINKS: HashMap<u32, Link> = HashMap::with_max_entries(64, 0);
#[map(name = "sl_addresses")]
pub(crate) static ADDRESSES: HashMap<AddressKey, u32> =
    HashMap::with_max_entries(1024, BPF_F_NO_PREALLOC);
#[map(name = "sl_routes")]
pub(crate) static ROUTES: LpmTrie<AddressPrefix, u32> =
    LpmTrie::with_max_entries(1024, BPF_F_NO_PREALLOC);
#[map(name = "sl_ports")]
pub(crate) static PORTS: HashMap<PortKey, RuleEntry> =
    HashMap::with_max_entries(1024, BPF_F_NO_PREALLOC);
#[map(name = "sl_ranges")]
pub(crate) static RANGES: LpmTrie<PortPrefix, RuleEntry> =
    LpmTrie::with_max_entries(1024, BPF_F_NO_PREALLOC);
#[map(name = "sl_sources")]
pub(crate) static SOURCES: LpmTrie<SourcePrefix, RuleEntry> =
    LpmTrie::with_max_entries(1024, BPF_F_NO_PREALLOC);
#[map(name = "sl_lookup")]
pub(crate) static LOOKUP: Array<u32> = Array::with_max_entries(1024, 0);
#[map(name = "sl_targets")]
pub(crate) static TARGETS: Array<Target> = Array::with_max_entries(1024, 0);
#[map(name = "sl_protected")]
pub(crate) static PROTECTED: LpmTrie<AddressPrefix, u32> =
    LpmTrie::with_max_entries(1024, BPF_F_NO_PREALLOC);
#[map(name = "sl_local")]
pub(crate) static LOCAL: HashMap<Address, u32> = HashMap::with_max_entries(1024, BPF_F_NO_PREALLOC);
#[map(name = "sl_reserved")]
pub(crate) static RESERVED: Array<u64> = Array::with_max_entries(1024, 0);
/// Grown on demand: a proxy with few flows pays for few. Elements are freed after a grace period of the
/// allocator, not at once; a program that still reads one sees old data, never another key's.
#[map(name = "sl_flows_v4")]
pub(crate) static FLOWS_V4: HashMap<FlowKeyV4, FlowHalf> =
    HashMap::with_max_entries(1024, BPF_F_NO_PREALLOC);
#[map(name = "sl_flows_v6")]
pub(crate) static FLOWS_V6: HashMap<FlowKey, FlowHalf> =
    HashMap::with_max_entries(1024, BPF_F_NO_PREALLOC);
#[map(name = "sl_fragments")]
pub(crate) static FRAGMENTS: LruHashMap<FragmentKey, FragmentPorts> =
    LruHashMap::with_max_entries(8192, 0);
/// Tuples of packets that were left to the kernel while another data path hands over.
#[map(name = "sl_left")]
pub(crate) static LEFT: LruHashMap<FlowKey, u32> = LruHashMap::with_max_entries(16_384, 0);
#[map(name = "sl_counters")]
pub(crate) static COUNTERS: PerCpuArray<Counter> = PerCpuArray::with_max_entries(1024, 0);
/// The agent's own note of what each counter is; the programs never read it.
#[map(name = "sl_series")]
pub(crate) static SERIES: HashMap<u64, u32> = HashMap::with_max_entries(131_072, BPF_F_NO_PREALLOC);
#[map(name = "sl_drops")]
pub(crate) static DROPS: PerCpuArray<u64> = PerCpuArray::with_max_entries(DropReason::SLOTS, 0);
/// Working space of one packet; never read by the user side.
#[map(name = "sl_scratch")]
pub(crate) static SCRATCH: PerCpuArray<crate::create::Scratch> =
    PerCpuArray::with_max_entries(1, 0);
