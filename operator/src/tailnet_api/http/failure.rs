//! What went wrong with an exchange, told from an answer or from its absence.

use std::time::{Duration, SystemTime};

use hyper::{
    HeaderMap, StatusCode,
    header::{self, HeaderValue},
};

use crate::tailnet_api::Failure;

/// The longest pause that is believed. A server that asks for more may have been put right long before.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// How many characters of a foreign text are shown.
pub(in crate::tailnet_api) const LONGEST_TEXT: usize = 300;

/// The kind of failure that an answer is.
pub(in crate::tailnet_api) fn failure(
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
) -> Failure {
    let message = message(body);
    let said = |message: String| format!("{}: {message}", status.as_u16()).into();
    let retry_after = headers.get(header::RETRY_AFTER).and_then(|v| pause(v, SystemTime::now()));
    match status {
        StatusCode::NOT_FOUND => Failure::NotFound,
        StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => Failure::Conflict(said(message)),
        StatusCode::UNAUTHORIZED => Failure::Unauthorized(said(message)),
        StatusCode::FORBIDDEN => Failure::Forbidden(said(message)),
        StatusCode::TOO_MANY_REQUESTS => Failure::RateLimited { retry_after },
        _ if status.is_server_error() => {
            Failure::Unavailable { problem: said(message), retry_after }
        }
        _ if status.is_redirection() => Failure::Malformed(said("a redirection".to_owned())),
        _ => Failure::Invalid(said(message)),
    }
}

/// What the server says of itself: `message` of a JSON object, else the text.
pub(in crate::tailnet_api) fn message(body: &[u8]) -> String {
    let object: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let told = object.as_ref().and_then(|o| o.get("message")?.as_str());
    let line = line(&told.map_or_else(|| String::from_utf8_lossy(body), Into::into));
    if line.is_empty() { "no reason given".to_owned() } else { line }
}

/// Foreign text as one line that is not too long for a condition.
pub(in crate::tailnet_api) fn line(text: &str) -> String {
    let words = text.split_whitespace().flat_map(|word| [" ", word]).skip(1);
    words.flat_map(str::chars).filter(|c| !c.is_control()).take(LONGEST_TEXT).collect()
}

/// `Retry-After`: seconds or a date, an hour at most.
pub(in crate::tailnet_api) fn pause(value: &HeaderValue, now: SystemTime) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    let seconds = text.parse().ok().map(Duration::from_secs);
    let asked = seconds.or_else(|| {
        let until = httpdate::parse_http_date(text).ok()?;
        Some(until.duration_since(now).unwrap_or_default())
    });
    asked.map(|asked| asked.min(LONGEST_PAUSE))
}

/// The pause that the server asks for.
pub(in crate::tailnet_api) fn retry_after(failure: &Failure) -> Option<Duration> {
    match failure {
        Failure::RateLimited { retry_after } | Failure::Unavailable { retry_after, .. } => {
            *retry_after
        }
        _ => None,
    }
}

/// The error with its causes: the outermost alone says no more than "client error".
pub(in crate::tailnet_api) fn unavailable(error: &(dyn std::error::Error + 'static)) -> Failure {
    let mut problem = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        problem = format!("{problem}: {cause}");
        source = cause.source();
    }
    Failure::Unavailable { problem: problem.into(), retry_after: None }
}

#[cfg(test)]
mod tests;
