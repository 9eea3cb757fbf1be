//! The wire form of a rule table: what the operator writes, what a person writes by hand, and what the proxy reads.
//!
//! These types say what is possible and carry the documentation; [`crate::validate`] turns text into a [`Config`] or
//! into every error at once. The JSON Schema of [`schema`] comes from these types, and the first step of validation
//! interprets that schema, so the two cannot drift apart. Every field has a default in Rust: validation repairs what
//! it has reported and goes on, so that one mistake does not hide another.

mod service;
mod settings;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

pub use service::{
    Backend, Deny, DenyAction, PortMap, PortSpec, Route, Service, WireAffinity, WireState,
};
pub use settings::{
    DataPath, PathKind, PathWord, Settings, SnatPorts, WireFragments, WireInterfaces,
    WireUnmatched, Xdp,
};

use crate::RuleTable;

/// The version that this build reads and writes.
pub const API_VERSION: &str = "sluice.dev/v1";
/// The kind of the document.
pub const KIND: &str = "ProxyRules";

/// A rules file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(
    deny_unknown_fields,
    title = "ProxyRules",
    extend("required" = ["apiVersion", "kind"])
)]
pub struct Document {
    /// Version of the format: `sluice.dev/v1`.
    pub api_version: ApiVersion,
    /// Always `ProxyRules`.
    pub kind: DocumentKind,
    /// Everything that is not a rule. Every setting has a default.
    pub settings: Settings,
    /// What the tailnet side may reach: addresses served on the tailnet, and the cluster backends behind them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<Service>,
    /// What the cluster side may reach: addresses served on the cluster side, and the tailnet targets behind them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<Service>,
    /// Forwarding without translation of the destination: subnet routes, exit node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// What is refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Deny>,
}

/// Version of the format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ApiVersion {
    /// The first.
    #[default]
    #[serde(rename = "sluice.dev/v1")]
    V1,
}

/// Kind of the document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum DocumentKind {
    /// The rules of one proxy.
    #[default]
    ProxyRules,
}

/// A valid rules file, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What to forward.
    pub table: RuleTable,
    /// How this process goes about it.
    pub options: Options,
}

/// What the process needs to know besides the table. A change of these never changes what a packet meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Data paths to try, in this order; never empty.
    pub data_paths: Vec<PathKind>,
    /// Whether XDP programs are attached besides those on TC.
    pub xdp: Xdp,
    /// Directory on a bpffs where maps and links are pinned; `None` = wherever one is mounted and writable.
    pub bpffs: Option<PathBuf>,
    /// Where metrics, status and health are served.
    pub admin: SocketAddr,
    /// How long a stopping process waits for its flows to end.
    pub drain: Duration,
}

/// The JSON Schema of [`Document`].
pub fn schema() -> Schema {
    schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<Document>()
}

impl Document {
    /// As YAML.
    ///
    /// # Errors
    /// Never for documents that validation accepts.
    pub fn to_yaml(&self) -> Result<String, serde_saphyr::ser::Error> {
        serde_saphyr::to_string(self)
    }
}
