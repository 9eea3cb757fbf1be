//! Devices of a tailnet.

use std::{fmt, net::IpAddr};

/// What a control server calls a device: Tailscale's stable node ID (`nXYZCNTRL`, also `device_id` in a proxy's state
/// Secret), Headscale's number.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DeviceId(String);

impl DeviceId {
    /// As it stands in a state Secret or in an answer.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A device as the control server knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Device {
    /// What to ask for it by.
    pub id: DeviceId,
    /// Its MagicDNS name in full, without a dot at the end; a bare label where the server has no domain.
    pub name: String,
    /// What it calls itself: the first label, before the server made it unique.
    pub hostname: String,
    /// Its tailnet addresses, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// Its tags, as `tag:k8s`.
    pub tags: Vec<String>,
    /// Whether it may use the tailnet (device approval).
    pub authorized: bool,
    /// Whether it is connected to the control server now; `None` where the server does not tell.
    pub connected: Option<bool>,
}
