//! What is wrong with the environment.

use std::fmt;

/// A variable, what is wrong with it, and what would help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {problem}")]
pub struct SettingsError {
    /// Its name.
    pub variable: &'static str,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong. No variant holds the value of a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Bytes that are no text.
    #[error("is not UTF-8: set it to plain text")]
    NotUtf8,
    /// No IP address.
    #[error("`{value}` is not an IP address: use one such as 10.0.0.10 or 2001:db8::10")]
    NotAnAddress {
        /// What it says.
        value: String,
    },
    /// An address that stands for many, or for none.
    #[error("`{value}` is not the address of one host: use one such as 10.0.0.10 or 2001:db8::10")]
    NotAHost {
        /// What it says.
        value: String,
    },
    /// No address with a port.
    #[error("`{value}` is not an address with a port: use one such as 0.0.0.0:9002 or [::]:9002")]
    NotAnAddressAndPort {
        /// What it says.
        value: String,
    },
    /// No network.
    #[error("`{value}` is not a network: use one such as 10.0.0.0/24 or 2001:db8::/64")]
    NotANetwork {
        /// What it says.
        value: String,
    },
    /// An address inside a network instead of the network.
    #[error("`{value}` has bits set behind its prefix: use `{network}`")]
    HostBits {
        /// What it says.
        value: String,
        /// What was meant.
        network: String,
    },
    /// No name.
    #[error("`{value}` is not a DNS name: use one such as db.tailnet.ts.net")]
    NotAName {
        /// What it says.
        value: String,
    },
    /// No protocol with a port.
    #[error("`{value}` is not a protocol and a port: use tcp:80, udp:53 or tcp:8000-8010")]
    NotAPort {
        /// What it says.
        value: String,
    },
    /// Too many ports.
    #[error("{count} ports, and each takes a socket: name {most} at most")]
    TooManyPorts {
        /// How many there are.
        count: u32,
        /// How many there may be.
        most: u32,
    },
    /// No duration.
    #[error("`{value}` is not a duration above zero: use one such as 60s or 1m30s")]
    NotADuration {
        /// What it says.
        value: String,
    },
    /// No truth value; a warning.
    #[error("`{value}` is neither true nor false, so `{default}` is taken: use true or false")]
    NotABool {
        /// What it says.
        value: String,
        /// What counts instead.
        default: bool,
    },
    /// Too many addresses.
    #[error("{count} addresses, of which {family} are of one family: use one of each at most")]
    TooManyAddresses {
        /// How many there are.
        count: usize,
        /// How many of them share a family.
        family: usize,
    },
    /// Two that exclude each other.
    #[error("cannot be combined with {other}: unset one of the two")]
    Conflict {
        /// The other variable.
        other: &'static str,
    },
    /// One that makes no sense alone.
    #[error("needs {other}: set that too, or unset this")]
    Needs {
        /// The other variable.
        other: &'static str,
    },
    /// Useless without the other switched off.
    #[error("needs a TUN device: set TS_USERSPACE to false, or unset this")]
    NeedsTun,
    /// Nobody is told what is installed; a warning.
    #[error(
        "outside Kubernetes (KUBERNETES_SERVICE_HOST is unset) no operator is told what is installed: see /v1/status"
    )]
    OutsideKubernetes,
    /// What is installed would be written to the state Secret; a warning.
    #[error(
        "TS_KUBE_SECRET is empty, so that no operator is told what is installed: see /v1/status"
    )]
    WithoutSecret,
    /// Going away; a warning.
    #[error("is deprecated: set {instead} instead")]
    Deprecated {
        /// What replaces it.
        instead: &'static str,
    },
    /// Something overrides it; a warning.
    #[error("`{value}` is overridden by {other}: unset one of the two")]
    Overridden {
        /// What it says.
        value: bool,
        /// The stronger variable.
        other: &'static str,
    },
}

/// Everything that is wrong, at least one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsErrors(pub(super) Vec<SettingsError>);

impl SettingsErrors {
    /// In the order in which the variables are looked at.
    pub fn iter(&self) -> std::slice::Iter<'_, SettingsError> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a SettingsErrors {
    type Item = &'a SettingsError;
    type IntoIter = std::slice::Iter<'a, SettingsError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for SettingsErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(formatter, "{end}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SettingsErrors {}
