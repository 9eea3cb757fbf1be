use std::time::{Duration, SystemTime};

use hyper::{
    HeaderMap, StatusCode,
    header::{HeaderValue, RETRY_AFTER},
};

use super::{failure, message, pause};
use crate::tailnet_api::Failure;

#[test]
fn a_pause_is_seconds_or_a_date() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let read = |text: &str| pause(&HeaderValue::from_str(text).unwrap(), now);
    assert_eq!(read("120"), Some(Duration::from_mins(2)));
    assert_eq!(read("Sun, 09 Sep 2001 01:46:50 GMT"), Some(Duration::from_secs(10)));
    assert_eq!(read("Sun, 09 Sep 2001 01:46:30 GMT"), Some(Duration::ZERO), "has passed");
    assert_eq!(read("99999999"), Some(Duration::from_hours(1)));
    assert_eq!(read("-1"), None);
    assert_eq!(read("soon"), None);
}

#[test]
fn a_message_is_the_servers_own_words_on_one_short_line() {
    assert_eq!(message(br#"{"message":"tags are\n not permitted"}"#), "tags are not permitted");
    assert_eq!(message(b"plain \x1b[31m text"), "plain [31m text");
    assert_eq!(message(b""), "no reason given");
    assert_eq!(message(&[b'a'; 1000]).len(), 300);
    assert_eq!(message(br#"{"message":7}"#), r#"{"message":7}"#);
}

#[test]
fn each_status_has_its_kind() {
    let mut headers = HeaderMap::new();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("3"));
    let kind = |status: u16| failure(StatusCode::from_u16(status).unwrap(), &headers, b"{}");
    for (status, reason) in [
        (302, "MalformedAnswer"),
        (400, "Invalid"),
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (404, "NotFound"),
        (409, "Conflict"),
        (412, "Conflict"),
        (422, "Invalid"),
        (429, "RateLimited"),
        (500, "Unavailable"),
        (503, "Unavailable"),
    ] {
        assert_eq!(kind(status).reason(), reason, "{status}");
    }
    let retry_after = Some(Duration::from_secs(3));
    assert_eq!(kind(429), Failure::RateLimited { retry_after });
    assert!(matches!(kind(503), Failure::Unavailable { retry_after: Some(_), .. }));
}
