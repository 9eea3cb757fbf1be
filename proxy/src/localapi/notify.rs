//! What the bus tells: `ipn.Notify`.

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;

use super::{
    node::{Node, NodeId},
    nullable::{entries, items, present, text, time},
    prefs::Prefs,
    status::Status,
};

/// A message on the bus. What is absent has not changed.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "PascalCase")]
pub struct Notify {
    /// tailscaled's version; in a watch's first message at least.
    pub version: String,
    /// The watch's own id, in the first message if that holds the state: what a foreground serve configuration is keyed by.
    #[serde(rename = "SessionID", deserialize_with = "text")]
    pub session_id: Option<String>,
    /// A critical error.
    #[serde(rename = "ErrMessage")]
    pub error: Option<String>,
    /// The state, now or new.
    pub state: Option<State>,
    /// The preferences, now or new.
    pub prefs: Option<Prefs>,
    /// Everything, in the first message of a watch that asks for it.
    pub initial_status: Option<Status>,
    /// The node itself after a change: addresses, name, key, capabilities.
    pub self_change: Option<Node>,
    /// Peers that came or changed, whole: put them in place by id.
    #[serde(deserialize_with = "items")]
    pub peers_changed: Vec<Node>,
    /// Peers that are gone.
    #[serde(deserialize_with = "items")]
    pub peers_removed: Vec<NodeId>,
    /// All warnings after a change of one.
    pub health: Option<Health>,
    /// Where a person could log this node in.
    #[serde(rename = "BrowseToURL", deserialize_with = "text")]
    pub browse_to_url: Option<String>,
    /// A log-in has just succeeded.
    #[serde(deserialize_with = "present")]
    pub login_finished: bool,
}

/// What tailscaled is up to.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq)]
#[serde(from = "i64")]
pub enum State {
    /// Not known yet.
    NoState,
    /// In use by another user (Windows).
    InUseOtherUser,
    /// An auth key or a person must log it in.
    NeedsLogin,
    /// An administrator must admit it.
    NeedsMachineAuth,
    /// Told to be down.
    Stopped,
    /// Connecting.
    Starting,
    /// Connected, with addresses.
    Running,
    /// One that this version does not know.
    Unknown(i64),
}

impl From<i64> for State {
    fn from(number: i64) -> Self {
        match number {
            0 => Self::NoState,
            1 => Self::InUseOtherUser,
            2 => Self::NeedsLogin,
            3 => Self::NeedsMachineAuth,
            4 => Self::Stopped,
            5 => Self::Starting,
            6 => Self::Running,
            other => Self::Unknown(other),
        }
    }
}

impl State {
    /// The state of this name, as statuses have it.
    pub fn named(name: &str) -> Option<Self> {
        (0..=6).map(Self::from).find(|state| state.to_string() == name)
    }
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(number) => write!(formatter, "state {number}"),
            // The names are those of the wire.
            known => write!(formatter, "{known:?}"),
        }
    }
}

/// What tailscaled warns of.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "PascalCase")]
pub struct Health {
    /// Warnings by code, such as `login-state`; one that is no longer here is over.
    #[serde(deserialize_with = "entries")]
    pub warnings: BTreeMap<String, Warning>,
}

/// A warning.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "PascalCase")]
pub struct Warning {
    /// `high`, `medium` or `low`.
    pub severity: String,
    /// A few words.
    pub title: String,
    /// What is wrong, in a sentence.
    pub text: String,
    /// Since when, RFC 3339.
    #[serde(deserialize_with = "time")]
    pub broken_since: Option<String>,
    /// Whether traffic suffers.
    pub impacts_connectivity: bool,
}
