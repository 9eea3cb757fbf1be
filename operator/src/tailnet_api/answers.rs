//! The readers of what control servers answer, fed with bytes instead: for fuzzing. Each is the one that the clients use.

use std::time::{Duration, SystemTime};

use hyper::header::HeaderValue;
use secrecy::SecretString;

use super::{
    Device, Failure, KeyInfo, Policy, VipService, headscale, http::Answer, http::failure,
    tailscale, token,
};

/// How many characters a failure tells of an answer at most.
pub const LONGEST_TEXT: usize = failure::LONGEST_TEXT;

/// An access token and its life.
pub fn token(text: &[u8]) -> Result<(SecretString, Duration), Failure> {
    token::granted(text)
}

/// Devices of Tailscale's API: one, a list.
pub fn devices(text: &[u8]) -> [Result<Vec<Device>, Failure>; 2] {
    [tailscale::wire::device(text).map(|device| vec![device]), tailscale::wire::devices(text)]
}

/// Nodes of Headscale's API: one, a list.
pub fn nodes(text: &[u8]) -> [Result<Vec<Device>, Failure>; 2] {
    [headscale::wire::node(text).map(|node| vec![node]), headscale::wire::nodes(text)]
}

/// Lists of keys: Tailscale's, Headscale's.
pub fn keys(text: &[u8]) -> [Result<Vec<KeyInfo>, Failure>; 2] {
    [tailscale::wire::keys(text), headscale::wire::keys(text)]
}

/// Keys that were just made: Tailscale's, Headscale's; the secret.
pub fn made_keys(text: &[u8]) -> [Result<SecretString, Failure>; 2] {
    let answer = Answer { etag: None, body: text.to_vec().into() };
    let keys = [tailscale::wire::made_key(&answer), headscale::wire::made_key(&answer)];
    keys.map(|made| made.map(|key| key.secret))
}

/// Tailscale Services: one, a list.
pub fn services(text: &[u8]) -> [Result<Vec<VipService>, Failure>; 2] {
    let answer = Answer { etag: None, body: text.to_vec().into() };
    let one = tailscale::wire::service(&answer).map(|service| vec![service]);
    [one, tailscale::wire::services(text)]
}

/// A Service as it is written.
pub fn written(service: &VipService) -> String {
    tailscale::wire::service_request(service).to_string()
}

/// The number of Headscale's user of that name.
pub fn user(text: &[u8], name: &str) -> Result<Option<String>, Failure> {
    headscale::wire::user(text, name)
}

/// Headscale's policy.
pub fn policy(text: &[u8]) -> Result<Policy, Failure> {
    headscale::wire::policy(text)
}

/// What an error's body says.
pub fn message(text: &[u8]) -> String {
    failure::message(text)
}

/// How long a `Retry-After` asks to wait, from a time on.
pub fn pause(text: &[u8], now: SystemTime) -> Option<Duration> {
    failure::pause(&HeaderValue::from_bytes(text).ok()?, now)
}
