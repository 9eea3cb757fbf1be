//! Which test target forms which tier. A target that is not here fails the run: no test is left out by oversight.

use std::fmt;

use clap::ValueEnum;
use proxy_testbed_programs::{HELM, KUBERNETES, Programs, TAILNET};

/// A kind of test, from the cheapest to the dearest.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Tier {
    /// Beside the code; examples in the documentation; the repository's own rules.
    Unit,
    /// What is generated, compared with files.
    Golden,
    /// Laws over random values.
    Property,
    /// The parsers on stored and mutated inputs.
    Fuzz,
    /// One packet at a time through the loaded programs.
    Packet,
    /// Random packets through the loaded programs and the model.
    Differential,
    /// Real traffic between network namespaces.
    Namespace,
    /// What every data path must do.
    Laws,
    /// What users ran into.
    Cases,
    /// The binary, started and stopped.
    Process,
    /// Planted faults that the tests must find.
    Faults,
}

impl Tier {
    /// Every tier but the planted faults, which compile everything once for each.
    pub(crate) fn usual() -> Vec<Self> {
        Self::value_variants().iter().copied().filter(|tier| *tier != Self::Faults).collect()
    }

    /// Whether the tests need root and a kernel that loads BPF programs.
    pub(crate) fn needs_kernel(self) -> bool {
        !matches!(self, Self::Unit | Self::Golden | Self::Property | Self::Fuzz)
    }

    /// The tier of an integration test, by its package and name; `None` is an error of the caller's.
    pub(super) fn of(package: &str, name: &str) -> Option<Self> {
        TARGETS
            .iter()
            .find(|target| target.package == package && target.name == name)
            .map(|target| target.tier)
    }

    /// Where an integration test runs.
    pub(super) fn place(package: &str, name: &str) -> Place {
        TARGETS
            .iter()
            .find(|target| target.package == package && target.name == name)
            .map_or(Place::Here, |target| target.place)
    }

    /// What runs of an integration test in a guest without KVM: names that contain one of these; all, if there are none.
    pub(super) fn quick(package: &str, name: &str) -> &'static [&'static str] {
        TARGETS
            .iter()
            .find(|target| target.package == package && target.name == name)
            .map_or(&[], |target| target.quick)
    }

    /// What an integration test needs of the testbed's programs.
    pub(super) fn programs(package: &str, name: &str) -> &'static [Programs] {
        TARGETS
            .iter()
            .find(|target| target.package == package && target.name == name)
            .map_or(&[], |target| target.programs)
    }

    /// Entries whose target is gone; kept entries would hide a renamed test.
    pub(super) fn stale(existing: &[(String, String)]) -> Vec<String> {
        TARGETS
            .iter()
            .filter(|target| {
                !existing
                    .iter()
                    .any(|(package, name)| target.package == package && target.name == name)
            })
            .map(|target| format!("{} {}", target.package, target.name))
            .collect()
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_possible_value() {
            Some(value) => formatter.write_str(value.get_name()),
            None => Ok(()),
        }
    }
}

/// Where tests run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// On this machine's kernel: what they test does not depend on it.
    Here,
    /// On this machine's kernel and on the others: what they test depends on its version.
    Everywhere,
    /// On the other kernels only: they need modules that a machine's kernel may lack.
    Guests,
}

impl Place {
    pub(crate) fn is_here(self) -> bool {
        self != Self::Guests
    }

    pub(crate) fn is_guest(self) -> bool {
        self != Self::Here
    }
}

struct Target {
    package: &'static str,
    name: &'static str,
    tier: Tier,
    place: Place,
    quick: &'static [&'static str],
    /// What it starts of the programs that `cargo xtask testbed` builds.
    programs: &'static [Programs],
}

impl Target {
    const fn on_a_tailnet(self) -> Self {
        Self { programs: &[TAILNET], ..self }
    }

    /// Kept apart from the others: its programs take minutes to build, once.
    const fn with_kubernetes(self) -> Self {
        Self { programs: &[KUBERNETES], ..self }
    }

    const fn with_helm(self) -> Self {
        Self { programs: &[HELM], ..self }
    }

    const fn on_a_tailnet_with_kubernetes(self) -> Self {
        Self { programs: &[TAILNET, KUBERNETES], ..self }
    }

    /// Emulated, a kernel takes four minutes for what is named; all of it would take twice that.
    const fn emulated(self, quick: &'static [&'static str]) -> Self {
        Self { quick, ..self }
    }
}

const fn here(package: &'static str, name: &'static str, tier: Tier) -> Target {
    Target { package, name, tier, place: Place::Here, quick: &[], programs: &[] }
}

const fn everywhere(package: &'static str, name: &'static str, tier: Tier) -> Target {
    Target { package, name, tier, place: Place::Everywhere, quick: &[], programs: &[] }
}

const fn in_guests(package: &'static str, name: &'static str, tier: Tier) -> Target {
    Target { package, name, tier, place: Place::Guests, quick: &[], programs: &[] }
}

const TARGETS: &[Target] = &[
    here("xtask", "tidy", Tier::Unit),
    here("xtask", "tasks", Tier::Unit),
    here("proxy-rules", "config", Tier::Golden),
    here("operator", "definitions", Tier::Golden),
    here("xtask", "chart", Tier::Golden).with_helm(),
    here("operator", "readable", Tier::Property),
    here("operator", "crds", Tier::Namespace).with_kubernetes(),
    here("proxy-testbed", "topology", Tier::Namespace),
    here("proxy-testbed", "tailnet", Tier::Namespace).on_a_tailnet(),
    here("proxy-testbed", "kubernetes", Tier::Namespace).on_a_tailnet_with_kubernetes(),
    everywhere("proxy", "ebpf", Tier::Namespace).emulated(&[
        "carry::tcp_is_carried",
        "carry::a_subnet_route",
        "lifecycle::a_new_agent",
        "lifecycle::removal",
    ]),
    everywhere("proxy", "nftables", Tier::Namespace).emulated(&[
        "carry::each_port",
        "carry::egress",
        "carry::new_flows",
        "carry::tcp_udp_and_icmp",
        "carry::the_mss",
        "lifecycle::a_process_that_was_killed",
        "lifecycle::counters",
        "lifecycle::live_flows",
        "limits::",
    ]),
    everywhere("proxy", "laws", Tier::Laws).emulated(&[
        "nftables",
        "ebpf::established",
        "ebpf::counters",
    ]),
    here("proxy", "cases", Tier::Cases),
    here("proxy", "userspace", Tier::Namespace),
    here("proxy", "process", Tier::Process),
    here("proxy", "tailnet", Tier::Namespace).on_a_tailnet_with_kubernetes(),
    here("proxy", "continuity", Tier::Process),
    here("operator", "tailnet_api", Tier::Namespace).on_a_tailnet_with_kubernetes(),
    here("benches", "tailnet", Tier::Process).on_a_tailnet(),
    here("proxy", "localapi", Tier::Namespace).on_a_tailnet(),
    here("proxy", "tailscaled", Tier::Process).on_a_tailnet(),
    here("proxy", "state_secret", Tier::Namespace).with_kubernetes(),
    here("operator", "standalone", Tier::Namespace).with_kubernetes(),
    here("operator", "traffic", Tier::Namespace).on_a_tailnet_with_kubernetes(),
    here("operator", "running", Tier::Process).with_kubernetes(),
    here("operator", "nameserver", Tier::Process),
    here("operator", "kinds", Tier::Namespace).with_kubernetes(),
    here("operator", "groups", Tier::Namespace).with_kubernetes(),
    here("operator", "ha", Tier::Namespace).with_kubernetes(),
    everywhere("proxy", "packet", Tier::Packet),
    in_guests("proxy", "kernel_coexistence", Tier::Namespace),
    here("proxy", "scale", Tier::Packet),
    here("fuzz", "replay", Tier::Fuzz),
    here("proxy-rules", "model", Tier::Property),
];
