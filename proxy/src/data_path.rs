//! How a rule table becomes traffic: one trait, three implementations.

use proxy_rules::{Flow, RuleTable, Snapshot};

pub mod ebpf;
pub mod nftables;
pub mod select;
pub mod switch;
pub mod userspace;

/// The data paths, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// eBPF programs on TC (and XDP).
    Ebpf,
    /// A table of the kernel's nftables.
    Nftables,
    /// Sockets of this process.
    Userspace,
}

impl Kind {
    /// Every kind, best first.
    pub const ALL: [Self; 3] = [Self::Ebpf, Self::Nftables, Self::Userspace];

    /// Name in configuration, metrics and reports.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Nftables => "nftables",
            Self::Userspace => "userspace",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.label())
    }
}

/// Why a data path cannot carry a table here. The message says what is missing and what would help.
#[derive(Debug, thiserror::Error)]
pub enum Unsupported {
    /// The binary was built without the eBPF object.
    #[error(
        "this binary was built without the eBPF programs: build with `cargo xtask build-ebpf` first"
    )]
    BuiltWithout,
    /// A capability is missing.
    #[error("capability {0} is missing: add it to the container's securityContext.capabilities")]
    Capability(&'static str),
    /// The kernel refused something that the path needs.
    #[error("the kernel refuses {what}")]
    Kernel {
        /// What was tried.
        what: String,
        /// The answer.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A program is missing.
    #[error("{program} is not installed or does not run: {reason}")]
    Program {
        /// Which.
        program: &'static str,
        /// What was seen.
        reason: String,
    },
    /// A device that the settings name does not exist.
    #[error("interface {0} does not exist: create it or change settings.interfaces")]
    Interface(String),
    /// A rule asks for something that this path cannot do.
    #[error("rule {rule}: {feature} needs another data path")]
    Feature {
        /// The rule.
        rule: String,
        /// What it asks for.
        feature: &'static str,
    },
}

/// Why a table could not be applied. The one before it is still in force.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The path cannot carry it.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// More rules, backends or series than the maps hold.
    #[error("{what}: {wanted} wanted, {limit} possible")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many the table needs.
        wanted: usize,
        /// How many fit.
        limit: usize,
    },
    /// A step failed.
    #[error("{step}")]
    Step {
        /// What was being attempted.
        step: String,
        /// The answer.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ApplyError {
    /// A failed step.
    pub fn step(
        step: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Step { step: step.into(), source: source.into() }
    }
}

/// Why counters or flows could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub struct CounterError {
    /// What was being attempted.
    pub step: String,
    /// The answer.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// What a path may do with packets that belong to no flow it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// Carry everything.
    All,
    /// Carry known flows and leave the rest to the kernel, while another path takes over or hands over.
    KnownFlows,
    /// Carry everything but flows of which a packet was left to the kernel under [`Stance::KnownFlows`], until the
    /// last of them are taken over.
    Handover,
}

/// A way to carry a rule table. `apply` is declarative: rules are data, never methods.
pub trait DataPath: Send {
    /// Which one.
    fn kind(&self) -> Kind;

    /// Whether this table can be carried here, found out by trying; leaves nothing behind.
    fn supports(&self, table: &RuleTable) -> Result<(), Unsupported>;

    /// Does what is slow and needs no rule, ahead of the first `apply`; nothing is carried yet, and nothing that an earlier
    /// process has left is touched. Only the settings of `table` are looked at.
    fn prepare(&mut self, _table: &RuleTable) -> Result<(), ApplyError> {
        Ok(())
    }

    /// Makes exactly this table be in force: idempotent, all or nothing.
    fn apply(&mut self, table: &RuleTable) -> Result<(), ApplyError>;

    /// Reads the counters.
    fn counters(&self) -> Result<Snapshot, CounterError>;

    /// Removes everything that this path has installed; leaves no trace.
    fn remove(&mut self) -> Result<(), ApplyError>;

    /// The live flows, to be carried over to another path.
    fn flows(&self) -> Result<Vec<Flow>, CounterError>;

    /// Takes over live flows from another path; returns how many it could take. Flows it already has stay as they are.
    fn adopt(&mut self, flows: &[Flow]) -> Result<usize, ApplyError>;

    /// Whether an earlier process has left this path in force here: `apply` then takes it over.
    fn is_left(&self) -> bool {
        false
    }

    /// Changes what happens to unknown flows. Only the eBPF path can leave them to the kernel.
    fn set_stance(&mut self, _stance: Stance) -> Result<(), ApplyError> {
        Ok(())
    }

    /// What of the table in force is carried differently here than the rules say, one sentence each, for the status.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The kernel has told of devices, routes or neighbours: what depends on them is looked at now.
    fn look(&mut self) -> Result<(), ApplyError> {
        Ok(())
    }

    /// Regular work: ageing, neighbours, idle sessions. Called about once a second.
    fn maintain(&mut self) -> Result<(), ApplyError> {
        Ok(())
    }
}
