//! Why a control server did not do what was asked, what to do about it, and whether to ask again.

use std::{fmt, time::Duration};

/// A request that did not succeed: what was asked of whom, and why not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Error {
    /// What was to be done, as `delete the device n12CNTRL`.
    pub attempt: Box<str>,
    /// The control server's address.
    pub server: Box<str>,
    /// Why not.
    pub failure: Failure,
}

/// The kinds of failure. Texts are the server's own or say what was found; none holds a secret.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Failure {
    /// HTTP 404.
    #[error("it is not there")]
    NotFound,
    /// HTTP 409 or 412, or what was read is no longer what is there.
    #[error("it was changed by someone else: {0}")]
    Conflict(Box<str>),
    /// HTTP 401, with a fresh token too; or the token was refused.
    #[error("the credentials were refused: {0}")]
    Unauthorized(Box<str>),
    /// HTTP 403: good credentials that may not do this.
    #[error("the credentials may not do this: {0}")]
    Forbidden(Box<str>),
    /// HTTP 429.
    #[error("too many requests")]
    RateLimited {
        /// What the server asks for.
        retry_after: Option<Duration>,
    },
    /// Unreachable, no answer in time, or HTTP 5xx.
    #[error("the server cannot be used: {problem}")]
    Unavailable {
        /// What happened.
        problem: Box<str>,
        /// What the server asks for.
        retry_after: Option<Duration>,
    },
    /// HTTP 400 or another 4xx: the request itself was refused.
    #[error("the request was refused: {0}")]
    Invalid(Box<str>),
    /// The control server has no such thing.
    #[error("this control server does not support {0}")]
    Unsupported(Feature),
    /// The credentials could not be read.
    #[error("no credentials: {0}")]
    Credentials(Box<str>),
    /// An answer that is not the API's.
    #[error("the answer is not understood: {0}")]
    Malformed(Box<str>),
}

/// What not every control server has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Feature {
    /// Names with addresses of their own, served by several devices.
    VipServices,
    /// Reading the policy.
    Policy,
}

impl fmt::Display for Feature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::VipServices => "Tailscale Services",
            Self::Policy => "reading the tailnet policy",
        })
    }
}

/// When to ask again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Retry {
    /// Not before what was asked for changes: it would be answered alike.
    OnChange,
    /// With growing pauses.
    Backoff,
    /// Not before that time has passed: the server said so.
    After(Duration),
}

impl Failure {
    /// A name for conditions, Events and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::Conflict(_) => "Conflict",
            Self::Unauthorized(_) => "Unauthorized",
            Self::Forbidden(_) => "Forbidden",
            Self::RateLimited { .. } => "RateLimited",
            Self::Unavailable { .. } => "Unavailable",
            Self::Invalid(_) => "Invalid",
            Self::Unsupported(_) => "Unsupported",
            Self::Credentials(_) => "MissingCredentials",
            Self::Malformed(_) => "MalformedAnswer",
        }
    }

    /// When to ask again. What is put right at the control server, without anything changing in the cluster, is asked
    /// again: nobody would tell us.
    pub fn retry(&self) -> Retry {
        match self {
            Self::NotFound | Self::Unsupported(_) => Retry::OnChange,
            Self::RateLimited { retry_after } | Self::Unavailable { retry_after, .. } => {
                retry_after.map_or(Retry::Backoff, Retry::After)
            }
            Self::Conflict(_)
            | Self::Unauthorized(_)
            | Self::Forbidden(_)
            | Self::Invalid(_)
            | Self::Credentials(_)
            | Self::Malformed(_) => Retry::Backoff,
        }
    }

    /// What a user can do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotFound => "check the name, or make it",
            Self::Conflict(_) => "it is read and decided again",
            Self::Unauthorized(_) => {
                "check that the OAuth client, federated identity or API key exists and is not revoked or expired"
            }
            Self::Forbidden(_) => {
                "give the OAuth client the write scopes Devices Core, Auth Keys and Services and a tag that owns the proxies' tags"
            }
            Self::RateLimited { .. } => "it is tried again later",
            Self::Unavailable { .. } => {
                "check the address of the control server and the way to it; it is tried again"
            }
            Self::Invalid(_) => {
                "check tags and names against the tailnet policy: the tags must be owned by a tag of the OAuth client"
            }
            Self::Unsupported(_) => "use another control server, or do without",
            Self::Credentials(_) => "check the Secret with the credentials and how it is mounted",
            Self::Malformed(_) => {
                "check that the address is that of a control server, and which kind is configured"
            }
        }
    }
}

impl Error {
    /// Whether what was asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        self.failure == Failure::NotFound
    }

    /// Whether it must be read and decided again.
    pub fn is_conflict(&self) -> bool {
        matches!(self.failure, Failure::Conflict(_))
    }

    /// A name for conditions, Events and metrics.
    pub fn reason(&self) -> &'static str {
        self.failure.reason()
    }

    /// When to ask again.
    pub fn retry(&self) -> Retry {
        self.failure.retry()
    }

    /// What a user can do.
    pub fn remedy(&self) -> &'static str {
        self.failure.remedy()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempt, server, failure } = self;
        write!(formatter, "{attempt} at {server}: {failure}; {}", failure.remedy())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Error, Failure, Retry};

    #[test]
    fn an_error_names_what_whom_why_and_the_remedy() {
        let error = Error {
            attempt: "list devices".into(),
            server: "https://control.example".into(),
            failure: Failure::Forbidden("scope devices:core".into()),
        };
        let text = error.to_string();
        for part in
            ["list devices", "https://control.example", "scope devices:core", error.remedy()]
        {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_servers_own_pause_is_kept_to() {
        let pause = Duration::from_secs(7);
        let limited = Failure::RateLimited { retry_after: Some(pause) };
        assert_eq!(limited.retry(), Retry::After(pause));
        assert_eq!(Failure::RateLimited { retry_after: None }.retry(), Retry::Backoff);
        assert_eq!(Failure::NotFound.retry(), Retry::OnChange);
    }
}
