//! Which data path carries a table: the first of the preferred ones that can, found out by trying.
//!
//! Every refusal is kept with its reason; nothing falls back in silence.

use std::{path::PathBuf, sync::Arc};

use proxy_rules::{
    RuleTable,
    config::{PathKind, Xdp},
};

use super::{
    ApplyError, DataPath, Kind, Unsupported,
    ebpf::{EbpfOptions, EbpfPath, XdpChoice},
    nftables::NftPath,
    userspace::{UserspacePath, through::Through},
};

/// Why a path was not chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which.
    pub kind: Kind,
    /// The sort of reason: the label of the metric, bounded and stable.
    pub reason: &'static str,
    /// The whole story, with the remedy.
    pub message: String,
}

impl Refusal {
    /// From the path's answer.
    pub fn new(kind: Kind, error: &ApplyError) -> Self {
        Self { kind, reason: reason(error), message: chain(error) }
    }
}

/// The sort of a refusal.
pub const fn reason(error: &ApplyError) -> &'static str {
    match error {
        ApplyError::Unsupported(error) => match error {
            Unsupported::BuiltWithout => "built_without",
            Unsupported::Capability(_) => "capability",
            Unsupported::Kernel { .. } => "kernel",
            Unsupported::Program { .. } => "program",
            Unsupported::Interface(_) => "interface",
            Unsupported::Feature { .. } => "feature",
        },
        ApplyError::TooMany { .. } => "too_many",
        ApplyError::Step { .. } => "step",
    }
}

/// An error and what caused it, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Transparent errors repeat their cause.
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Makes data paths that have installed nothing yet.
pub trait Factory: Send {
    /// A new one of this kind.
    fn make(&self, kind: Kind) -> Result<Box<dyn DataPath>, ApplyError>;

    /// Other choices for the paths that are made from now on; tells whether they differ from those before.
    fn configure(&mut self, _xdp: Xdp, _bpffs: Option<PathBuf>) -> bool {
        false
    }
}

/// The real ones.
#[derive(Debug, Default)]
pub struct Real {
    /// `--bpffs`: stronger than the configuration.
    pub bpffs: Option<PathBuf>,
    /// How user space reaches the tailnet where there is no TUN device.
    pub through: Option<Arc<Through>>,
    configured: (Option<PathBuf>, Xdp),
}

impl Real {
    /// With the flag's bpffs.
    pub fn new(bpffs: Option<PathBuf>) -> Self {
        Self { bpffs, ..Self::default() }
    }
}

impl Factory for Real {
    fn make(&self, kind: Kind) -> Result<Box<dyn DataPath>, ApplyError> {
        Ok(match kind {
            Kind::Ebpf => {
                let (configured, xdp) = &self.configured;
                let bpffs = self.bpffs.clone().or_else(|| configured.clone());
                let xdp = match xdp {
                    Xdp::Off => XdpChoice::Off,
                    Xdp::Auto => XdpChoice::Auto,
                    Xdp::Native => XdpChoice::Native,
                    Xdp::Generic => XdpChoice::Generic,
                };
                let bpffs = bpffs.or_else(crate::capability::bpffs);
                Box::new(EbpfPath::new(EbpfOptions { bpffs, xdp }))
            }
            Kind::Nftables => Box::new(NftPath::new()),
            Kind::Userspace => {
                let path = UserspacePath::new()
                    .map_err(|error| ApplyError::step("starting its runtime", error))?;
                match &self.through {
                    Some(through) => Box::new(path.through(Arc::clone(through))),
                    None => Box::new(path),
                }
            }
        })
    }

    fn configure(&mut self, xdp: Xdp, bpffs: Option<PathBuf>) -> bool {
        let wanted = (bpffs, xdp);
        std::mem::replace(&mut self.configured, wanted.clone()) != wanted
    }
}

/// The kinds that a configuration names.
pub fn kinds(paths: &[PathKind]) -> Vec<Kind> {
    let kind = |path: &PathKind| match path {
        PathKind::Ebpf => Kind::Ebpf,
        PathKind::Nftables => Kind::Nftables,
        PathKind::Userspace => Kind::Userspace,
    };
    paths.iter().map(kind).collect()
}

/// A path of this kind that says it can carry the table.
pub fn candidate(
    factory: &dyn Factory,
    kind: Kind,
    table: &RuleTable,
) -> Result<Box<dyn DataPath>, ApplyError> {
    let path = factory.make(kind)?;
    path.supports(table)?;
    Ok(path)
}
