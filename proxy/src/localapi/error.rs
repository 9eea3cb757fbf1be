//! Why a call to tailscaled did not succeed, told apart by what the caller can do about it.

use std::{error, io, path::PathBuf, time::Duration};

use hyper::StatusCode;

use super::parse::{self, ParseError};

/// A call to tailscaled that did not succeed. `call` is the method and the route, such as "GET prefs"; `text` is what
/// tailscaled said, cut to a bounded length.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens at the socket. Worth trying again: tailscaled may be starting.
    #[error("no tailscaled answers at {}: {source}; is it running with this --socket?", socket.display())]
    Absent { socket: PathBuf, source: io::Error },
    /// The socket, or tailscaled itself (401, 403), does not let this user do it.
    #[error("{call}: not permitted: {text}; run as root or as tailscaled's operator user")]
    Denied { call: String, text: String },
    /// Another code than success; 503 is what tailscaled says as long as it has no netmap.
    #[error("{call}: tailscaled answers {code}: {text}")]
    Status { call: String, code: u16, text: String },
    /// It could not do it, but says so in an answer whose code means success.
    #[error("{call}: tailscaled could not: {text}")]
    Refused { call: String, text: String },
    /// The certificate authority limits requests (429); when it takes the next one, if it says so.
    #[error("the certificate authority limits requests: {text}; try again {}", later(*retry_after))]
    RateLimited { retry_after: Option<Duration>, text: String },
    /// The serve configuration is no longer the one that was read (412): read it again.
    #[error("the serve configuration was changed meanwhile: read it and decide again")]
    Changed,
    /// No whole answer in time.
    #[error("{call}: no answer from tailscaled within {after:?}: is it stopped, or busy?")]
    Timeout { call: String, after: Duration },
    /// The answer is not what this version knows; `path` leads to the field, such as `Peer.nodekey:1a….AllowedIPs[0]`.
    #[error("{call}: the answer of tailscaled cannot be read: {problem}")]
    Parse { call: String, problem: ParseError },
    /// An answer, or a line of the bus, of more than this many bytes.
    #[error(
        "{call}: tailscaled's answer is longer than {limit} bytes: raise the limit of the client"
    )]
    TooLong { call: String, limit: usize },
    /// The connection ended within an answer: tailscaled stopped, most likely.
    #[error("{call}: the connection to tailscaled broke: {source}")]
    Broken { call: String, source: Box<dyn error::Error + Send + Sync> },
}

impl Error {
    /// What an answer without success means.
    pub(super) fn of_status(
        call: String,
        code: StatusCode,
        retry: Option<&str>,
        body: &[u8],
    ) -> Self {
        let text = parse::error_text(body);
        match code {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::Denied { call, text },
            StatusCode::PRECONDITION_FAILED => Self::Changed,
            StatusCode::TOO_MANY_REQUESTS => {
                let retry_after =
                    retry.and_then(|value| parse::retry_after(value, std::time::SystemTime::now()));
                Self::RateLimited { retry_after, text }
            }
            _ => Self::Status { call, code: code.as_u16(), text },
        }
    }

    /// What it means that the socket does not let itself be connected to.
    pub(super) fn of_connect(call: String, socket: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::PermissionDenied => {
                Self::Denied { call, text: format!("{}: {source}", socket.display()) }
            }
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                Self::Absent { socket, source }
            }
            _ => Self::Broken { call, source: source.into() },
        }
    }
}

fn later(after: Option<Duration>) -> String {
    after.map_or_else(
        || "later".to_owned(),
        |after| format!("in {}", humantime::format_duration(after)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, retry: Option<&str>, body: &str) -> Error {
        let code = StatusCode::from_u16(code).unwrap();
        Error::of_status("GET x".to_owned(), code, retry, body.as_bytes())
    }

    #[test]
    fn each_code_is_told_apart() {
        assert!(matches!(status(403, None, "no"), Error::Denied { text, .. } if text == "no"));
        assert!(matches!(status(401, None, ""), Error::Denied { .. }));
        assert!(matches!(status(412, None, "etag mismatch"), Error::Changed));
        assert!(
            matches!(status(503, None, "no netmap\n"), Error::Status { code: 503, text, .. } if text == "no netmap")
        );
    }

    #[test]
    fn a_limit_tells_when_to_come_back() {
        let error = status(429, Some("90"), "too many certificates");
        assert!(
            error.to_string().ends_with("too many certificates; try again in 1m 30s"),
            "{error}"
        );
        assert!(
            matches!(error, Error::RateLimited { retry_after: Some(after), .. } if after.as_secs() == 90)
        );
        assert!(matches!(status(429, None, ""), Error::RateLimited { retry_after: None, .. }));
    }
}
