//! Auth keys: what lets a proxy into a tailnet.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use secrecy::SecretString;

/// What an auth key is to give.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyRequest {
    /// Tags of the devices that log in with it, as `tag:k8s`; at least one.
    pub tags: Vec<String>,
    /// Whether it may be used more than once.
    pub reusable: bool,
    /// Whether its devices are deleted when they log out or stay away.
    pub ephemeral: bool,
    /// Whether its devices need no approval.
    pub preauthorized: bool,
    /// How long it may be used; `None` is the server's default.
    pub expiry: Option<Duration>,
    /// For people who look at the list of keys; empty is none.
    pub description: String,
}

impl KeyRequest {
    /// What a proxy's replica gets: for one device that stays, preauthorized, the server's expiry.
    pub fn for_proxy(tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            tags: tags.into_iter().map(Into::into).collect(),
            reusable: false,
            ephemeral: false,
            preauthorized: true,
            expiry: None,
            description: String::new(),
        }
    }
}

/// A key that was just made. The secret cannot be asked for again.
#[derive(Clone, Debug)]
pub struct AuthKey {
    /// What the server calls it.
    pub id: String,
    /// What a device logs in with (`tskey-auth-…`).
    pub secret: SecretString,
    /// Until when it lets devices in, if the server tells.
    pub expires: Option<Timestamp>,
}

/// A key in a list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyInfo {
    /// What the server calls it.
    pub id: String,
    /// Tags that it gives.
    pub tags: Vec<String>,
    /// What was said when it was made.
    pub description: String,
    /// When it was made, if the server tells.
    pub created: Option<Timestamp>,
    /// Until when it lets devices in, if the server tells.
    pub expires: Option<Timestamp>,
    /// Whether it can still be used, as far as the server tells.
    pub usable: bool,
}
